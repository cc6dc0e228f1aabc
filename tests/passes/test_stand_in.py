"""linalg_gemm2 has no float16 kernel: a product that has one stands in for it."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.passes import EraseCasts
from mxmp.symbol import to_graph
from tests.passes.graphs import converted

SHAPES = {2: {"q": (3, 4), "k": (5, 4)}, 3: {"q": (2, 3, 4), "k": (2, 5, 4)}, 4: {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4)}}


def attention(alpha=0.5):
    q, k = mx.sym.var("q"), mx.sym.var("k")
    scores = mx.sym.linalg.gemm2(q, k, transpose_b=True, alpha=alpha, name="scores")
    return mx.sym.linalg.gemm2(mx.sym.softmax(scores, name="soft"), k, name="context")


def convert(net, ndim=3, policy="O1", shapes=None):
    shapes = SHAPES[ndim] if shapes is None else shapes
    return converted(net, shapes, policy)


def precisions(found):
    return {row.name: row.precision for row in found.report.rows}


@pytest.mark.parametrize("ndim, op", [(2, "dot"), (3, "batch_dot")])
def test_a_product_with_a_float16_kernel_stands_in(ndim, op):
    net = attention()
    found = convert(net, ndim)
    assert precisions(found) == {"scores": "float16", "soft": "float32", "context": "float16"}
    assert [node.op for node in found.graph.operators() if "dot" in node.op or "gemm" in node.op] == [op, op]
    assert found.symbol.list_outputs() == ["context_output"]
    assert {row.op for row in found.report.rows} == {"_linalg_gemm2", "softmax"}
    assert [row.reason for row in found.report.rows if row.name == "scores"] == [f"allow, as {op}"]


@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_it_computes_the_same_but_for_rounding_and_so_do_its_gradients(ndim, alpha):
    net, rng = attention(alpha), np.random.RandomState(0)
    arrays = {name: rng.randn(*shape) for name, shape in SHAPES[ndim].items()}
    results = []
    for symbol in (net, convert(net, ndim).on_cpu()):
        values = {name: mx.nd.array(array) for name, array in arrays.items()}
        grads = {name: mx.nd.zeros(array.shape) for name, array in arrays.items()}
        executor = symbol.bind(mx.cpu(), values, grads)
        (output,) = executor.forward(is_train=True)
        executor.backward(mx.nd.ones(output.shape))
        results.append([output.asnumpy(), *(grad.asnumpy() for grad in grads.values())])
    for exact, result in zip(*results):
        assert 0 < np.abs(result - exact).max() < 8 * 2.0**-11 * np.abs(exact).max()


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_erasing_gives_the_original_and_converting_again_the_same(alpha):
    with mx.AttrScope(ctx_group="dev1"):
        net = attention(alpha)
    found = convert(net)
    assert EraseCasts()(found.graph).graph == to_graph(net)
    assert convert(found.symbol).graph == found.graph
    assert {node.get("__ctx_group__") for node in found.graph.operators()} == {"dev1"}


def test_mxnet_has_no_float16_kernel_of_its_own():
    """Should it get one, the stand-in can go."""
    x = mx.nd.ones((2, 2), dtype="float16")
    with pytest.raises(mx.MXNetError):
        mx.nd.linalg.gemm2(x, x).asnumpy()


OTHERS = {
    "four dimensions": (attention(), SHAPES[4], "O1", {"float32"}),
    "four dimensions, all low": (attention(), SHAPES[4], "O3", {"float32"}),
    "bfloat16": (attention(), SHAPES[3], "mixed_bfloat16", {"float32"}),
    "an override": (attention(), SHAPES[3], "O1,op:_linalg_gemm2=float32", {"float32"}),
    "unknown shapes": (attention(), {}, "O1", {"float32"}),
    "other axes": (
        mx.sym.linalg.gemm2(mx.sym.var("q"), mx.sym.var("k"), transpose_b=True, axis=-3, name="scores"),
        {"q": (3, 2, 4), "k": (5, 2, 4)}, "O1", {"float32"}),
    "a factor beyond float16": (attention(alpha=1e-6), SHAPES[3], "O1", {"float32", "float16"}),
    "an override that asks for it": (attention(), SHAPES[3], "O1,op:_linalg_gemm2=float16", {"float16"}),
}  # fmt: skip


@pytest.mark.parametrize("net, shapes, policy, expected", OTHERS.values(), ids=OTHERS)
def test_where_nothing_can_stand_in_it_stays_float32(net, shapes, policy, expected):
    found = precisions(converted(net, shapes, policy))
    assert {found["scores"], found.get("context", found["scores"])} == expected
