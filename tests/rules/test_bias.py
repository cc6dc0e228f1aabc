"""The bfloat16 kernels that the table relies on round: their results are right on average."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp import dtypes
from tests.rules.bias import BOUND, bias, measured
from tests.rules.examples import EXAMPLES, Example

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


TRUNCATE = {
    "elemwise_mul": ((8, 16), (8, 16)),
    "broadcast_add": ((8, 16), (1, 16)),
    "_plus_scalar": ((8, 16),),
    "tanh": ((8, 16),),
    "broadcast_axis": ((8, 1),),
}
ATTRS = {"_plus_scalar": {"scalar": 3.0}, "broadcast_axis": {"axis": 1, "size": 16}}


@pytest.mark.bfloat16
@pytest.mark.parametrize("op, shapes", TRUNCATE.items(), ids=TRUNCATE.keys())
def test_the_measurement_finds_kernels_that_truncate(op, shapes):
    example = Example(op, shapes, ATTRS.get(op, {}))
    assert min(bias(example, values=2000)) < -2 * BOUND
    assert dtypes.BFLOAT16 not in example.rule.dtypes


@pytest.mark.bfloat16
@pytest.mark.parametrize("op", ["elemwise_add", "add_n"])
def test_sums_of_tensors_round_and_stay_in_bfloat16(op):
    example = Example(op, ((8, 16), (8, 16)), {"num_args": 2} if op == "add_n" else {})
    assert max(map(abs, bias(example))) < BOUND
    assert dtypes.BFLOAT16 in example.rule.dtypes
