"""All tests of this folder are stress tests, and the processor is busy while they run."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUSY = """
import sys, threading
threading.Thread(target=lambda: all(iter(lambda: True, False)), daemon=True).start()
sys.stdin.read()  # to its end, which comes with the end of the tests, however they end
"""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.stress)


@pytest.fixture(scope="session", autouse=True)
def _load():
    """Keep as many processes busy as there are cores."""
    with contextlib.ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE))
            stack.callback(busy.kill)
        yield
