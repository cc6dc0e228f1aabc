"""Erasing is the inverse of inserting."""

from __future__ import annotations

import pytest

from mxmp.graph import from_text, to_text
from mxmp.passes import EraseCasts, Facts, InsertCasts
from mxmp.policy import Policy

TEXTS = {
    "head renamed": "x = null()\nd = dot(x, x)\nreturn d",
    "head also read": "x = null()\nd = dot(x, x)\nf = dot(d, d)\ne = exp(d)\nreturn d, f, e",
    "user's casts stay": "x = null()\nc = Cast(x) {dtype: float16}\nd = dot(c, c)\nb = dot(x, x)\nreturn d, b",
    "parameters": "x = null()\nw = null() {__dtype__: 0}\nu = null()\nd = dot(x, w)\nf = dot(d, u)\nreturn f",
}


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_erase_restores_the_graph(text, policy):
    graph = from_text(text)
    facts = Facts.assume_float32(graph)
    facts = Facts(facts.dtypes, params=frozenset({"w", "u"}))
    mixed = InsertCasts(Policy.parse(policy), facts)(graph)
    assert mixed.modified or "dot" not in text or policy == "mixed_bfloat16"  # dot has no bfloat16 kernel
    assert to_text(EraseCasts()(mixed.graph).graph) == to_text(graph)
    assert EraseCasts()(mixed.graph).graph == graph


def test_erasing_nothing_changes_nothing():
    graph = from_text("x = null()\nc = Cast(x) {dtype: float16}\nreturn c")
    assert not EraseCasts()(graph).modified
