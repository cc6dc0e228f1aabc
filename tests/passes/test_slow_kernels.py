"""Operators that run in float32, where the bfloat16 kernel for them is slow."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.devices.amx import AmxStatus
from mxmp.passes.cpu import slow_kernels
from mxmp.symbol import rewrite, to_graph
from tests.passes.graphs import converted

SHAPES = {"data": (2, 3, 8, 8)}


def network():
    """Return a symbol with a relu6 behind each of two convolutions, of which the second is an output."""
    data = mx.sym.var("data")
    for name in ("first", "second"):
        data = mx.sym.Convolution(data, num_filter=16, kernel=(3, 3), pad=(1, 1), name=name)
        data = mx.sym.clip(data, 0, 6, name=f"{name}_clip")
    return data


def around_clips(symbol):
    """Return by clip the dtypes of the casts that it reads and of those that read it."""
    nodes = to_graph(symbol).nodes
    found = {}
    for position, node in enumerate(nodes):
        if node.op == "clip":
            near = [nodes[node.inputs[0].node], *(n for n in nodes if position in [e.node for e in n.inputs])]
            found[node.name] = [each.get("dtype") for each in near if each.op == "amp_cast"]
    return found


@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
def test_a_bfloat16_clip_runs_in_float32(trains):
    model = converted(network(), SHAPES, "mixed_bfloat16")
    assert around_clips(model.symbol)["first_clip"] == []  # it is in bfloat16, between two convolutions
    assert around_clips(model.on_cpu(trains))["first_clip"] == ["float32", "bfloat16"]


def elements(op, **attrs):
    """Return a symbol of such an operator between convolutions, of as many as it has inputs."""
    data = mx.sym.var("data")
    count = 3 if op == "where" else 2 if op in BINARY else 1
    reads = [conv(data, 16, name=f"read{number}") for number in range(count)]
    if op == "where":
        reads[0] = mx.sym.Activation(reads[0], act_type="relu")  # a condition with zeros
    elif op in EQUALITIES:
        reads = [mx.sym.relu(read, name=f"relu{number}") for number, read in enumerate(reads)]  # of which some are equal
    function = getattr(mx.sym, OF_NUMPY.get(op, op), None) or getattr(mx.symbol._internal, OF_NUMPY.get(op, op))
    result = function(*reads, name="by_element", **attrs)
    if op in REDUCTIONS:
        result = mx.sym.broadcast_mul(reads[0], result)
    text = conv(result, 16, (1, 1), name="last").tojson()
    return mx.sym.load_json(text.replace(f'"op": "{OF_NUMPY[op]}"', f'"op": "{op}"') if op in OF_NUMPY else text)


def like(op):
    """Return an operator with the same inputs and attributes as one of numpy's, which has no function for symbols."""
    return {"_np_max": "max", "_np_min": "min"}.get(op, "_maximum_scalar" if op.endswith("_scalar") else "abs")


EQUALITIES = {"_equal", "_not_equal", "_greater_equal", "_lesser_equal"}
BINARY = {"_maximum", "_minimum", "_equal", "_not_equal", "_greater", "_greater_equal", "_lesser", "_lesser_equal"}
REDUCTIONS = dict.fromkeys(("max", "min", "_np_max", "_np_min"), {"axis": "1", "keepdims": True})
ATTRS = {"clip": {"a_min": -0.5, "a_max": 0.5}, **REDUCTIONS}
OPERATORS = sorted(slow_kernels._BY_ELEMENT)
OF_NUMPY = {op: like(op) for op in OPERATORS if op.startswith("_np")}


def attrs_of(op):
    return {"scalar": 0.5} if op.endswith("_scalar") else ATTRS.get(op, {})


@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_by_elements_runs_in_float32_with_one_cast_of_what_it_reads(op):
    model = converted(elements(op, **attrs_of(op)), SHAPES, "mixed_bfloat16")
    nodes = to_graph(model.on_cpu(trains=True)).nodes
    (found,) = [node for node in nodes if node.name == "by_element"]
    low = found.inputs[1:] if op == "where" else found.inputs  # the condition of where stays as it is
    for entry in low:
        source = nodes[entry.node]
        is_cast = (source.op, source.get("dtype")) == ("amp_cast", "float32")
        assert is_cast if op not in EQUALITIES else source.op == "relu"
    (result,) = [node for node in nodes if node.name == "by_element_wide_bfloat16"]
    assert (result.op, result.get("dtype"), nodes[result.inputs[0].node]) == ("amp_cast", "bfloat16", found)


@pytest.mark.parametrize("value, expected", [(0.5, True), (0.3, False)])
def test_a_scalar_that_bfloat16_does_not_have_is_left_to_its_kernel(value, expected):
    """Only where a pure policy runs such an operator in bfloat16 at all."""
    model = converted(elements("_greater_scalar", scalar=value), SHAPES, "bfloat16")
    names = [node.name for node in to_graph(model.on_cpu()).nodes]
    assert ("by_element_wide_bfloat16" in names) == expected


