"""Erasing is the inverse of inserting."""

from __future__ import annotations

import pytest

from mxmp.graph import in_written_order
from mxmp.passes import EraseCasts, InsertCasts
from mxmp.policy import Policy
from tests.graph.text import to_text
from tests.passes.graphs import with_facts

TEXTS = {
    "head renamed": "x = null()\nd = dot(x, x)\nreturn d",
    "head also read": "x = null()\nd = dot(x, x)\nf = dot(d, d)\ne = exp(d)\nreturn d, f, e",
    "user's casts stay": "x = null()\nc = Cast(x) {dtype: float16}\nd = dot(c, c)\nb = dot(x, x)\nreturn d, b",
    "a user's cast serves": "x = null()\nd = dot(x, x)\nc = Cast(x) {dtype: float16}\nb = dot(c, c)\nreturn d, b",
    "a user's widening": "x = null() {__dtype__: 2}\nu = Cast(x) {dtype: float32}\nd = dot(u, u)\nreturn d",
    "parameters": "x = null()\nw = null() {__dtype__: 0}\nu = null()\nd = dot(x, w)\nf = dot(d, u)\nreturn f",
}


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_erase_restores_the_graph(text, policy):
    graph, facts = with_facts(text, params="wu")
    mixed = InsertCasts(Policy.parse(policy), facts)(graph)
    assert mixed.modified or "dot" not in text or policy == "mixed_bfloat16"  # dot has no bfloat16 kernel
    erased = in_written_order(EraseCasts()(mixed.graph).graph)
    assert to_text(erased) == to_text(in_written_order(graph))
    assert erased == in_written_order(graph)
