"""The one runner of the tables of messages: a call, the error or warning that it gives, and its text."""

import inspect
import re

import pytest


def each(table):
    """Parametrize a test over a table: an id gives a call, the class of the error or warning, and the text.

    The call takes no argument, or ``tmp_path``. In the text ``...`` stands for whatever differs from run to run.
    """
    return pytest.mark.parametrize("call, error, text", table.values(), ids=table.keys())


def check(call, error, text, tmp_path):
    """Check that a call gives an error or a warning of this class and no other, with this text."""
    expected = pytest.warns if issubclass(error, Warning) else pytest.raises
    with expected(error) as caught:
        call(tmp_path) if inspect.signature(call).parameters else call()
    if expected is pytest.raises:
        assert type(caught.value) is error
        fit(str(caught.value), text)
    else:
        fit(str(caught.pop(error).message), text)


def fit(message, text):
    """Check that a message is this text, ``...`` standing for anything."""
    if "..." not in text or not re.fullmatch(".*".join(map(re.escape, text.split("..."))), message, re.DOTALL):
        assert message == text
