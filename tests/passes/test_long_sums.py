"""Sums that are too long for float16 are taken in float32, and nothing else changes for it."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.passes import EraseCasts
from mxmp.symbol import to_graph
from tests.passes.graphs import converted, precisions


def biased():
    """A bias added by broadcasting between two layers, with a residual connection behind it."""
    data = mx.sym.var("data")
    a = mx.sym.FullyConnected(data, num_hidden=64, no_bias=True, name="a")
    add = mx.sym.broadcast_add(a, mx.sym.var("bias", shape=(1, 64)), name="add")
    sigmoid = mx.sym.sigmoid(mx.sym.elemwise_add(add, a, name="sum"), name="sigmoid")
    return mx.sym.FullyConnected(sigmoid, num_hidden=8, name="c")


@pytest.mark.parametrize("rows, precision", [(4096, "float16"), (32768, "float32")])
def test_a_bias_over_many_rows_is_added_in_float32(rows, precision):
    found = precisions(biased(), {"data": (rows, 64)})
    assert found["add"] == precision
    assert found["a"] == found["c"] == "float16"


def test_a_taint_passes_through_such_a_broadcast():
    x = mx.sym.var("x")
    copies = mx.sym.broadcast_to(mx.sym.exp(mx.sym.slice_axis(x, axis=0, begin=0, end=1)), shape=(5000, 64), name="to")
    first = mx.sym.FullyConnected(x, num_hidden=64, no_bias=True)
    net = mx.sym.FullyConnected(mx.sym.elemwise_mul(first, copies, name="mul"), num_hidden=8)
    assert precisions(net, {"x": (5000, 64)})["to"] == "float32"
    assert precisions(net, {"x": (5000, 64)})["mul"] == "float32"


def attention(length, heads=2, size=64):
    q, k, v = (mx.sym.var(name) for name in "qkv")
    scores = mx.sym.batch_dot(q, k, transpose_b=True, name="scores")
    net = mx.sym.batch_dot(mx.sym.softmax(scores, name="soft"), v, name="context")
    return net, dict.fromkeys("qkv", (heads, length, size))


@pytest.mark.parametrize("length, precision", [(512, "float16"), (1024, "float16"), (1025, "float32")])
def test_attention_over_many_positions_is_float32(length, precision):
    found = precisions(*attention(length))
    assert found == {"scores": precision, "soft": "float32", "context": precision}


def test_the_products_of_unknown_length_are_float32():
    assert set(precisions(attention(8)[0], {}).values()) == {"float32"}


def matmul():
    data, weight = (mx.sym.var(name).as_np_ndarray() for name in ("data", "weight"))
    return mx.sym.identity(mx.sym.np.matmul(data, weight).as_nd_ndarray(), name="out")


SHAPES = {
    "a batch of rows": ((3, 700, 5), (5, 4)),
    "a matrix": ((2000, 5), (5, 4)),
    "a vector on the right": ((2000, 5), (5,)),
    "a vector on the left": ((5,), (5, 2000)),
}


@pytest.mark.parametrize("left, right", SHAPES.values(), ids=SHAPES.keys())
def test_numpys_dot_stands_in_for_a_long_matmul(left, right):
    net, shapes = matmul(), {"data": left, "weight": right}
    found = converted(net, shapes)
    assert [node.op for node in found.graph.operators() if node.op != "Cast"] == ["_np_dot", "_copy"]
    row = found.report.rows[0]
    assert (row.op, row.precision, row.reason) == ("_npi_matmul", "float16", "allow, as _np_dot")
    assert EraseCasts()(found.graph).graph == to_graph(net)
    rng = np.random.RandomState(0)
    results = []
    for symbol in (net, found.on_cpu()):
        values = {name: mx.nd.array(rng.randn(*shape) if symbol is net else results[0][name])
                  for name, shape in shapes.items()}  # fmt: skip
        grads = {name: mx.nd.zeros(shape) for name, shape in shapes.items()}
        executor = symbol.bind(mx.cpu(), values, grads)
        (output,) = executor.forward(is_train=True)
        executor.backward(mx.nd.ones(output.shape))
        results.append({name: value.asnumpy() for name, value in values.items()})
        results[-1].update({f"grad_{name}": grad.asnumpy() for name, grad in grads.items()}, output=output.asnumpy())
    for name, exact in results[0].items():
        assert np.abs(results[1][name] - exact).max() < 8 * 2.0**-11 * np.abs(exact).max()


def test_a_long_matmul_of_two_batches_is_float32():
    assert set(precisions(matmul(), {"data": (2, 3, 1025), "weight": (2, 1025, 3)}).values()) == {"float32"}


def test_a_short_matmul_is_itself():
    found = converted(matmul(), {"data": (20, 5), "weight": (5, 4)})
    assert "_npi_matmul" in [node.op for node in found.graph.operators()]


@pytest.mark.parametrize("tokens, reason", [(1024, "clear"), (1025, "its gradient sums up to 1025 terms in float16")])
def test_rows_that_many_tokens_read_have_a_float32_gradient(tokens, reason):
    net = mx.sym.Embedding(mx.sym.var("tokens"), mx.sym.var("table"), input_dim=2, output_dim=64, name="rows")
    found = converted(mx.sym.FullyConnected(net, num_hidden=8, flatten=False), {"tokens": (tokens,)})
    assert next(row.reason for row in found.report.rows if row.name == "rows").startswith(reason)
