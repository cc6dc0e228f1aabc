"""Where BatchNorm is folded into the layer before it, what the layer becomes, and under which names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mxmp.graph import in_written_order
from mxmp.passes import FoldBatchNorm
from mxmp.passes.fold import Sources, find_folds
from tests.graph.text import from_text, to_text
from tests.passes.graphs import lines

PARAMS = ("w", "u", "b", "g", "s", "m", "v", "g2", "s2", "m2", "v2")
VARIABLES = "x = null()\n" + "\n".join(f"{name} = null()" for name in PARAMS)
CONV = "c = Convolution(x, w, b) {kernel: (3, 3); num_filter: 8}"
NORM = "n = BatchNorm(c, g, s, m, v) {fix_gamma: False} x3"


def graph_of(text):
    """Return the graph of lines in which all variables are known."""
    return from_text(f"{VARIABLES}\n{text}")


def found(text, facts=None, params=PARAMS):
    return find_folds(graph_of(text), frozenset(params), facts)


def fold(text, facts=None):
    """Return the lines of a graph after folding, without those of variables that it had before."""
    graph = graph_of(text)
    after = FoldBatchNorm(find_folds(graph, frozenset(PARAMS), facts))(graph).graph
    return [line for line in to_text(in_written_order(after)).splitlines() if line not in VARIABLES.splitlines()]


def test_a_convolution_with_a_bias():
    text = f"{CONV}\n{NORM}\na = Activation(n) {{act_type: relu}}\nreturn a"
    assert fold(text) == [
        "c = Convolution(x, w, b) {kernel: (3, 3); no_bias: False; num_filter: 8}",
        "a = Activation(c) {act_type: relu}",
        "return a",
    ]
    (only,) = found(text)
    assert (only.weight, only.bias) == ("w", "b")
    assert only.sources == Sources("w", "b", "g", "s", "m", "v", 1e-3, 8)


def test_a_bias_is_named_after_the_weight():
    text = """x = null()
        stage1_conv_weight = null() {__dtype__: 2; __lr_mult__: 3.0; __ctx_group__: dev1}
        g = null()
        s = null()
        m = null()
        v = null()
        f = FullyConnected(x, stage1_conv_weight) {no_bias: True; num_hidden: 8}
        n = BatchNorm(f, g, s, m, v) x3
        r = relu(n)
        return r"""
    graph = from_text(text)
    folds = find_folds(graph, frozenset(["stage1_conv_weight", "g", "s", "m", "v"]))
    after = in_written_order(FoldBatchNorm(folds)(graph).graph)
    assert to_text(after) == lines(
        """x = null()
        stage1_conv_weight = null() {__ctx_group__: dev1; __dtype__: 2; __lr_mult__: 3.0}
        stage1_conv_bias = null() {__ctx_group__: dev1; __dtype__: 2}
        f = FullyConnected(x, stage1_conv_weight, stage1_conv_bias) {no_bias: False; num_hidden: 8}
        r = relu(f)
        return r"""
    )


@pytest.mark.parametrize("norm", ["BatchNorm", "BatchNorm_v1", "_contrib_SyncBatchNorm", "_contrib_BatchNormWithReLU"])
@pytest.mark.parametrize(
    "layer",
    [
        "Convolution(x, w, b) {kernel: (3, 3); num_filter: 8}",
        "Convolution(x, w, b) {kernel: (3,); num_filter: 8}",
        "Convolution(x, w, b) {kernel: (3, 3, 3); num_filter: 8; num_group: 4}",
        "Convolution_v1(x, w, b) {kernel: (3L, 3L); num_filter: 8}",
        "Deconvolution(x, w) {kernel: (3, 3); num_filter: 8}",
        "Deconvolution(x, w, b) {kernel: (3, 3); no_bias: False; num_filter: 8}",
        "FullyConnected(x, w, b) {num_hidden: 8}",
        "_contrib_DeformableConvolution(x, x, w, b) {kernel: (3, 3); num_filter: 8}",
        "_contrib_ModulatedDeformableConvolution(x, x, x, w) {kernel: (3, 3); no_bias: True; num_filter: 8}",
    ],
)
def test_every_kind_of_layer_and_norm(layer, norm):
    count = 4 if norm.endswith("ReLU") else 3
    text = f"c = {layer}\nn = {norm}(c, g, s, m, v) x{count}\na = exp(n)\nreturn a"
    assert len(found(text)) == 1
    assert not any(norm in line for line in fold(text))


@pytest.mark.parametrize(
    "layer, axes",
    [
        ("Convolution(x, w, b) {kernel: (3, 3); num_filter: 8}", (1, -3)),
        ("Convolution(x, w, b) {kernel: (3, 3); layout: NCHW; num_filter: 8}", (1, -3)),
        ("Convolution(x, w, b) {kernel: (3, 3); layout: None; num_filter: 8}", (1, -3)),
        ("Convolution(x, w, b) {kernel: (3, 3); layout: NHWC; num_filter: 8}", (3, -1)),
        ("Convolution(x, w, b) {kernel: (3,); num_filter: 8}", (1, -2)),
        ("Convolution(x, w, b) {kernel: (3, 3, 3); layout: NDHWC; num_filter: 8}", (4, -1)),
        ("Deconvolution(x, w, b) {kernel: (3, 3); layout: NHWC; no_bias: 0; num_filter: 8}", (3, -1)),
        ("FullyConnected(x, w, b) {num_hidden: 8}", (1, -1)),
        ("FullyConnected(x, w, b) {flatten: False; num_hidden: 8}", (-1,)),
    ],
)
def test_the_axis_has_to_be_that_of_the_channels(layer, axes):
    for axis in range(-3, 5):
        text = f"c = {layer}\nn = BatchNorm(c, g, s, m, v) {{axis: {axis}}} x3\na = relu(n)\nreturn a"
        assert len(found(text)) == (axis in axes), axis


LEFT = {
    "another reads the layer": f"{CONV}\n{NORM}\na = elemwise_add(n, c)\nreturn a",
    "the layer is an output": f"{CONV}\n{NORM}\na = relu(n)\nreturn a, c",
    "two norms read the layer": f"{CONV}\n{NORM}\nk = BatchNorm(c, g2, s2, m2, v2) x3\na = dot(n, k)\nreturn a",
    "its mean is read": f"{CONV}\n{NORM}\na = dot(n, n#1)\nreturn a",
    "its variance is an output": f"{CONV}\n{NORM}\na = relu(n)\nreturn a, n#2",
    "something is between": f"{CONV}\nr = relu(c)\nn = BatchNorm(r, g, s, m, v) x3\nreturn n",
    "a cast is between": f"{CONV}\nr = Cast(c) {{dtype: float16}}\nn = BatchNorm(r, g, s, m, v) x3\nreturn n",
    "a part is between": f"{CONV}\nr = SliceChannel(c) {{num_outputs: 2}} x2\nn = BatchNorm(r, g, s, m, v) x3\nreturn n",
    "it comes before": f"n = BatchNorm(x, g, s, m, v) x3\nr = relu(n)\n{CONV.replace('(x', '(r')}\nreturn c",
    "the weight is computed": f"r = relu(w)\n{CONV.replace('w, b', 'r, b')}\n{NORM}\nreturn n",
    "gamma is computed": f"{CONV}\nr = relu(g)\nn = BatchNorm(c, r, s, m, v) x3\nreturn n",
    "the weight is an input": f"{CONV.replace('w, b', 'x, b')}\n{NORM}\nreturn n",
    "a norm of another kind": f"{CONV}\nn = LayerNorm(c, g, s) x3\nreturn n",
    "no such layer": f"c = dot(x, w)\n{NORM}\nreturn n",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT.keys())
def test_what_cannot_be_folded_is_left(text):
    assert found(text) == ()
    assert not FoldBatchNorm(())(graph_of(text)).modified


def test_a_parameter_of_unknown_value_is_left():
    for name in ("w", "b", "s", "m", "v"):
        assert found(f"{CONV}\n{NORM}\na = relu(n)\nreturn a", params=set(PARAMS) - {name}) == ()


def shared(second="g2, s2, m2, v2", bias=("b", "b")):
    """Return two convolutions with one weight, each with a BatchNorm."""
    return f"""c = Convolution(x, w, {bias[0]}) {{kernel: (3, 3); num_filter: 8}}
        d = Convolution(x, w, {bias[1]}) {{kernel: (3, 3); num_filter: 8}}
        n = BatchNorm(c, g, s, m, v) x3
        k = BatchNorm(d, {second}) x3
        a = elemwise_add(n, k)
        return a"""


def test_layers_that_share_a_weight_get_copies():
    folds = found(shared())
    assert [(each.weight, each.bias) for each in folds] == [("c_weight", "c_bias"), ("d_weight", "d_bias")]
    assert {each.sources.weight for each in folds} == {"w"}
    assert fold(shared()) == [
        "c_weight = null()",
        "c_bias = null()",
        "c = Convolution(x, c_weight, c_bias) {kernel: (3, 3); no_bias: False; num_filter: 8}",
        "d_weight = null()",
        "d_bias = null()",
        "d = Convolution(x, d_weight, d_bias) {kernel: (3, 3); no_bias: False; num_filter: 8}",
        "a = elemwise_add(c, d)",
        "return a",
    ]


@pytest.mark.parametrize(
    "more, output",
    [("e = FullyConnected(x, w) {no_bias: True; num_hidden: 8}", "e"), ("", "w"), ("e = dot(a, b)", "e")],
    ids=["a layer", "an output", "an operator reads the bias"],
)
def test_what_else_reads_a_parameter_reads_the_old_one(more, output):
    text = f"{CONV}\n{NORM}\na = relu(n)\n{more}\nreturn a, {output}"
    (only,) = found(text)
    names = ("w", "c_bias") if "dot" in more else ("c_weight", "b")
    assert (only.weight, only.bias) == names
    assert fold(text)[-1] == f"return a, {output}"
    kept = [line for line in fold(text) if line.startswith("e = ")]
    assert kept == ([more] if more else [])


def test_names_that_are_taken_are_not_given():
    conv = "c = Convolution(x, w) {kernel: (3, 3); no_bias: True; num_filter: 8}"
    graph = graph_of(f"{conv}\n{NORM}\na = relu(n)\nreturn a")
    for taken, name in ((["c_bias"], "c_folded_bias"), (["c_bias", "c_folded_bias"], "c_folded1_bias")):
        assert find_folds(graph, frozenset([*PARAMS, *taken]))[0].bias == name


def test_a_node_that_must_run_after_another_leaves_it():
    graph = graph_of(f"{CONV}\n{NORM}\na = relu(n)\nreturn a")
    (only,) = find_folds(graph, frozenset(PARAMS))
    for before in (only.layer, only.norm):
        nodes = (*graph.nodes[:-1], graph.nodes[-1]._replace(control_deps=(before,)))
        assert find_folds(replace(graph, nodes=nodes), frozenset(PARAMS)) == ()
