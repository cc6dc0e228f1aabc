"""Insertion, text in and text out."""

from __future__ import annotations

import pytest

from mxmp.passes import InsertCasts
from mxmp.policy import Policy
from tests.graph.text import to_text
from tests.passes.graphs import lines, with_facts

O1 = Policy.parse("O1")
BF16 = Policy.parse("mixed_bfloat16")


def insert(text, policy=O1, **known):
    graph, facts = with_facts(text, **known)
    return to_text(InsertCasts(policy, facts)(graph).graph)


def test_one_operator_gets_two_casts():
    assert insert("x = null()\ny = relu(x)\nd = dot(y, y)\nreturn d") == lines(
        """
        x = null()
        y = relu(x)
        y_output_cast_float16 = Cast(y) {__mxmp__: cast; dtype: float16}
        d_float16 = dot(y_output_cast_float16, y_output_cast_float16) {__mxmp_before__: {"name": "d"}}
        d = Cast(d_float16) {__mxmp__: cast; dtype: float32}
        return d
        """
    )


def test_bfloat16_is_cast_by_amp_cast():
    assert insert("x = null()\nf = FullyConnected(x, x)\nreturn f", BF16) == lines(
        """
        x = null() {__dtype__: 0; __mxmp_before__: {"attrs": {"__dtype__": null}}}
        x_cast_bfloat16 = amp_cast(x) {__mxmp__: cast; dtype: bfloat16}
        f_bfloat16 = FullyConnected(x_cast_bfloat16, x_cast_bfloat16) {__mxmp_before__: {"name": "f"}}
        f = amp_cast(f_bfloat16) {__mxmp__: cast; dtype: float32}
        return f
        """
    )


RESIDUAL = """
    x = null()
    w = null()
    g = null()
    b = null()
    m = null()
    v = null()
    conv = Convolution(x, w)
    bn = BatchNorm(conv, g, b, m, v) x3
    act = Activation(bn) {act_type: relu}
    conv2 = Convolution(act, w)
    add = elemwise_add(conv2, act)
    return add
"""


def test_no_cast_between_convolution_batch_norm_relu_and_residual_add():
    assert insert(RESIDUAL).splitlines()[8:] == [
        "conv = Convolution(x_cast_float16, w_cast_float16)",
        "bn = BatchNorm(conv, g, b, m, v) x3",
        "act = Activation(bn) {act_type: relu}",
        "conv2 = Convolution(act, w_cast_float16)",
        'add_float16 = elemwise_add(conv2, act) {__mxmp_before__: {"name": "add"}}',
        "add = Cast(add_float16) {__mxmp__: cast; dtype: float32}",
        "return add",
    ]


def test_parameters_are_stored_low_only_where_all_readers_are():
    text = """
        x = null()
        w = null() {__dtype__: 0}
        tied = null() {__dtype__: 0}
        d = dot(x, w)
        e = exp(tied)
        f = dot(e, tied)
        return d, f
    """
    found = insert(text, Policy.parse("O2"), params=("w", "tied"))
    assert "w = null() {__dtype__: 2; __mxmp_before__: {\"attrs\": {\"__dtype__\": \"0\"}}}" in found
    assert "tied = null() {__dtype__: 0}" in found
    assert "tied_cast_float16 = Cast(tied)" in found and "w_cast" not in found


@pytest.mark.behaviour("labels and indices")
def test_integers_and_labels_are_never_cast():
    text = """
        ids = null()
        label = null()
        w = null()
        e = Embedding(ids, w)
        d = dot(e, w)
        loss = SoftmaxOutput(d, label)
        return loss
    """
    found = insert(text, dtypes={"ids": "int32"})
    assert "ids_cast" not in found and "label_cast" not in found
    assert "loss = SoftmaxOutput(d_output_cast_float32, label)" in found


def test_an_output_that_is_also_read():
    found = insert("x = null()\nd = dot(x, x)\nf = dot(d, d)\ne = exp(d)\nreturn d, f, e")
    assert found.splitlines()[-1] == "return d, f, e"
    assert found.count("dtype: float32") == 2  # d once, shared by the output and exp; f


def test_names_stay_unique():
    found = insert("d_cast_float16 = null()\nd = null()\nf = dot(d, d_cast_float16)\nreturn f")
    names = [line.split(" = ")[0] for line in found.splitlines()[:-1]]
    assert len(names) == len(set(names))


def test_a_cast_of_the_network_serves_other_readers():
    text = "x = null()\nmine = Cast(x) {dtype: float16}\nd = dot(x, x)\nreturn mine, d"
    found = insert(text, dtypes={"mine": "float16"})
    assert 'd_float16 = dot(mine, mine) {__mxmp_before__: {"name": "d", "ports": [[0], [1]]}}' in found
    assert "x_cast" not in found


def test_a_cast_of_the_network_that_comes_later_serves_too():
    text = "x = null()\nd = dot(x, x)\nmine = Cast(x) {dtype: float16}\nreturn d, mine"
    found = insert(text, dtypes={"mine": "float16"}).splitlines()
    assert found[1] == "mine = Cast(x) {dtype: float16}" and found[2].startswith("d_float16 = dot(mine, mine)")


def test_widening_and_back_is_the_identity():
    text = "x = null() {__dtype__: 2}\nup = Cast(x) {dtype: float32}\nd = dot(up, up)\nreturn d, up"
    found = insert(text, dtypes={"x": "float16"})
    assert 'dot(x, x) {__mxmp_before__: {"name": "d", "ports": [[0, "Cast", "up"], [1, "Cast", "up"]]}}' in found


def test_rounding_and_back_stays():
    text = "x = null()\ndown = Cast(x) {dtype: float16}\nup = Cast(down) {dtype: float32}\ne = exp(up)\nd = dot(e, e)\nreturn d"
    found = insert(text, dtypes={"down": "float16"})
    assert "down = Cast(x) {dtype: float16}" in found and "up = Cast(down) {dtype: float32}" in found


@pytest.mark.parametrize(("op", "serves"), [("Cast", False), ("amp_cast", True)])
def test_a_cast_that_truncates_to_bfloat16_serves_no_other_reader(op, serves):
    text = f"x = null()\nmine = {op}(x) {{dtype: bfloat16}}\nf = FullyConnected(x, x)\nreturn mine, f"
    assert ("x_cast_bfloat16" not in insert(text, BF16, dtypes={"mine": "bfloat16"})) == serves
