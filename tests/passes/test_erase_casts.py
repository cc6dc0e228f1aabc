"""Erasing is the inverse of inserting."""

from __future__ import annotations

import pytest

from mxmp.passes import EraseCasts, InsertCasts
from mxmp.policy import Policy
from tests.graph.text import to_text
from tests.passes.graphs import with_facts

TEXTS = {
    "head renamed": "x = null()\nd = dot(x, x)\nreturn d",
    "head also read": "x = null()\nd = dot(x, x)\nf = dot(d, d)\ne = exp(d)\nreturn d, f, e",
    "user's casts stay": "x = null()\nc = Cast(x) {dtype: float16}\nd = dot(c, c)\nb = dot(x, x)\nreturn d, b",
    "parameters": "x = null()\nw = null() {__dtype__: 0}\nu = null()\nd = dot(x, w)\nf = dot(d, u)\nreturn f",
}


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_erase_restores_the_graph(text, policy):
    graph, facts = with_facts(text, params="wu")
    mixed = InsertCasts(Policy.parse(policy), facts)(graph)
    assert mixed.modified or "dot" not in text or policy == "mixed_bfloat16"  # dot has no bfloat16 kernel
    assert to_text(EraseCasts()(mixed.graph).graph) == to_text(graph)
    assert EraseCasts()(mixed.graph).graph == graph
