"""Insertion, text in and text out."""

import pytest

from mxmp import Policy
from mxmp.passes import InsertCasts
from tests.graph.text import to_text
from tests.passes.graphs import with_facts


def insert(text, policy="O1", **known):
    graph, facts = with_facts(text, **known)
    return to_text(InsertCasts(Policy.parse(policy), facts)(graph).graph)


# A graph, a policy, and the graph with its casts.
WHOLE = {
    "one operator gets two casts": (
        "x = null()\ny = relu(x)\nd = dot(y, y)\nreturn d", "O1",
        """x = null()
        y = relu(x)
        y_output_cast_float16 = Cast(y) {__mxmp__: cast; dtype: float16}
        d_float16 = dot(y_output_cast_float16, y_output_cast_float16)
        d = Cast(d_float16) {__mxmp__: output; dtype: float32}
        return d"""),
    "bfloat16 is cast by amp_cast": (
        "x = null()\nf = FullyConnected(x, x)\nreturn f", "mixed_bfloat16",
        """x = null() {__dtype__: 0; __mxmp_dtype__: }
        x_cast_bfloat16 = amp_cast(x) {__mxmp__: cast; dtype: bfloat16}
        f_bfloat16 = FullyConnected(x_cast_bfloat16, x_cast_bfloat16)
        f = amp_cast(f_bfloat16) {__mxmp__: output; dtype: float32}
        return f"""),
}  # fmt: skip


@pytest.mark.parametrize("text, policy, after", WHOLE.values(), ids=WHOLE)
def test_a_graph_gets_its_casts(text, policy, after):
    assert insert(text, policy) == after.replace("        ", "")


OWN = "x = null()\nmine = {}(x) {{dtype: {}}}\nf = FullyConnected(x, x)\nreturn mine, f"

# A graph, a policy, facts, parts of the graph with its casts, and what is no part of it.
PARTS = {
    "parameters are stored low only where all readers are": (
        "x = null()\nw = null() {__dtype__: 0}\ntied = null() {__dtype__: 0}\nd = dot(x, w)\ne = exp(tied)\n"
        "f = dot(e, tied)\nreturn d, f", "O2", {"params": ("w", "tied")},
        ['\nw = null() {__dtype__: 2; __mxmp_dtype__: 0}', "\ntied = null() {__dtype__: 0}",
         "tied_cast_float16 = Cast(tied)"], ["w_cast"]),
    "no cast between convolution, batch norm, relu and residual add": (
        "x = null()\nw = null()\ng = null()\nconv = Convolution(x, w)\nbn = BatchNorm(conv, g, g, g, g) x3\n"
        "act = Activation(bn) {act_type: relu}\nconv2 = Convolution(act, w)\nadd = elemwise_add(conv2, act)\nreturn add",
        "O1", {},
        ["\nconv = Convolution(x_cast_float16, w_cast_float16)\nbn = BatchNorm(conv, g, g, g, g) x3\n"
         "act = Activation(bn) {act_type: relu}\nconv2 = Convolution(act, w_cast_float16)\n"
         'add_float16 = elemwise_add(conv2, act)\nadd = Cast(add_float16)'], []),
    "names stay unique": (
        "d_cast_float16 = null()\nd = null()\nf = dot(d, d_cast_float16)\nreturn f", "O1", {},
        ["\nd_cast_float161 = Cast(d)", "d_cast_float16_cast_float16 = Cast(d_cast_float16)"], []),
    "a cast of the network serves no other reader": (
        OWN.format("Cast", "float16"), "O1", {"dtypes": {"mine": "float16"}}, ["FullyConnected(x_cast_float16, x_cast"], []),
    "nor is what it widens read in its place": (
        "x = null() {__dtype__: 2}\nup = Cast(x) {dtype: float32}\nd = dot(up, up)\nreturn d, up", "O1",
        {"dtypes": {"x": "float16"}}, ["dot(up_output_cast_float16, up_output_cast_float16)"], []),
    "rounding and back stays": (
        "x = null()\ndown = Cast(x) {dtype: float16}\nup = Cast(down) {dtype: float32}\ne = exp(up)\nd = dot(e, e)\nreturn d",
        "O1", {"dtypes": {"down": "float16"}},
        ["down = Cast(x) {dtype: float16}\nup = Cast(down) {dtype: float32}\ne = exp(up)"], []),
}  # fmt: skip


@pytest.mark.parametrize("text, policy, known, parts, absent", PARTS.values(), ids=PARTS)
def test_a_cast_is_inserted_or_not(text, policy, known, parts, absent):
    found = insert(text, policy, **known)
    assert not [part for part in parts if part not in found] and not [part for part in absent if part in found]


@pytest.mark.behaviour("labels and indices")
def test_integers_and_labels_are_never_cast():
    text = """ids = null()
        label = null()
        w = null()
        e = Embedding(ids, w)
        d = dot(e, w)
        loss = SoftmaxOutput(d, label)
        return loss"""
    found = insert(text, dtypes={"ids": "int32"})
    assert "ids_cast" not in found and "label_cast" not in found
    assert "loss = SoftmaxOutput(d_output_cast_float32, label)" in found


def test_an_output_that_is_also_read():
    found = insert("x = null()\nd = dot(x, x)\nf = dot(d, d)\ne = exp(d)\nreturn d, f, e")
    assert found.splitlines()[-1] == "return d, f, e"
    assert found.count("dtype: float32") == 2  # d once, shared by the output and exp; f
