"""Runs programs as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120


def start(*command, folder=ROOT):
    """Start a program in a folder; from another one than the repository it finds mxmp by itself."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    if folder != ROOT:
        del environment["PYTHONPATH"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=folder, env=environment, **streams)


def finish(process, code=0):
    """Wait for a program; return what it printed."""
    try:
        text, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # ends its workers too
        text, _ = process.communicate(timeout=TIMEOUT)
        raise AssertionError(f"it took longer than {TIMEOUT} s:\n{text}") from None
    assert process.returncode == code, text
    return text
