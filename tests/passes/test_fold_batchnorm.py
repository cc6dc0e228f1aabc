"""Where BatchNorm is folded into the layer before it, what the layer becomes, and under which names."""

from dataclasses import replace

import pytest

from mxmp.graph import in_written_order
from mxmp.passes import FoldBatchNorm
from mxmp.passes.fold import Sources, Statistics, find_folds
from tests.graph.text import from_text, to_text

PARAMS = ("w", "u", "b", "g", "s", "m", "v", "g2", "s2", "m2", "v2")
VARIABLES = "x = null()\n" + "\n".join(f"{name} = null()" for name in PARAMS)
CONV = "c = Convolution(x, w, b) {kernel: (3, 3); num_filter: 8}"
NORM = "n = BatchNorm(c, g, s, m, v) {fix_gamma: False} x3"
BEHIND = f"{CONV}\n{NORM}\na = relu(n)\n"


def fold(text):
    """Return the folds of a graph, and its lines after them without those of variables that it had before."""
    graph = from_text(f"{VARIABLES}\n{text}")
    folds = find_folds(graph, frozenset(node.name for node in graph.nodes if node.is_variable) - {"x"})
    after = to_text(in_written_order(FoldBatchNorm(folds)(graph).graph)).splitlines()
    return folds, [line for line in after if line not in VARIABLES.splitlines()]


SHARED = """d = Convolution(x, w, b) {kernel: (3, 3); num_filter: 8}
    n = BatchNorm(c, g, s, m, v) x3
    k = BatchNorm(d, g2, s2, m2, v2) x3
    a = elemwise_add(n, k)
    return a"""
NAMED = """stage1_conv_weight = null() {__dtype__: 2; __lr_mult__: 3.0; __ctx_group__: dev1}
    f = FullyConnected(x, stage1_conv_weight) {no_bias: True; num_hidden: 8}
    n = BatchNorm(f, g, s, m, v) x3
    r = relu(n)
    return r"""
FOLDED = "c = Convolution(x, {}, {}) {{kernel: (3, 3); no_bias: False; num_filter: 8}}"
MODULATED = "_contrib_ModulatedDeformableConvolution({}) {{kernel: (3, 3); no_bias: {}; num_filter: 8}}"
DENSE = "e = FullyConnected(x, w) {no_bias: True; num_hidden: 8}"

# A graph, the names of the new weights and biases, and the lines of the graph after it.
WHOLE = {
    "a convolution with a bias": (
        BEHIND + "return a", [("w", "b")], [FOLDED.format("w", "b"), "a = relu(c)", "return a"]),
    "a bias is named after the weight": (NAMED, [("stage1_conv_weight", "stage1_conv_bias")], [
        "stage1_conv_weight = null() {__ctx_group__: dev1; __dtype__: 2; __lr_mult__: 3.0}",
        "stage1_conv_bias = null() {__ctx_group__: dev1; __dtype__: 2}",
        "f = FullyConnected(x, stage1_conv_weight, stage1_conv_bias) {no_bias: False; num_hidden: 8}",
        "r = relu(f)",
        "return r"]),
    "layers that share a weight get copies": (
        f"{CONV}\n{SHARED}", [("c_weight", "c_bias"), ("d_weight", "d_bias")], [
        "c_weight = null()", "c_bias = null()", FOLDED.format("c_weight", "c_bias"),
        "d_weight = null()", "d_bias = null()", FOLDED.replace("c =", "d =").format("d_weight", "d_bias"),
        "a = elemwise_add(c, d)", "return a"]),
    "a layer reads the weight too": (f"{BEHIND}{DENSE}\nreturn a, e", [("c_weight", "b")], [
        "c_weight = null()", FOLDED.format("c_weight", "b"), "a = relu(c)", DENSE, "return a, e"]),
    "the weight is an output": (BEHIND + "return a, w", [("c_weight", "b")], [
        "c_weight = null()", FOLDED.format("c_weight", "b"), "a = relu(c)", "return a, w"]),
    "an operator reads the bias too": (BEHIND + "e = dot(a, b)\nreturn a, e", [("w", "c_bias")], [
        "c_bias = null()", FOLDED.format("w", "c_bias"), "a = relu(c)", "e = dot(a, b)", "return a, e"]),
    "a modulated deformable convolution": (
        BEHIND.replace(CONV, f"c = {MODULATED.format('x, x, x, w', True)}") + "return a", [("w", "c_bias")], [
        "c_bias = null()", f"c = {MODULATED.format('x, x, x, w, c_bias', False)}", "a = relu(c)", "return a"]),
    "names that are taken are not given": (
        f"{BEHIND.replace('w, b)', 'w)').replace('{k', '{no_bias: True; k')}c_bias = null()\nc_folded_bias = null()\n"
        "e = dot(a, c_bias)\nreturn e", [("w", "c_folded1_bias")], [
        "c_folded1_bias = null()", FOLDED.format("w", "c_folded1_bias"), "a = relu(c)", "c_bias = null()",
        "e = dot(a, c_bias)", "return e"]),
}  # fmt: skip


@pytest.mark.parametrize("text, names, after", WHOLE.values(), ids=WHOLE)
def test_a_batch_norm_is_folded(text, names, after):
    folds, found = fold(text)
    assert [(each.weight, each.bias) for each in folds] == names
    assert found == after
    if names == [("w", "b")]:
        assert folds[0].sources == Sources("w", "b", Statistics("g", "s", "m", "v", 1e-3), 8)


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
        folds, _ = fold(f"c = {layer}\nn = BatchNorm(c, g, s, m, v) {{axis: {axis}}} x3\na = relu(n)\nreturn a")
        assert len(folds) == (axis in axes), axis


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


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_cannot_be_folded_is_left(text):
    assert fold(text)[0] == ()


def test_a_parameter_of_unknown_value_and_a_node_that_must_run_after_another_leave_it():
    graph = from_text(f"{VARIABLES}\n{BEHIND}return a")
    (only,) = find_folds(graph, frozenset(PARAMS))
    for name in only.sources.params:
        assert find_folds(graph, frozenset(PARAMS) - {name}) == ()
    for before in (only.layer, only.norm):
        nodes = (*graph.nodes[:-1], graph.nodes[-1]._replace(control_deps=(before,)))
        assert find_folds(replace(graph, nodes=nodes), frozenset(PARAMS)) == ()