@pytest.mark.bfloat16
@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_by_elements_gives_what_its_bfloat16_kernel_gives(op, monkeypatch):
    """Outputs bit for bit; gradients but for sums, which are rounded elsewhere where operators are in a row."""
    symbol = elements(op, **attrs_of(op))
    model = converted(symbol, SHAPES, "mixed_bfloat16")
    rng = np.random.RandomState(0)
    shapes = dict(zip(symbol.list_arguments(), symbol.infer_shape(**SHAPES)[0]))
    values = {name: mx.nd.array(rng.randn(*shape)) for name, shape in shapes.items()}
    found = []
    for widened in (True, False):
        if not widened:
            monkeypatch.setattr("mxmp.passes.cpu.slow_kernels.WidenSlowKernels.run", lambda self, graph: graph)
        running = model.on_cpu(trains=True)
        gradients = {name: mx.nd.zeros_like(value) for name, value in values.items()}
        executor = running.bind(mx.cpu(), values, gradients)
        outputs = executor.forward(is_train=True)
        executor.backward([mx.nd.ones_like(output) for output in outputs])
        found.append([array.asnumpy() for array in (*outputs, gradients["data"])])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=2**-6 * np.abs(found[1][1]).max())


def test_operators_by_elements_in_a_row_are_cast_once_each_way():
    data = mx.sym.clip(mx.sym.relu(mx.sym.abs(conv(mx.sym.var("data"), 16))), 0, 6)
    model = converted(conv(data, 16), SHAPES, "mixed_bfloat16")
    nodes = to_graph(model.on_cpu(trains=True)).nodes
    casts = [node for node in nodes if node.op == "amp_cast" and "_wide_" in node.name]
    assert sorted(cast.get("dtype") for cast in casts) == ["bfloat16", "float32"]
    assert nodes[casts[1].inputs[0].node].op == "clip"


def test_of_what_mxnet_partitions_only_what_it_cannot_fuse_runs_in_float32():
    data = mx.sym.var("data")
    for op in (mx.sym.relu, mx.sym.abs, lambda data: mx.sym.clip(data, 0, 6)):
        data = op(conv(data, 16, (1, 1)))
    model = converted(conv(data, 16), SHAPES, "mixed_bfloat16")
    names = [node.name for node in to_graph(model.on_cpu(fused=True)).nodes if "_wide_" in node.name]
    assert len(names) == 2 and all(name.startswith("relu") for name in names)


def conv(data, channels, kernel=(3, 3), **attrs):
    return mx.sym.Convolution(data, num_filter=channels, kernel=kernel, no_bias=True, **attrs)


def grouped(data):
    """Return a convolution with groups of four channels, which gives a layout of its own."""
    return conv(conv(data, 128, num_group=1), 128, num_group=32)


THREE = "behind three channels, which no block holds"  # with AMX channels are last there

NETWORKS = {
    "channels in blocks": (lambda data: conv(data, 64), (2, 32, 8, 8), False),
    "channels that fill no block": (lambda data: conv(data, 24), (2, 32, 8, 8), True),
    THREE: (lambda data: conv(data, 64), (2, 3, 8, 8), True),
    "groups of four channels": (grouped, (2, 32, 8, 8), True),
    "volumes": (lambda data: conv(data, 64, (3, 3, 3)), (2, 32, 8, 8, 8), False),  # their layouts are not known
    "volumes of channels that fill no block": (lambda data: conv(data, 24, (3, 3, 3)), (2, 32, 8, 8, 8), True),
    "two dimensions": (lambda data: mx.sym.FullyConnected(data, num_hidden=64), (2, 32), True),
    "the default layout": (lambda data: mx.sym.SwapAxis(conv(data, 64), dim1=2, dim2=3), (2, 32, 8, 8), True),
    "the layout of the first input": (
        lambda data: conv(data, 64) + mx.sym.SwapAxis(conv(data, 64), dim1=2, dim2=3),
        (2, 32, 8, 8),
        False,
    ),
}


def widened(layer, shape, policy="mixed_bfloat16", trains=True, fused=False, **attrs):
    """Return whether the BatchNorm behind a layer runs in float32 between casts."""
    data = mx.sym.BatchNorm(layer(mx.sym.var("data")), name="norm", **attrs)
    last = conv(data, 16, (1,) * (len(shape) - 2)) if len(shape) > 2 else mx.sym.FullyConnected(data, num_hidden=16)
    model = converted(last, {"data": shape}, policy)
    names = [node.name for node in to_graph(model.on_cpu(trains, fused)).nodes]
    return "norm_wide_bfloat16" in names


@pytest.mark.parametrize("amx", [False, True], ids=["without AMX", "AMX"])
@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_norm_runs_in_float32_where_its_data_lie_in_no_blocks(name, trains, amx, monkeypatch):
    monkeypatch.setattr(rewrite, "amx_status", lambda: AmxStatus(amx, "made up"))
    layer, shape, expected = NETWORKS[name]
    assert widened(layer, shape, trains=trains) == (expected and not (amx and name == THREE))


def test_a_batch_norm_of_another_axis_runs_in_float32():
    assert widened(lambda data: conv(data, 64), (2, 32, 8, 8), axis=3)
    assert not widened(lambda data: conv(data, 64), (2, 32, 8, 8), axis=-3)
