"""Layers with sizes that are no multiples of 8, against sizes counted by hand."""

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.diagnose.tensor_cores import uneven_layers
from mxmp.symbol import convert_graph
from tests.symbol.test_control_flow import SHAPES as LOOP_SHAPES
from tests.symbol.test_control_flow import foreach

X = mx.sym.var("x")
Y = mx.sym.var("y")


def uneven(symbol, layers=None, **shapes):
    found = convert_graph(symbol, Policy(), shapes)
    every = {(node.name, node.op) for node in found.graph.operators()}
    return uneven_layers(found.graph, found.facts, every if layers is None else layers)


def sizes(symbol, **shapes):
    (layer,) = uneven(symbol, **shapes) or [None]
    return {} if layer is None else dict(layer.sizes)


def conv(op=mx.sym.Convolution, kernel=(3, 3), **attrs):
    return op(X, kernel=kernel, name="layer", no_bias=True, **attrs)


@pytest.mark.parametrize(
    ("symbol", "shapes", "expected"),
    [
        (conv(num_filter=64), {"x": (32, 3, 16, 16)}, {"in": 3}),
        (conv(num_filter=20), {"x": (5, 16, 8, 8)}, {"batch": 5, "out": 20}),
        (conv(num_filter=64), {"x": (32, 8, 7, 7)}, {}),
        (conv(num_filter=12, layout="NHWC"), {"x": (8, 9, 9, 7)}, {"in": 7, "out": 12}),
        (conv(num_filter=24, num_group=2), {"x": (8, 16, 9, 9)}, {"out per group": 12}),
        (conv(num_filter=32, num_group=32), {"x": (8, 32, 9, 9)}, {"in per group": 1, "out per group": 1}),
        (conv(kernel=(3,), num_filter=9), {"x": (8, 8, 9)}, {"out": 9}),
        (conv(mx.sym.Deconvolution, num_filter=6), {"x": (8, 10, 9, 9)}, {"in": 10, "out": 6}),
        (
            conv(mx.sym.Deconvolution, num_filter=16, num_group=4),
            {"x": (8, 16, 9, 9)},
            {"in per group": 4, "out per group": 4},
        ),
    ],
)
def test_convolutions(symbol, shapes, expected):
    assert sizes(symbol, **shapes) == expected


def fc(**attrs):
    return mx.sym.FullyConnected(X, name="layer", **attrs)


def heads(name, *inputs):
    return getattr(mx.sym.contrib, f"interleaved_matmul_{name}")(*inputs, heads=3)


@pytest.mark.parametrize(
    ("symbol", "shapes", "expected"),
    [
        (fc(num_hidden=10), {"x": (64, 3, 5)}, {"in": 15, "out": 10}),
        (fc(num_hidden=16), {"x": (63, 16)}, {"batch": 63}),
        (fc(num_hidden=16, flatten=False), {"x": (4, 2, 20)}, {"in": 20}),  # 8 rows
        (fc(num_hidden=16, flatten=False), {"x": (4, 3, 24)}, {"batch": 12}),
        (mx.sym.dot(X, Y), {"x": (8, 9), "y": (9, 16)}, {"inner": 9}),
        (mx.sym.dot(X, Y, transpose_a=True), {"x": (8, 9), "y": (8, 16)}, {"rows": 9}),
        (mx.sym.dot(X, Y), {"x": (4, 6, 9), "y": (9, 16)}, {}),
        (mx.sym.batch_dot(X, Y, transpose_b=True), {"x": (3, 8, 16), "y": (3, 7, 16)}, {"columns": 7}),
        (mx.sym.linalg.gemm2(X, Y, transpose_a=True), {"x": (5, 8), "y": (5, 6)}, {"inner": 5, "columns": 6}),
        (heads("selfatt_qk", X), {"x": (10, 2, 3 * 3 * 16)}, {"length": 10}),
        (heads("selfatt_valatt", X, Y), {"x": (16, 2, 3 * 3 * 5), "y": (6, 16, 16)}, {"head": 5}),
        (heads("encdec_qk", X, Y), {"x": (9, 2, 3 * 8), "y": (11, 2, 3 * 2 * 8)}, {"length": 9, "key length": 11}),
        (mx.sym.np.matmul(X.as_np_ndarray(), Y.as_np_ndarray()), {"x": (2, 8, 9), "y": (2, 9, 12)}, {"inner": 9, "columns": 12}),
        (  # which has no tensor cores to fill
            mx.sym.RNN(X, *map(mx.sym.var, ("parameters", "state", "cell")), mode="lstm", state_size=20, num_layers=1, name="layer"),
            {"x": (7, 6, 9)}, {},
        ),
        (heads("encdec_valatt", X, Y), {"x": (8, 2, 3 * 2 * 4), "y": (6, 9, 8)}, {"length": 9, "head": 4}),
    ],
)  # fmt: skip
def test_products(symbol, shapes, expected):
    assert sizes(symbol, **shapes) == expected


def test_without_shapes_the_attributes_tell_what_they_can_and_other_layers_are_not_named():
    net = mx.sym.FullyConnected(conv(num_filter=20), num_hidden=10, name="fc")
    assert [(layer.name, dict(layer.sizes)) for layer in uneven(net)] == [("layer", {"out": 20}), ("fc", {"out": 10})]
    assert [layer.name for layer in uneven(net, {("fc", "FullyConnected")}, x=(3, 3, 9, 9))] == ["fc"]


@pytest.mark.parametrize(
    ("symbol", "shape", "padded"),
    [
        (conv(num_filter=8), (8, 3, 9, 9), True),
        (conv(num_filter=8, layout="NHWC"), (8, 9, 9, 3), False),
        (conv(num_filter=8, num_group=8), (8, 8, 9, 9), False),
        (conv(num_filter=8), (4, 8, 9, 9), False),
        (fc(num_hidden=3), (8, 8), False),
    ],
    ids=["NCHW", "NHWC", "groups", "batch alone", "linear"],
)
def test_cudnn_pads_the_channels_of_convolutions_in_nchw(symbol, shape, padded):
    (layer,) = uneven(symbol, x=shape)
    assert layer.padded is padded


def test_bodies_of_loops_are_looked_into():
    loop = foreach()
    found = uneven(loop, **{name: LOOP_SHAPES[name] for name in loop.list_inputs() if name in LOOP_SHAPES})
    inner = {"batch": 2, "in": 4, "out": 4}
    assert [dict(layer.sizes) for layer in found if layer.name in ("i2h", "h2h")] == [inner, inner]


def test_a_layer_whose_sizes_are_all_multiples_of_8_is_not_named():
    assert uneven(fc(num_hidden=16), x=(64, 24)) == uneven(conv(num_filter=16), x=(8, 8, 9, 9)) == ()
