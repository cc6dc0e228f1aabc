"""The kernels that the table relies on: run on CPU, with float32 as the oracle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp import dtypes
from mxmp.rules import RULES
from tests.rules.examples import EXAMPLES
from tests.rules.run_examples import chosen, relative_errors, run

ROOT = Path(__file__).parents[2]
SOUND = {dtype: chosen(dtype, "sound") for dtype in dtypes.LOW_PRECISION}


@pytest.fixture(scope="module")
def sound_runs():
    """What each example with a kernel gave, from one other process per dtype."""
    found = {}

    def runs(dtype):
        if dtype not in found:
            rows, died = run_examples(dtype, "sound")
            assert died is None, f"died at {EXAMPLES[died]}"
            found[dtype] = rows
        return found[dtype]

    return runs


def run_examples(dtype, which, first=0):
    """Return the rows of one process by example, and the example at which it died or None."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.rules.run_examples", dtype, which, str(first)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=100)
        output, died = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as e:  # an abort that waits for other threads
        output, died = (e.stdout or b"").decode(), True
    numbers, rows = ([json.loads(line) for line in output.splitlines()[start::2]] for start in (0, 1))
    assert numbers, "died before the first example"
    return dict(zip(numbers, rows)), (numbers[-1] if died else None)


def is_right(row, dtype):
    """Return whether outputs and gradients are those of float32 up to rounding.

    MXNet's own bfloat16 kernels truncate after each of a few steps (one eps each), oneDNN's round
    once; float16 ones round, after each step or once.
    """
    allowed = 2 * dtypes.limits(dtype).eps
    return "error" not in row and max(row["outputs"] + row["gradients"], default=0) <= allowed


@pytest.mark.bfloat16
@pytest.mark.parametrize("number", SOUND[dtypes.BFLOAT16], ids=lambda n: str(EXAMPLES[n]))
def test_bfloat16_agrees_with_float32(sound_runs, number):
    row = sound_runs(dtypes.BFLOAT16)[number]
    assert is_right(row, dtypes.BFLOAT16), f"{EXAMPLES[number]}: {row}"


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


@pytest.mark.parametrize("number", SOUND[dtypes.FLOAT16], ids=lambda n: str(EXAMPLES[n]))
def test_float16_agrees_with_float32_or_is_for_gpus(sound_runs, number):
    example, row = EXAMPLES[number], sound_runs(dtypes.FLOAT16)[number]
    if GPU_ALONE.search(row.get("error", "")):
        assert example.op in GPU_ALONE_OPS
    elif str(example) not in NOT_COMPARABLE.values():
        assert is_right(row, dtypes.FLOAT16), f"{example}: {row}"


def in_dtype(dtype, function, *arrays):
    """Return what a function of arrays gives in a dtype, and its first gradient for ones, in float32."""
    data = mx.nd.array(arrays[0])
    data.attach_grad()
    with mx.autograd.record():
        low = mx.nd.amp_cast(data, dtype=dtypes.to_numpy(dtype))
        result = mx.nd.amp_cast(function(low, *map(mx.nd.array, arrays[1:])), dtype="float32")
    result.backward()
    return result.asnumpy(), data.grad.asnumpy()


def magnify(factor):
    return lambda x: mx.nd.contrib.BilinearResize2D(x, height=x.shape[2] * factor, width=x.shape[3] * factor)


ROWS = np.ones((1, 1)), np.zeros(5000)
POOL = {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}
# A function of arrays of ones, its output (0) or first gradient (1), and the bounds of what is left of the largest
# value: sums that run in the dtype of the data stop growing, or overflow.
RUNNING_SUMS = {
    "take": ("bfloat16", lambda x, i: mx.nd.take(x, i), ROWS, 1, (0, 0.5)),
    "Embedding": ("bfloat16", lambda x, i: mx.nd.Embedding(i, x, input_dim=1, output_dim=1), ROWS, 1, (0, 0.5)),
    "a window": ("bfloat16", mx.nd.contrib.AdaptiveAvgPooling2D, [np.ones((1, 1, 56, 56))], 0, (0, 0.5)),
    "a magnification": ("bfloat16", magnify(16), [np.ones((1, 1, 5, 5))], 1, (0, 0.5)),
    "a window at the limit": ("float16", mx.nd.contrib.AdaptiveAvgPooling2D, [np.ones((1, 1, 32, 32))], 0, (1, 1)),
    "a window of 2 * 2048": ("float16", mx.nd.contrib.AdaptiveAvgPooling2D, [np.ones((1, 1, 64, 64))], 0, (0.5, 0.5)),
    "a magnification at the limit": ("float16", magnify(8), [np.ones((1, 1, 4, 4))], 1, (0.98, 1.02)),
    "a magnification beyond it": ("float16", magnify(32), [np.ones((1, 1, 4, 4))], 1, (0, 0.98)),
    "a sum": ("float16", mx.nd.sum, [np.ones(60000)], 0, (1, 1)),  # carries its error along
    "a sum beyond the range": ("float16", mx.nd.sum, [np.ones(70000)], 0, (np.inf, np.inf)),
    "the old pooling": ("float16", lambda x: mx.nd.Pooling_v1(x, **POOL), [np.ones((1, 1, 56, 56))], 0, (0.65, 0.66)),
    "pooling": ("float16", lambda x: mx.nd.Pooling(x, **POOL), [np.ones((1, 1, 56, 56))], 0, (1, 1)),
}


@pytest.mark.parametrize("dtype, function, arrays, which, bounds", RUNNING_SUMS.values(), ids=RUNNING_SUMS)
def test_running_sums_stop_growing_beyond_the_limits(dtype, function, arrays, which, bounds):
    found, expected = (in_dtype(each, function, *arrays)[which].max() for each in (dtype, "float32"))
    assert bounds[0] <= found / expected <= bounds[1]


WIDENING = [rule for rule in RULES if rule.widens]


def widened(op, key, size):
    """Return output and gradient of an operator that reads float16 and gives float32, and what float32 gives."""
    rng = np.random.default_rng(0)
    data = (3 * rng.standard_normal((4, size))).astype(np.float16).astype(np.float32)
    found = []
    for cast, attrs in (("float16", {"axis": "1", key: "float32"}), ("float32", {"axis": "1"})):
        graph = json.loads(mx.sym.Cast(mx.sym.var("data"), dtype=cast).tojson())
        graph["nodes"].append({"op": op, "name": "call", "attrs": attrs, "inputs": graph["heads"]})
        symbol = mx.sym.load_json(json.dumps({**graph, "heads": [[len(graph["nodes"]) - 1, 0, 0]]}))
        gradient = mx.nd.zeros(data.shape)
        executor = symbol.bind(mx.cpu(), {"data": mx.nd.array(data)}, {"data": gradient})
        (output,) = executor.forward(is_train=True)
        executor.backward(mx.nd.array(np.random.default_rng(1).integers(-64, 65, output.shape) / 64))
        assert output.dtype == np.float32
        found.append((output.asnumpy(), gradient.asnumpy()))
    return found


@pytest.mark.parametrize("size", [300, 5000])
@pytest.mark.parametrize("rule", WIDENING, ids=lambda rule: rule.op)
def test_operators_that_widen_compute_in_float32(rule, size):
    (output, gradient), (expected, expected_gradient) = widened(rule.op, rule.widens, size)
    np.testing.assert_allclose(output, expected, rtol=2**-23)
    # The gradient leaves in float16: rounded once, after one product or quotient in float32 or float16.
    assert relative_errors([gradient], [expected_gradient])[0] <= dtypes.limits("float16").eps
    assert np.isfinite(gradient).all()


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
