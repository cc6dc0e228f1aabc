"""A disk that is full, as far as one process can tell."""

import contextlib
import signal

import pytest


@contextlib.contextmanager
def files_of_at_most(size):
    """Let no file of this process grow beyond some bytes: writing more fails, as on a disk that is full."""
    resource = pytest.importorskip("resource")  # Unix
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
