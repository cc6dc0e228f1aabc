"""Casts that repeat or change nothing."""

from __future__ import annotations

import pytest

from mxmp.passes import FoldCasts
from tests.graph.text import from_text, to_text
from tests.passes.graphs import lines


def fold(text):
    return to_text(FoldCasts()(from_text(text)).graph)


def test_an_existing_cast_is_absorbed():
    assert fold(
        """x = null()
        mine = Cast(x) {dtype: float16}
        x_cast_float16 = Cast(x) {__mxmp__: cast; dtype: float16}
        d = dot(mine, x_cast_float16)
        return d"""
    ) == lines("x = null()\nmine = Cast(x) {dtype: float16}\nd = dot(mine, mine) {__mxmp_absorbed__: [[1]]}\nreturn d")


def test_an_existing_cast_that_comes_later_is_absorbed():
    assert fold(
        """x = null()
        x_cast_float16 = Cast(x) {__mxmp__: cast; dtype: float16}
        d = dot(x_cast_float16, x_cast_float16)
        mine = Cast(x) {dtype: float16}
        return d, mine"""
    ) == lines(
        "x = null()\nmine = Cast(x) {dtype: float16}\nd = dot(mine, mine) {__mxmp_absorbed__: [[0], [1]]}\nreturn d, mine"
    )


def test_widening_and_back_is_the_identity():
    assert fold(
        """x = null() {__dtype__: 2}
        up = Cast(x) {dtype: float32}
        down = Cast(up) {__mxmp__: cast; dtype: float16}
        d = dot(down, down)
        return d, up"""
    ) == lines(
        """x = null() {__dtype__: 2}
        up = Cast(x) {dtype: float32}
        d = dot(x, x) {__mxmp_absorbed__: [[0, "Cast", "up"], [1, "Cast", "up"]]}
        return d, up"""
    )


def test_rounding_stays():
    text = lines(
        """x = null() {__dtype__: 0}
        down = Cast(x) {dtype: float16}
        up = Cast(down) {__mxmp__: cast; dtype: float32}
        return up"""
    )
    assert fold(text) == text


@pytest.mark.parametrize("first, second", [("Cast", "amp_cast"), ("amp_cast", "Cast")])
def test_casts_to_bfloat16_that_round_differently_are_not_merged(first, second):
    text = lines(
        f"""x = null()
        a = {first}(x) {{dtype: bfloat16}}
        b = {second}(x) {{__mxmp__: cast; dtype: bfloat16}}
        return a, b"""
    )
    assert fold(text) == text
