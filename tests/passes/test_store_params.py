"""Parameters that all readers cast to one dtype are stored in it."""

from __future__ import annotations

import pytest

from mxmp.passes import Facts, StoreParams
from tests.graph.text import from_text, to_text
from tests.passes.graphs import lines

LOW = "Cast(w) {dtype: float16}"


def store(text, params=("w",)):
    """Return the graph and the parameters that are stored, with their dtypes."""
    graph = from_text(text)
    each = StoreParams(Facts.assume_float32(graph), frozenset(params))
    result = each(graph)
    assert result.modified == bool(each.find(graph))
    return to_text(result.graph), each.find(graph)


def test_what_reads_a_cast_reads_the_parameter():
    found, stored = store(f"x = null()\nw = null()\nc = {LOW}\na = dot(x, c)\nb = dot(a, c)\nreturn b")
    assert found == lines("x = null()\nw = null() {__dtype__: 2}\na = dot(x, w)\nb = dot(a, w)\nreturn b")
    assert stored == {"w": "float16"}


def test_several_casts_to_one_dtype_go():
    text = "w = null() {__dtype__: 0}\nc = amp_cast(w) {dtype: bfloat16}\nd = amp_cast(w) {dtype: bfloat16}\na = dot(c, d)\nreturn a"
    assert store(text) == (lines("w = null() {__dtype__: 12}\na = dot(w, w)\nreturn a"), {"w": "bfloat16"})


@pytest.mark.parametrize(
    "text",
    [
        f"w = null()\nc = {LOW}\na = dot(c, w)\nreturn a",
        f"w = null()\nc = {LOW}\nd = amp_cast(w) {{dtype: bfloat16}}\na = exp(c)\nb = exp(d)\nreturn a, b",
        "w = null()\nc = Cast(w) {dtype: int32}\na = exp(c)\nreturn a",
        f"w = null()\nc = {LOW}\na = exp(c)\nreturn a, w",
        f"w = null()\nc = {LOW}\nreturn c",
        f"w = null() {{__storage_type__: 1}}\nc = {LOW}\na = exp(c)\nreturn a",
        f"w = null() {{__dtype__: 1}}\nc = {LOW}\na = exp(c)\nreturn a",
        "w = null()\na = exp(w)\nreturn a",
    ],
    ids=[
        "read in float32 too",
        "two dtypes",
        "int32",
        "an output",
        "its cast is an output",
        "sparse",
        "float64",
        "no cast",
    ],
)
def test_others_stay(text):
    assert store(text) == (lines(text), {})


def test_inputs_stay():
    text = f"w = null()\nc = {LOW}\na = exp(c)\nreturn a"
    assert store(text, params=()) == (lines(text), {})
