"""Gradients that MXNet's amp_cast would lose on CPU."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.passes import GuardAmpCasts
from mxmp.symbol import from_graph, to_graph
from tests.graph.text import from_text, to_text

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])


def test_only_variables_and_shared_tensors_are_guarded():
    graph = from_text(
        """x = null()
        a = amp_cast(x) {dtype: bfloat16}
        r = relu(a)
        s = amp_cast(r) {dtype: float32}
        t = exp(s)
        u = amp_cast(t) {dtype: bfloat16}
        v = relu(t)
        return u, v"""
    )
    found = to_text(GuardAmpCasts()(graph).graph).splitlines()
    assert found[1:3] == ["a_guard = _copy(x)", "a = amp_cast(a_guard) {dtype: bfloat16}"]
    assert "s = amp_cast(r) {dtype: float32}" in found
    assert "u = amp_cast(u_guard) {dtype: bfloat16}" in found


def gradients(symbol, grad_req, steps=3, shape=(3, 4), static=False):
    x = mx.nd.array(np.arange(1, 13).reshape(shape) / 16)
    x.attach_grad(grad_req)
    op = mx.nd.CachedOp(symbol, [("static_alloc", static), ("static_shape", static)])
    for _ in range(steps):
        with autograd.record():
            op(x).backward()
    return x.grad.asnumpy()


def low(x):
    return mx.sym.amp_cast(mx.sym.relu(mx.sym.amp_cast(x, dtype=BFLOAT16)), dtype="float32")


def test_mxnet_loses_added_gradients():
    """The defect that the pass is for; when this fails, MXNet is mended and the pass can go."""
    assert (gradients(low(mx.sym.var("x")), "add") == 0).all()


@pytest.mark.parametrize("static", [False, True])
def test_added_gradients_add_up(static):
    symbol = low(mx.sym.var("x"))
    guarded = from_graph(GuardAmpCasts()(to_graph(symbol)).graph)
    assert (gradients(guarded, "add", static=static) == 3).all()
    assert (gradients(guarded, "write", static=static) == 1).all()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("readers", [1, 7, 12])  # from 8 on MXNet adds gradients in place
def test_gradients_of_a_shared_tensor_add_up(readers, static):
    x = mx.sym.exp(mx.sym.var("x"))
    total = mx.sym.add_n(low(x), *(mx.sym.sin(x * float(i)) for i in range(1, readers + 1)))
    guarded = from_graph(GuardAmpCasts()(to_graph(total)).graph)
    value = np.exp(np.arange(1, 13).reshape(3, 4) / 16)
    expected = value * (1 + sum(i * np.cos(i * value) for i in range(1, readers + 1)))
    np.testing.assert_allclose(gradients(guarded, "write", 1, static=static), expected, rtol=1e-4, atol=1e-4)


def test_variables_whose_gradients_are_written_are_not_guarded():
    """But shared ones are, and those of bodies, whose gradients are added over iterations."""
    graph = from_text(
        """x = null()
        y = null()
        a = amp_cast(x) {dtype: bfloat16}
        b = amp_cast(y) {dtype: bfloat16}
        r = relu(y)
        return a, b, r"""
    )
    found = to_text(GuardAmpCasts(frozenset({"x", "y"}))(graph).graph).splitlines()
    assert "a = amp_cast(x) {dtype: bfloat16}" in found
    assert "b_guard = _copy(y)" in found and "b = amp_cast(b_guard) {dtype: bfloat16}" in found


def test_weights_of_grouped_convolutions_are_guarded_whatever_is_written():
    data = mx.sym.amp_cast(mx.sym.var("data"), dtype=BFLOAT16)
    weights = [mx.sym.var(name) for name in ("plain", "grouped")]
    casts = [mx.sym.amp_cast(weight, dtype=BFLOAT16, name=f"{weight.name}_low") for weight in weights]
    out = [
        mx.sym.Convolution(data, cast, kernel=(3, 3), num_filter=4, num_group=group, no_bias=True)
        for cast, group in zip(casts, (1, 2))
    ]
    found = to_text(GuardAmpCasts(frozenset({"data", "plain", "grouped"}))(to_graph(mx.sym.Group(out))).graph)
    assert "grouped_low_guard = _copy(grouped)" in found and found.count("_copy") == 1
