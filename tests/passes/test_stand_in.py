"""Products without a float16 kernel, for which another stands in; sums too long for float16, taken in float32."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_symbol, to_graph
from tests.passes.graphs import converted, precisions, step

SHAPES = {2: {"q": (3, 4), "k": (5, 4)}, 3: {"q": (2, 3, 4), "k": (2, 5, 4)}, 4: {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4)}}


def gemms(alpha=0.5, **options):
    q, k = mx.sym.var("q"), mx.sym.var("k")
    with mx.AttrScope(ctx_group="dev1"):
        scores = mx.sym.linalg.gemm2(q, k, transpose_b=True, alpha=alpha, name="scores", **options)
        return mx.sym.linalg.gemm2(mx.sym.softmax(scores, name="soft"), k, name="context")


def matmul():
    data, weight = (mx.sym.var(name).as_np_ndarray() for name in ("data", "weight"))
    return mx.sym.identity(mx.sym.np.matmul(data, weight).as_nd_ndarray(), name="out")


# A network, the shapes of its inputs, and the operators that stand in.
STAND_INS = {
    "matrices": (gemms(), SHAPES[2], ["dot", "softmax", "dot"]),
    "batches": (gemms(), SHAPES[3], ["batch_dot", "softmax", "batch_dot"]),
    "batches with a factor that is not exact": (gemms(0.3), SHAPES[3], ["batch_dot", "softmax", "batch_dot"]),
    "matrices without a factor": (gemms(1.0), SHAPES[2], ["dot", "softmax", "dot"]),
    "numpy's batch of rows": (matmul(), {"data": (3, 700, 5), "weight": (5, 4)}, ["_np_dot", "_copy"]),
    "numpy's matrix": (matmul(), {"data": (2000, 5), "weight": (5, 4)}, ["_np_dot", "_copy"]),
    "numpy's vector on the right": (matmul(), {"data": (2000, 5), "weight": (5,)}, ["_np_dot", "_copy"]),
    "numpy's vector on the left": (matmul(), {"data": (5,), "weight": (5, 2000)}, ["_np_dot", "_copy"]),
}


@pytest.mark.parametrize("net, shapes, operators", STAND_INS.values(), ids=STAND_INS)
def test_a_product_with_a_float16_kernel_stands_in(net, shapes, operators):
    """It computes the same but for rounding, and so do its gradients.

    It stays when the network is converted again. With a factor, which no other operator has, the first one comes back.
    """
    found = converted(net, shapes)
    nodes = [node for node in found.graph.operators() if node.op not in ("Cast", "_mul_scalar")]
    assert [node.op for node in nodes] == operators
    row, *_ = found.report.rows
    assert row.op in ("_linalg_gemm2", "_npi_matmul") and found.symbol.list_outputs() == net.list_outputs()
    assert (row.precision, row.reason) == ("float16", f"allow, as {operators[0]}")
    again = converted(found.symbol, shapes)
    assert again.graph == found.graph and [row.precision for row in again.report.rows] == [
        row.precision for row in found.report.rows
    ]
    erased = [node for node in to_graph(convert_symbol(found.symbol, "O0")).operators() if node.op != "softmax"]
    for node, now in zip((node for node in to_graph(net).operators() if node.op != "softmax"), erased):
        stays = node.op == now.op or node.get("alpha") in (None, "1", "1.0")
        assert stays and (now.name, now.get("alpha") or "1.0") == (node.name, node.get("alpha") or "1.0")
    assert {node.get("__ctx_group__") for node in found.graph.operators()} == {"dev1" if "q" in shapes else None}
    rng = np.random.RandomState(0)
    values = {name: rng.randn(*shape).astype("float16") for name, shape in shapes.items()}
    (exact, *_), gradients = step(net, values)
    (output, *_), found = step(found.on_cpu(), values)
    for one, other in [(exact, output), *((gradients[name], found[name]) for name in shapes)]:
        assert np.abs(other - one).max() < 8 * 2.0**-11 * np.abs(one).max()
    assert (output != exact).any()


def products(length):
    """Return a layer behind the sum of a product and a short one, and the shapes of the inputs."""
    first, second = (mx.sym.batch_dot(mx.sym.var(one), mx.sym.var(other)) for one, other in ("qk", "ab"))
    shapes = {"q": (2, 3, length), "k": (2, length, 3), "a": (2, 3, 8), "b": (2, 8, 3)}
    return mx.sym.FullyConnected(mx.sym.elemwise_add(first, second, name="add"), num_hidden=8), shapes


LONG = {"scores": "float32", "soft": "float32", "context": "float32"}
SHORT = {**LONG, "scores": "float16", "context": "float16"}

# A network, the shapes of its inputs, a policy, and precisions of its operators by name.
PRECISIONS = {
    "gemms of four dimensions": (gemms(), SHAPES[4], "O1", LONG),
    "gemms of four dimensions, all low": (gemms(), SHAPES[4], "O3", {"scores": "float32", "context": "float32"}),
    "gemms in bfloat16": (gemms(), SHAPES[3], "mixed_bfloat16", LONG),
    "an override": (gemms(), SHAPES[3], "O1,op:_linalg_gemm2=float32", LONG),
    "gemms of unknown shapes": (gemms(), {}, "O1", LONG),
    "gemms of other axes": (gemms(axis=-3).get_internals()["scores_output"], {"q": (3, 2, 4), "k": (5, 2, 4)}, "O1", {"scores": "float32"}),
    "a factor beyond float16": (gemms(1e-6), SHAPES[3], "O1", {**SHORT, "scores": "float32"}),
    "an override that asks for it": (gemms(), SHAPES[3], "O1,op:_linalg_gemm2=float16", SHORT),
    "a long matmul of two batches": (
        matmul(), {"data": (2, 3, 1025), "weight": (2, 1025, 3)}, "O1", {"out": "float32"}),
    "a sum behind short products": (*products(8), "O1", {"add": "float16"}),
    "a sum behind a long product": (*products(1025), "O1", {"add": "float32"}),
    "a short matmul": (matmul(), {"data": (20, 5), "weight": (5, 4)}, "O1", {"out": "float16"}),
}  # fmt: skip


@pytest.mark.parametrize("net, shapes, policy, expected", PRECISIONS.values(), ids=PRECISIONS)
def test_what_has_no_kernel_or_sums_too_much_is_float32(net, shapes, policy, expected):
    found = precisions(net, shapes, policy)
    assert {name: found[name] for name in expected} == expected
