"""Converted networks that are saved, loaded and converted again: their precision, values, names and dtypes."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_model, load_checkpoint, on_cpu, save_checkpoint
from tests.symbol.small import convolutional, dense, dtypes_of, params_of, precisions, run, text

ROWS = {"x": (4, 6)}


def layers():
    """Layers without names; the last one gives an output of the network."""
    data = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("a"), no_bias=True, num_hidden=6)
    both = mx.sym.FullyConnected(mx.sym.relu(data), mx.sym.var("b"), no_bias=True, num_hidden=6)
    return mx.sym.Group([both, mx.sym.softmax(data)]), ROWS


def attention():
    """Products that others stand in for, with a factor and without."""
    x = mx.sym.var("x")
    q, k = dense(x, "q"), dense(x, "k")
    scores = mx.sym.linalg.gemm2(q, k, transpose_b=True, alpha=0.4, name="scores")
    return mx.sym.linalg.gemm2(mx.sym.softmax(scores, name="soft"), q, name="context"), ROWS


def numpy_mean():
    """A mean that reads low precision and gives float32, by an attribute."""
    data = dense(mx.sym.var("x"), "a", hidden=1500).as_np_ndarray()
    return mx.sym.np.mean(data, axis=1, keepdims=True).as_nd_ndarray(), ROWS


def masked():
    """A constant that float16 does not have, which a policy without float32 clamps."""
    x = mx.sym.var("x")
    return mx.sym.softmax(dense(x, "a") + (x > 0.9) * -1e18), ROWS


def own_casts():
    """A network that computes a part in float16 by itself, and reads what it casts elsewhere too."""
    x = mx.sym.var("x")
    low = dense(mx.sym.Cast(x, dtype="float16", name="down"), "own")
    up = mx.sym.Cast(low, dtype="float32", name="up")
    return mx.sym.Group([dense(up, "a"), dense(x, "b")]), ROWS


def loop():
    def step(row, state):
        new = mx.sym.tanh(dense(row + state, "inner"))
        return new, new

    outputs, state = mx.sym.contrib.foreach(step, mx.sym.var("rows"), mx.sym.var("x"))
    return mx.sym.Group([outputs, dense(state, "last")]), {"rows": (3, 4, 6), **ROWS}


CHANGED = [attention, numpy_mean, masked]  # with operators that a conversion changes, and that stay so
NETWORKS = [*CHANGED, layers, own_casts, loop, convolutional]


def outputs(model, shapes):
    """Return what a model gives, on a CPU, of the same inputs each time."""
    symbol, args, aux = model
    inputs = {name: np.random.RandomState(1).uniform(-1, 1, shape) for name, shape in shapes.items()}
    return run(on_cpu(symbol), {**args, **aux, **inputs})


FROM_TO = [("O1", "O1"), ("O1", "O2"), ("O2", "float32"), ("O2", "mixed_bfloat16"), ("O3", "O1"), ("O3", "float32"),
           ("mixed_bfloat16", "mixed_bfloat16"), ("mixed_bfloat16", "O2")]  # fmt: skip


@pytest.mark.parametrize("first, again", FROM_TO)
@pytest.mark.parametrize("make", NETWORKS)
def test_a_file_that_is_converted_again_runs_as_the_network_itself(make, first, again, tmp_path):
    symbol, shapes = make()
    exact = symbol, *params_of(symbol, shapes)
    once = convert_model(*exact, first, shapes)
    save_checkpoint(str(tmp_path / "net"), 0, *once)
    loaded = load_checkpoint(str(tmp_path / "net"), 0)
    assert text(loaded.symbol) == text(once.symbol)
    twice, fresh = convert_model(*loaded, again, shapes), convert_model(*exact, again, shapes)
    assert twice.symbol.list_outputs() == symbol.list_outputs()
    assert dtypes_of(twice.arg_params) == dtypes_of(fresh.arg_params)
    if make not in CHANGED:
        assert precisions(twice) == precisions(fresh)
    for low, given, expected in zip(outputs(twice, shapes), outputs(fresh, shapes), outputs(exact, shapes)):
        assert low.dtype == given.dtype
        assert np.abs(low - expected).max() < 2.0**-5 * max(1, np.abs(expected).max())
    third = convert_model(*twice, again, shapes)
    assert text(third.symbol) == text(twice.symbol)
    if first == again:
        assert text(twice.symbol) == text(once.symbol)
    if again == "float32" and make not in CHANGED:
        assert text(twice.symbol) == text(symbol)
