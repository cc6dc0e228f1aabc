"""bfloat16 on CPU: operators whose kernel is slow run in float32; layouts of oneDNN that meet in BatchNorm are copied."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.passes.cpu.layouts import BLOCKED, DEFAULT, LAST, OWN, Convolution
from mxmp.passes.cpu.slow_kernels import _BY_ELEMENT
from mxmp.symbol import from_graph, to_graph
from tests.graph.text import from_text
from tests.passes.graphs import converted, on_cpu, step, values_of
from tests.processors import AMD, AMX

SHAPES = {"data": (2, 3, 8, 8)}
DATA = mx.sym.var("data")


def conv(data, channels, kernel=(3, 3), **attrs):
    return mx.sym.Convolution(data, num_filter=channels, kernel=kernel, no_bias=True, **attrs)


def names_of(symbol, part):
    """Return the names of the operators of a symbol that have such a part."""
    return [node.name for node in to_graph(symbol).nodes if part in node.name]


# Operators by element.

OPERATORS = sorted(_BY_ELEMENT)
BINARY = {op for op in OPERATORS if f"{op}_scalar" in OPERATORS}
REDUCTIONS = dict.fromkeys(("max", "min", "_np_max", "_np_min"), "{axis: 1; keepdims: True}")
ATTRS = {"clip": "{a_max: 0.5; a_min: -0.5}", **REDUCTIONS}
HALF = "{scalar: 0.5}"


def elements(op, attrs=None):
    """Return a symbol of such an operator between convolutions, of as many as it has inputs."""
    count = 3 if op == "where" else 2 if op in BINARY else 1
    lines, reads = ["data = null()"], [f"c{i}" for i in range(count)]
    for i in range(count):
        lines += [f"w{i} = null()", f"c{i} = Convolution(data, w{i}) {{kernel: (3, 3); no_bias: True; num_filter: 16}}"]
        if i == 0 and op == "where" or op in BINARY and "equal" in op:  # some zeros, of which some are equal
            lines.append(f"relu{i} = Activation(c{i}) {{act_type: relu}}")
            reads[i] = f"relu{i}"
    attrs = attrs or (HALF if op.endswith("_scalar") else ATTRS.get(op, ""))
    lines += [f"e = {op}({', '.join(reads)}) {attrs}".strip(), "w = null()"]
    lines.append("m = broadcast_mul(c0, e)" if op in REDUCTIONS else "m = identity(e)")
    last = "last = Convolution(m, w) {kernel: (1, 1); no_bias: True; num_filter: 16}\nreturn last"
    return from_graph(from_text("\n".join([*lines, last])))


@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_by_elements_runs_in_float32_with_one_cast_of_what_it_reads(op, trains):
    nodes = to_graph(converted(elements(op), SHAPES, "mixed_bfloat16").on_cpu(trains)).nodes
    (found,) = [node for node in nodes if node.name == "e"]
    sources = [nodes[entry.node] for entry in found.inputs]
    for source in sources[1:] if op == "where" else sources:  # the condition of where stays as it is
        assert (source.op, source.get("dtype")) == ("amp_cast", "float32")
    (result,) = [node for node in nodes if node.name == "e_wide_bfloat16"]
    assert (result.op, result.get("dtype"), nodes[result.inputs[0].node]) == ("amp_cast", "bfloat16", found)


@pytest.mark.parametrize("scalar, expected", [(HALF, True), ("{scalar: 0.3}", False)])
def test_a_scalar_that_bfloat16_does_not_have_is_left_to_its_kernel(scalar, expected):
    """Only where a pure policy runs such an operator in bfloat16 at all."""
    model = converted(elements("_greater_scalar", scalar), SHAPES, "bfloat16")
    assert bool(names_of(model.on_cpu(), "e_wide_bfloat16")) == expected


@pytest.mark.bfloat16
@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_by_elements_gives_what_its_bfloat16_kernel_gives(op):
    """Outputs bit for bit; gradients but for sums, which are rounded elsewhere where operators are in a row."""
    model = converted(elements(op), SHAPES, "mixed_bfloat16")
    values = values_of(model.symbol, SHAPES)
    (plain,), expected = step(model.symbol, values)  # without the passes for a CPU
    (output,), gradients = step(model.on_cpu(trains=True, watched=True), values)  # without channels of zeros
    np.testing.assert_array_equal(output, plain)
    bound = 2**-6 * np.abs(expected["data"]).max()
    np.testing.assert_allclose(gradients["data"], expected["data"], rtol=0, atol=bound)


def test_operators_by_elements_in_a_row_are_cast_once_each_way():
    data = mx.sym.clip(mx.sym.relu(mx.sym.abs(conv(DATA, 16))), 0, 6)
    nodes = to_graph(converted(conv(data, 16), SHAPES, "mixed_bfloat16").on_cpu(trains=True)).nodes
    casts = [node for node in nodes if node.op == "amp_cast" and "_wide_" in node.name]
    assert [cast.get("dtype") for cast in casts] == ["float32", "bfloat16"]
    assert nodes[casts[1].inputs[0].node].op == "clip"


def test_of_what_mxnet_partitions_only_what_it_cannot_fuse_runs_in_float32():
    data = DATA
    for op in (mx.sym.relu, mx.sym.abs, lambda data: mx.sym.clip(data, 0, 6)):
        data = op(conv(data, 16, (1, 1)))
    names = names_of(converted(conv(data, 16), SHAPES, "mixed_bfloat16").on_cpu(fused=True), "_wide_")
    assert len(names) == 2 and all(name.startswith("relu") for name in names)


# BatchNorm.

# A layer, the shape of its data, options of BatchNorm, and whether that runs in float32.
NETWORKS = {
    "channels in blocks": (lambda data: conv(data, 64), (2, 32, 8, 8), {}, False),
    "channels that fill no block": (lambda data: conv(data, 24), (2, 32, 8, 8), {}, True),
    "behind three channels, which get a fourth": (lambda data: conv(data, 64), (2, 3, 8, 8), {}, False),
    "groups of four channels, which give a layout of its own": (
        lambda data: conv(conv(data, 128), 128, num_group=32), (2, 32, 8, 8), {}, True),
    "volumes": (lambda data: conv(data, 64, (3, 3, 3)), (2, 32, 8, 8, 8), {}, False),  # their layouts are not known
    "volumes of channels that fill no block": (lambda data: conv(data, 24, (3, 3, 3)), (2, 32, 8, 8, 8), {}, True),
    "two dimensions": (lambda data: mx.sym.FullyConnected(data, num_hidden=64), (2, 32), {}, True),
    "the default layout": (lambda data: mx.sym.SwapAxis(conv(data, 64), dim1=2, dim2=3), (2, 32, 8, 8), {}, True),
    "the layout of the first input": (
        lambda data: conv(data, 64) + mx.sym.SwapAxis(conv(data, 64), dim1=2, dim2=3), (2, 32, 8, 8), {}, False),
    "another axis": (lambda data: conv(data, 64), (2, 32, 8, 8), {"axis": 3}, True),
    "the axis of channels from behind": (lambda data: conv(data, 64), (2, 32, 8, 8), {"axis": -3}, False),
}  # fmt: skip


@pytest.mark.parametrize("kind", [AMD, AMX], ids=["without AMX", "AMX"])
@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_norm_runs_in_float32_where_its_data_lie_in_no_blocks(name, trains, kind, on_processor):
    on_processor(kind)
    layer, shape, attrs, expected = NETWORKS[name]
    norm = mx.sym.BatchNorm(layer(DATA), name="norm", **attrs)
    last = conv(norm, 16, (1,) * (len(shape) - 2)) if len(shape) > 2 else mx.sym.FullyConnected(norm, num_hidden=16)
    found = names_of(converted(last, {"data": shape}, "mixed_bfloat16").on_cpu(trains), "norm_wide_bfloat16")
    assert bool(found) == expected


# What oneDNN 2.4.4 gave as (output, gradient) with AMX, and without: DNNL_VERBOSE=1 of a forward and a backward pass.
RECORDED = {
    "3 to 16, 3x3": (Convolution(3, 16), (LAST, DEFAULT), (DEFAULT, DEFAULT)),
    "3 to 16, 1x1": (Convolution(3, 16, pointwise=True), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "8 to 16, 1x1": (Convolution(8, 16, pointwise=True), (BLOCKED, DEFAULT), (BLOCKED, DEFAULT)),
    "8 to 24, 3x3": (Convolution(8, 24), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "16 to 16, 3x3": (Convolution(16, 16), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "16 to 32, 3x3": (Convolution(16, 32), (LAST, LAST), (BLOCKED, BLOCKED)),
    "16 to 32, 1x1": (Convolution(16, 32, pointwise=True), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "16 to 32, 3x3, dilated": (Convolution(16, 32, dilated=True), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "24 to 32, 3x3": (Convolution(24, 32), (LAST, DEFAULT), (DEFAULT, DEFAULT)),
    "24 to 32, 1x1": (Convolution(24, 32, pointwise=True), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "32 to 48, 3x3": (Convolution(32, 48), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "48 to 64, 3x3": (Convolution(48, 64), (BLOCKED, LAST), (BLOCKED, BLOCKED)),
    "64 to 64, 1x1": (Convolution(64, 64, pointwise=True), (LAST, LAST), (BLOCKED, BLOCKED)),
    "depthwise, 32": (Convolution(1, 1, 32), (BLOCKED, BLOCKED), (BLOCKED, BLOCKED)),
    "depthwise, 24": (Convolution(1, 1, 24), (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)),
    "32 groups of 4": (Convolution(4, 4, 32), (OWN, OWN), (OWN, OWN)),
    "64 groups, 8 to 16": (Convolution(8, 16, 64), (OWN, OWN), (OWN, OWN)),
    "32 groups of 16": (Convolution(16, 16, 32), (LAST, BLOCKED), (BLOCKED, BLOCKED)),
    "32 groups of 32": (Convolution(32, 32, 32), (LAST, LAST), (BLOCKED, BLOCKED)),
}


@pytest.mark.parametrize("convolution, with_amx, without", RECORDED.values(), ids=RECORDED)
def test_a_convolution_chooses_the_layouts_that_were_recorded(convolution, with_amx, without):
    assert (convolution.output(amx=True), convolution.gradient(amx=True)) == with_amx
    assert (convolution.output(amx=False), convolution.gradient(amx=False)) == without


def chain(*layers, behind=lambda data: data):
    """Return a network of blocks of (channels, kernel, groups), a function, and a convolution of 64 channels."""
    with mx.name.NameManager():
        data = DATA
        for channels, kernel, groups in layers:
            data = conv(data, channels, (kernel,) * 2, pad=(kernel // 2,) * 2, num_group=groups)
            data = mx.sym.Activation(mx.sym.BatchNorm(data), act_type="relu")
        return conv(behind(data), 64, pad=(1, 1))


def norm_behind_relu(data):
    """Return a BatchNorm behind a relu that runs in float32 between casts, which hides no layout."""
    return mx.sym.BatchNorm(conv(mx.sym.relu(conv(data, 64)), 32, (1, 1)))


POOL = {"pool_type": "avg", "global_pool": True, "kernel": (1, 1)}


@pytest.mark.parametrize(
    "net, kind, expected",
    [
        (chain((32, 3, 1), (32, 3, 1)), AMX, []),  # channels last throughout
        (chain((32, 3, 1), (32, 3, 1)), AMD, []),  # blocks throughout
        (chain((16, 3, 1), (16, 3, 1)), AMX, ["batchnorm0_output"]),  # given channels last, its gradient in blocks
        (chain((32, 3, 32), (32, 1, 1)), AMX, ["batchnorm0_output"]),  # from depthwise blocks to channels last
        (chain((32, 1, 1), (32, 3, 32)), AMX, ["batchnorm0_output", "batchnorm1_output"]),
        (chain((32, 1, 1), (32, 3, 32)), AMD, []),
        (chain((24, 3, 1), (24, 3, 1)), AMX, []),  # the default layout meets any other
        (chain((128, 3, 1), (128, 3, 32), (64, 3, 1)), AMX, ["batchnorm0_output"]),
        (chain(behind=norm_behind_relu), AMD, []),  # blocks throughout
        # Pooling of whole images reads the default layout.
        (chain((64, 3, 1), behind=lambda data: mx.sym.Pooling(data, **POOL)), AMX, ["pooling0_input"]),
        (chain((64, 3, 1), behind=lambda x: mx.sym.Pooling(x, kernel=(8, 8), pool_type="avg")), AMX, ["pooling0_input"]),
    ],
)
def test_copies_come_where_layouts_differ(net, kind, expected, on_processor):
    on_processor(kind)
    found = names_of(on_cpu(net, {"data": (2, 32, 8, 8)}, watched=True), "_layout_")  # in which no layer is regrouped
    assert [name.partition("_layout_")[0] for name in found] == [name for name in expected for _ in range(2)]  # two casts


def test_only_what_trains_and_is_known_gets_copies(on_processor):
    net, shapes = chain((32, 3, 32), (32, 1, 1)), {"data": (2, 32, 8, 8)}
    on_processor(AMX)
    found = []
    for policy, known in (("mixed_bfloat16", shapes), ("mixed_bfloat16,op:BatchNorm=float32", shapes), ("mixed_bfloat16", {})):
        found += [bool(names_of(converted(net, known, policy).on_cpu(trains), "_layout_")) for trains in (True, False)]
    assert found == [True, False, False, False, False, False]
