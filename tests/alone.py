"""Checks that need a process of their own: what others leave in one, threads and tables, must not decide them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def alone(function, timeout=120):
    """Call a function of a module of tests in a new process; raise AssertionError with its output if it fails."""
    code = f"import mxmp\nfrom {function.__module__} import {function.__name__} as check\ncheck()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
