"""The frame around every pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from mxmp.errors import GraphError, PassError
from mxmp.graph import Entry, Graph, Node, from_text
from mxmp.passes import EraseCasts, InsertCasts, Pass, Sequential
from mxmp.policy import Policy

GRAPH = from_text("x = null()\nd = dot(x, x)\nreturn d")


@dataclass(frozen=True)
class Rename(Pass):
    name: ClassVar[str] = "rename"
    to: str = "d"

    def run(self, graph):
        return replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], name=self.to)))


@dataclass(frozen=True)
class Break(Pass):
    name: ClassVar[str] = "break"

    def run(self, graph):
        return replace(graph, heads=(Entry(99),))


def test_modified_tells_whether_the_graph_changed():
    assert Rename("y")(GRAPH).modified
    same = Rename("d")(GRAPH)
    assert not same.modified and same.graph is GRAPH


def test_a_malformed_graph_is_refused():
    with pytest.raises(GraphError, match="refers to node 5"):
        Rename()(Graph((Node("relu", "r", inputs=(Entry(5),)),), (Entry(0),)))


def test_a_malformed_result_names_the_pass():
    with pytest.raises(PassError, match="pass break: output 0 of the graph refers to node 99"):
        Break()(GRAPH)


def test_sequential_runs_in_order_and_calls_back():
    seen = []
    passes = (InsertCasts(Policy.parse("O1")), EraseCasts())
    result = Sequential(passes, lambda p, r: seen.append((p.name, r.modified)))(GRAPH)
    assert not result.modified
    assert seen == [("insert-casts", True), ("erase-casts", True)]
