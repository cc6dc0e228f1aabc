"""A graph as text."""

from __future__ import annotations

import pytest

from mxmp.errors import GraphError
from mxmp.graph import Entry, from_text, to_text

TEXT = """data = null()
weight = null() {__dtype__: 0; __shape__: (8, 3, 3, 3)}
conv = Convolution(data, weight) {kernel: (3, 3); num_filter: 8}
parts = SliceChannel(conv) {num_outputs: 2} x2
sum = elemwise_add(parts, parts#1)
return sum, parts#1"""


def test_text_round_trip():
    assert to_text(from_text(TEXT)) == TEXT


def test_entry_names_are_mxnets():
    graph = from_text(TEXT)
    names = [graph.entry_name(Entry(*e)) for e in [(0, 0), (2, 0), (3, 1)]]
    assert names == ["data", "conv_output", "parts_output1"]


@pytest.mark.parametrize(
    "text, message",
    [("nonsense", "cannot read graph line 'nonsense'"), ("a = relu(b)\nreturn a", "reads 'b', which no line before")],
)
def test_bad_text_is_refused(text, message):
    with pytest.raises(GraphError, match=message):
        from_text(text)
