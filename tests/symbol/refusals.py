"""What every refusal must be: an error of mxmp with one clear line."""

import contextlib
from pathlib import Path

import pytest

from mxmp.errors import MxmpError


@contextlib.contextmanager
def refused(error, *names):
    """Expect an error whose message is one line that names what is wrong.

    Args:
        error: The class that it must be of.
        *names: What the message must hold: the file, the node or the argument, and what was found.
    """
    with pytest.raises(MxmpError) as caught:
        yield caught
    assert_clear(caught.value)
    assert isinstance(caught.value, error)
    for name in names:
        assert name in str(caught.value)


def assert_clear(error):
    """Check that an error says in one line, of readable length, what is wrong."""
    message = str(error)
    assert isinstance(error, MxmpError), f"{type(error).__name__}: {message}"
    assert message and message == message.strip() and "\n" not in message, message
    assert len(message) < 500, message


@contextlib.contextmanager
def nothing_written(folder):
    """Expect that a folder's files are, byte for byte, what they were, and that there are no others."""
    before = contents(folder)
    yield
    assert contents(folder) == before


def contents(folder):
    """Return the bytes of all files in a folder, None for a folder in it."""
    paths = sorted(Path(folder).iterdir())
    return {path.name: None if path.is_dir() else path.read_bytes() for path in paths}
