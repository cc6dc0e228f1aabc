"""The kernels that the table relies on: run on CPU, with float32 as the oracle."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxmp import dtypes
from mxmp.rules import RULES
from tests.rules.bias import BOUND, measured
from tests.rules.op_examples import EXAMPLES, Example
from tests.rules.run_examples import chosen, output_dtypes, relative_errors, run

ROOT = Path(__file__).parents[2]


def rows_of(program, *args):
    """Return what each example gave, by its number, from one other process, since a kernel may abort."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.rules.{program}", *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=280)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"died at {EXAMPLES[lines[::2][-1]]}"
    return dict(zip(lines[::2], lines[1::2]))


def is_right(row, dtype):
    """Return whether outputs and gradients are those of float32 up to rounding.

    MXNet's own bfloat16 kernels truncate after each of a few steps (one eps each), oneDNN's round
    once; float16 ones round, after each step or once.
    """
    allowed = 2 * dtypes.limits(dtype).eps
    return "error" not in row and max(row["outputs"] + row["gradients"], default=0) <= allowed


@pytest.mark.bfloat16
def test_bfloat16_agrees_with_float32():
    rows = rows_of("run_examples", "bfloat16")
    assert {str(EXAMPLES[number]): row for number, row in rows.items() if not is_right(row, "bfloat16")} == {}
    assert list(rows) == chosen("bfloat16")


@pytest.mark.slow
@pytest.mark.bfloat16
def test_bfloat16_kernels_have_no_bias():
    """They round: their results are right on average."""
    biases = rows_of("bias")
    assert {str(EXAMPLES[number]): row for number, row in biases.items() if max(map(abs, row), default=0) >= BOUND} == {}
    assert list(biases) == measured()


# How MXNet says that it has a float16 kernel for GPUs alone.
GPU_ALONE = re.compile(
    "FP16 gemm on cpu|FP16.*cuDNN|float16.*CuDNN|gpu::kDevMask|Only FP32 is supported on CPU|cuDNN version"
)
GPU_ALONE_OPS = set(
    """Convolution Convolution_v1 Deconvolution FullyConnected dot batch_dot RNN UpSampling _np_dot
_npi_matmul _npi_tensordot _npi_tensordot_int_axes _contrib_interleaved_matmul_selfatt_qk
_contrib_interleaved_matmul_selfatt_valatt _contrib_interleaved_matmul_encdec_qk
_contrib_interleaved_matmul_encdec_valatt""".split()
)
NOT_COMPARABLE = {
    "random": "Dropout(p=0.5)",
    "behind an operator the gradient of gamma reads what was overwritten, in float32 too": "LeakyReLU(act_type=prelu)",
}


def test_float16_agrees_with_float32_or_is_for_gpus():
    rows = rows_of("run_examples", "float16")
    assert list(rows) == chosen("float16")
    alone = {number for number, row in rows.items() if GPU_ALONE.search(row.get("error", ""))}
    assert {EXAMPLES[number].op for number in alone} <= GPU_ALONE_OPS
    wrong = {str(EXAMPLES[n]): row for n, row in rows.items() if n not in alone and not is_right(row, "float16")}
    assert wrong.keys() <= set(NOT_COMPARABLE.values()), wrong


@pytest.mark.parametrize("size", [300, 5000])
@pytest.mark.parametrize("op, key", [(rule.op, rule.float32_attr) for rule in RULES if rule.float32_attr])
def test_operators_that_widen_compute_in_float32(op, key, size):
    example = Example(op, ((4, size),), {"axis": 1, key: "float32"})
    data = [np.float32(3 * np.random.default_rng(0).standard_normal((4, size))).astype(np.float16).astype(np.float32)]
    assert output_dtypes(example, "float16", [0]) == ["float32"]
    ((output,), gradients), ((expected,), right) = (run(example, dtype, data) for dtype in ("float16", "float32"))
    np.testing.assert_allclose(output, expected, rtol=2**-23)
    # The gradient leaves in float16: rounded once, after one product or quotient in float32 or float16.
    assert relative_errors(gradients, right)[0] <= dtypes.limits("float16").eps
    assert np.isfinite(gradients[0]).all()


ROUND = {
    "float16": lambda values: np.asarray(values).astype(np.float16).astype(np.float32),
    "bfloat16": lambda values: (np.asarray(values, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32),
}


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.rule.preserves_grid], ids=str)
def test_exact_operators_stay_on_the_grid(example):
    rng = np.random.default_rng(0)
    values = [np.exp2(rng.uniform(-16, 4, shape)) * rng.choice((-1, 1), shape) for shape in example.shapes]
    for dtype, round_to in ROUND.items():
        given = example.arrays()
        for port in example.data_ports:
            given[port] = round_to(values[port])
        outputs, _ = run(example, dtypes.FLOAT32, given)
        for output in (output for index, output in enumerate(outputs) if index not in example.rule.keep_outputs):
            np.testing.assert_array_equal(round_to(output), output, err_msg=dtype)
