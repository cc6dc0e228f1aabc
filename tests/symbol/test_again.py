"""A conversion for unknown shapes, taken over for known ones."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.errors import InferenceError
from mxmp.policy import Policy
from mxmp.symbol import convert_graph
from mxmp.symbol.again import for_shapes

O1 = Policy.parse("O1")
SHAPES = {"data": (2, 3, 8, 8)}


def network(slices=False):
    """Return a symbol whose casts stand elsewhere, if its output is sliced, once sizes are known."""
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv")
    net = mx.sym.Activation(net, act_type="relu", name="relu")
    net = mx.sym.FullyConnected(net, num_hidden=5, name="fc")
    return mx.sym.exp(mx.sym.slice_axis(net, axis=1, begin=0, end=1)) if slices else net


def test_it_is_what_a_conversion_anew_gives():
    symbol = network()
    found, anew = for_shapes(convert_graph(symbol, O1), SHAPES), convert_graph(symbol, O1, SHAPES)
    assert found.graph == anew.graph and found.report == anew.report
    assert dict(found.facts.shapes) == anew.facts.shapes and len(found.facts.shapes) == len(anew.facts.shapes)


def test_shapes_are_inferred_when_they_are_asked_for(monkeypatch):
    symbol, calls = network(), []
    early = convert_graph(symbol, O1)
    original = mx.sym.Symbol.get_internals
    monkeypatch.setattr(mx.sym.Symbol, "get_internals", lambda self: calls.append(self) or original(self))
    found = for_shapes(early, SHAPES)
    assert not calls
    assert found.facts.shapes[0, 0] == SHAPES["data"] and len(calls) == 1
    assert (0, 9) not in found.facts.shapes and len(calls) == 1  # once


def test_there_is_none_if_casts_stand_elsewhere():
    symbol = network(slices=True)
    early = convert_graph(symbol, O1)
    assert for_shapes(early, SHAPES) is None
    assert early.graph != convert_graph(symbol, O1, SHAPES).graph


@pytest.mark.parametrize("slices", [False, True])
def test_shapes_that_do_not_fit_are_refused_by_the_node(slices):
    symbol = network(slices)
    with pytest.raises(InferenceError, match="node 'conv': MXNet cannot infer its shapes"):
        for_shapes(convert_graph(symbol, O1), {"data": (2, 3)})
