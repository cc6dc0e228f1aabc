"""The bfloat16 kernels that the table relies on round: their results are right on average."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.bias import BOUND, measured
from tests.rules.examples import EXAMPLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def biases():
    """What each example gave, from one other process, since a kernel may abort."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.rules.bias"]
    lines = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=280).stdout.splitlines()
    return dict(zip(map(json.loads, lines[::2]), map(json.loads, lines[1::2])))


@pytest.mark.slow
@pytest.mark.bfloat16
@pytest.mark.parametrize("number", measured(), ids=lambda number: str(EXAMPLES[number]))
def test_bfloat16_kernels_have_no_bias(biases, number):
    assert number in biases, "the process died before or at this example"
    assert max(map(abs, biases[number]), default=0) < BOUND, biases[number]
