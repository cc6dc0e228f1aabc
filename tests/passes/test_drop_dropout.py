"""Dropout is left out for inference."""

from __future__ import annotations

import pytest

from mxmp.passes import DropDropout
from mxmp.passes.fold import find_dropouts
from tests.graph.text import from_text, to_text
from tests.passes.graphs import lines


def drop(text):
    return to_text(DropDropout()(from_text(text)).graph)


def test_the_readers_of_a_dropout_read_what_it_read():
    assert drop(
        """x = null()
        a = relu(x)
        d = Dropout(a) {p: 0.5} x2
        again = Dropout(d) {axes: (1,); mode: training; p: 0.2} x2
        b = dot(again, a)
        return b"""
    ) == lines("x = null()\na = relu(x)\nb = dot(a, a)\nreturn b")


@pytest.mark.parametrize(
    "kept",
    [
        "x = null()\nd = Dropout(x) {mode: always} x2\na = relu(d)\nreturn a",
        "x = null()\nd = Dropout(x) x2\na = dot(d, d#1)\nreturn a",
        "x = null()\nd = Dropout(x) x2\na = relu(d)\nreturn a, d#1",
        "x = null()\na = relu(x)\nreturn a",
    ],
    ids=["it always drops", "its mask is read", "its mask is an output", "there is none"],
)
def test_a_dropout_that_does_something_stays(kept):
    result = DropDropout()(from_text(kept))
    assert not result.modified and not find_dropouts(result.graph)


def test_an_output_keeps_its_name():
    text = "x = null()\na = relu(x)\nd = Dropout(a) {__ctx_group__: dev1} x2\nb = exp(d)\nreturn d, b, d"
    assert drop(text) == lines("x = null()\na = relu(x)\nb = exp(a)\nd = BlockGrad(a) {__ctx_group__: dev1}\nreturn d, b, d")
