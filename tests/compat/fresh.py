"""Runs code in a Python of its own, into which neither MXNet nor mxmp has been imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

ROOT = Path(__file__).resolve().parents[2]


def observe(code: str, *arguments: str) -> Dict[str, Any]:
    """Return the dict ``found`` that the code fills, as JSON gives it back."""
    program = f"import json, sys\nfound = {{}}\n{code}\nprint(json.dumps(found))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
