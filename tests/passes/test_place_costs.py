"""The minimum cut on given costs, savings below zero among them, against brute force over all labellings."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, Verdict, place
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.passes.place import Costs
from mxmp.rules import CLEAR, Rule

RULE = Rule("op", CLEAR)


@st.composite
def problems(draw):
    """Return a graph whose nodes read some of those before them, its verdicts and costs."""
    count = draw(st.integers(2, 9))
    nodes, verdicts = [Node("null", "data")], [Verdict(KEEP, "variable")]
    for position in range(1, count):
        inputs = draw(st.lists(st.integers(0, position - 1), min_size=1, max_size=2, unique=True))
        nodes.append(Node("op", f"n{position}", inputs=tuple(map(Entry, inputs))))
        verdicts.append(Verdict(draw(st.sampled_from([FREE, FREE, FREE, FLOAT32, LOW])), "", RULE))
    saving = {i: draw(st.integers(-6, 6)) for i, verdict in enumerate(verdicts) if verdict.label == FREE}
    cast = {(i, 0): draw(st.integers(0, 4)) for i in range(count)}
    return Graph(tuple(nodes), (Entry(count - 1),)), tuple(verdicts), Costs(saving, cast)


def price(graph, costs, low):
    """Return (costs, casts) of a labelling whose outputs are wanted in float32."""
    total = -sum(costs.saving[node] for node in low if node in costs.saving)
    casts = 0
    for position in range(len(graph.nodes)):
        readers = {i in low for i, node in enumerate(graph.nodes) if Entry(position) in node.inputs}
        readers |= {False for head in graph.heads if head.node == position}
        if readers - {position in low}:
            total += costs.cast[position, 0]
            casts += 1
    return total, casts


@settings(max_examples=500, deadline=None)
@given(problems())
def test_the_sum_of_costs_is_minimal(problem):
    graph, verdicts, costs = problem
    found = place(graph, verdicts, Facts.assume_float32(graph), costs=costs)
    free = [i for i, verdict in enumerate(verdicts) if verdict.label == FREE]
    pinned = {i for i, verdict in enumerate(verdicts) if verdict.label == LOW}
    sides = [
        pinned | {node for node, bit in zip(free, bits) if bit}
        for bits in itertools.product([False, True], repeat=len(free))
    ]
    best = min(price(graph, costs, low) for low in sides)
    ties = [low for low in sides if price(graph, costs, low) == best]
    assert price(graph, costs, found.low) == best
    assert found.low == min(ties, key=len)  # ties go to float32
    assert found.cost == found.flow == best[0] + sum(saving for saving in costs.saving.values() if saving > 0)


def two_nodes(*savings):
    nodes = Node("null", "data"), Node("op", "a", inputs=(Entry(0),)), Node("op", "b", inputs=(Entry(1),))
    verdicts = Verdict(KEEP, "variable"), *(Verdict(FREE, "", RULE) for _ in savings)
    graph = Graph(nodes, (Entry(2),))
    costs = Costs(dict(enumerate(savings, 1)), {(0, 0): 1, (1, 0): 1, (2, 0): 1})
    return place(graph, verdicts, Facts.assume_float32(graph), costs=costs)


def test_a_node_that_saves_nothing_stays_in_float32():
    assert two_nodes(5, -1).low == frozenset({1})
    assert two_nodes(5, 0).low == frozenset({1})  # a tie: the cast may be on either side of the second


def test_what_saves_no_more_than_its_casts_stays_in_float32():
    assert two_nodes(1, 1).low == frozenset()
    assert two_nodes(2, 1).low == frozenset({1, 2})


def test_costs_of_thousands_of_seconds_in_fine_units_are_exact():
    graph = Graph((Node("null", "x"), Node("op", "a", inputs=(Entry(0),))), (Entry(1),))
    verdicts = Verdict(KEEP, "variable"), Verdict(FREE, "", RULE)
    casts = {(0, 0): 2**40, (1, 0): 2**40}
    for saving, low in ((2**41, frozenset()), (2**41 + 1, frozenset({1}))):
        found = place(graph, verdicts, Facts.assume_float32(graph), costs=Costs({1: saving}, casts))
        assert found.low == low
