"""Casts are placed by a minimum cut: against brute force over all labellings, and against SciPy."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, Verdict, place
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.passes.place import Costs, minimum_cut
from mxmp.rules import CLEAR, Rule

# A rule with one input that is never cast and one that takes either dtype, so that every kind of
# port is part of the random problems.
RULE = Rule("op", CLEAR, keep=(3,), any=(4,), keep_outputs=(1,))


@st.composite
def problems(draw, max_nodes=11):
    """Return (graph, verdicts, sizes, low parameters, whether outputs are wanted low)."""
    count = draw(st.integers(2, max_nodes))
    nodes, verdicts, sizes = [], [], {}
    numbers = random.Random(draw(st.integers(0, 2**16)))  # of sizes: a draw for each would cost more than the cut
    for position in range(count):
        fan_in = draw(st.integers(0 if position < 4 else 1, min(position, 5)))
        drawn = (divmod(draw(st.integers(0, 4 * position - 1)), 4) for _ in range(fan_in))
        inputs = tuple(Entry(node, int(port == 3)) for node, port in drawn)
        if fan_in == 0:
            nodes.append(Node("null", f"v{position}", num_outputs=2))
            verdicts.append(Verdict(KEEP, "variable"))
        else:
            nodes.append(Node("op", f"n{position}", inputs=inputs, num_outputs=2))
            label = draw(st.sampled_from([FREE, FREE, FREE, FREE, FLOAT32, LOW, LOW, KEEP]))
            verdicts.append(Verdict(label, "", RULE))
        for index in range(2):
            sizes[position, index] = numbers.randint(1, 60)
    heads = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2))
    return Graph(tuple(nodes), tuple(Entry(h) for h in heads)), tuple(verdicts), sizes, draw(st.booleans())


def facts_of(sizes, known=True):
    return Facts({key: "float32" for key in sizes}, {key: (n,) for key, n in sizes.items()} if known else {})


def price(graph, verdicts, sizes, output_low, low, in_bytes, params=frozenset()):
    """Return (objective, casts) of a labelling, straight from the definition."""
    readers = {}
    for position, node in enumerate(graph.nodes):
        for port, entry in enumerate(node.inputs):
            verdict = verdicts[position]
            readers.setdefault((entry.node, entry.index), [])
            if verdict.label != KEEP and port == 4 or verdict.label == KEEP and verdict.rule and port == 4:
                continue
            is_low = verdict.label != KEEP and port != 3 and position in low
            readers.setdefault((entry.node, entry.index), []).append((position, port, is_low))
    for head in graph.heads:
        readers.setdefault((head.node, head.index), []).append((None, None, output_low))
    cost = casts = 0
    for (node, index), demands in readers.items():
        size = sizes[node, index]
        made_low = (verdicts[node].label != KEEP and index == 0 or node in params) and node in low
        if any(is_low != made_low for _, _, is_low in demands):
            casts += 1
            cost += 6 * size if in_bytes else 1
        if in_bytes:
            users = {p for p, port, _ in demands if p is not None and port != 3 and verdicts[p].label == FREE}
            if verdicts[node].label == FREE and index == 0:
                users.add(node)
            cost += sum(2 * size for user in users if user not in low)
    return cost, casts


def brute_force(graph, verdicts, sizes, output_low, in_bytes, params=frozenset()):
    """Return the best (objective, casts) and, among those labellings, the smallest low side."""
    free = [i for i, v in enumerate(verdicts) if v.label == FREE] + sorted(params)
    pinned = {i for i, v in enumerate(verdicts) if v.label == LOW}
    best, sides = None, []
    for bits in itertools.product([False, True], repeat=len(free)):
        low = pinned | {node for node, bit in zip(free, bits) if bit}
        found = price(graph, verdicts, sizes, output_low, low, in_bytes, params)
        if best is None or found < best:
            best, sides = found, []
        if found == best:
            sides.append(frozenset(low))
    return best, sides


@settings(max_examples=400, deadline=None)
@given(problems(), st.booleans(), st.booleans())
def test_bytes_or_without_shapes_casts_are_minimal(problem, in_bytes, stored):
    """With the storage of parameters, where it is free; of equal placements that with the most in float32 is taken."""
    graph, verdicts, sizes, output_low = problem
    params = frozenset(i for i, node in enumerate(graph.nodes) if node.is_variable and stored)
    found = place(graph, verdicts, facts_of(sizes, known=in_bytes), output_low=output_low, free_params=params)
    (cost, casts), sides = brute_force(graph, verdicts, sizes, output_low, in_bytes, params)
    assert (found.cost, found.casts, found.flow) == (cost, casts, cost)
    assert found.low == min(sides, key=len) and all(found.low <= side for side in sides)
    assert found.in_bytes == in_bytes or found.casts == 0


@pytest.mark.behaviour("one cast of a weight")
def test_a_shared_tensor_is_cast_once():
    nodes = [Node("null", "data"), *(Node("op", f"n{i}", inputs=(Entry(0),)) for i in range(3))]
    verdicts = (Verdict(KEEP, "variable"), *(Verdict(LOW, "", RULE) for _ in range(3)))
    graph = Graph(tuple(nodes), (Entry(1), Entry(2), Entry(3)))
    found = place(graph, verdicts, facts_of({(i, 0): 10 for i in range(4)}))
    assert found.casts == 1 + 3  # the input once, three outputs


def test_a_size_that_no_placement_depends_on_is_asked_for_too():
    nodes = (Node("null", "data"), *(Node("op", f"n{i}", inputs=(Entry(i),)) for i in range(3)))
    graph, sizes = Graph(nodes, (Entry(3),)), {(i, 0): 8 for i in range(4)}
    verdicts = Verdict(KEEP, "variable"), *(Verdict(label, "", RULE) for label in (FLOAT32, FLOAT32, LOW))
    assert place(graph, verdicts, facts_of(sizes)).in_bytes
    unknown = Facts(facts_of(sizes).dtypes, {(i, 0): (8,) for i in range(1, 4)})
    found = place(graph, verdicts, unknown)
    assert (found.in_bytes, found.casts, found.cost) == (False, 2, 2)


@st.composite
def priced_problems(draw):
    """Return a graph whose nodes read some of those before them, its verdicts, and costs, some savings below zero."""
    count = draw(st.integers(2, 9))
    nodes, verdicts = [Node("null", "data")], [Verdict(KEEP, "variable")]
    for position in range(1, count):
        inputs = draw(st.lists(st.integers(0, position - 1), min_size=1, max_size=2, unique=True))
        nodes.append(Node("op", f"n{position}", inputs=tuple(map(Entry, inputs))))
        verdicts.append(Verdict(draw(st.sampled_from([FREE, FREE, FREE, FLOAT32, LOW])), "", Rule("op", CLEAR)))
    saving = {i: draw(st.integers(-6, 6)) for i, verdict in enumerate(verdicts) if verdict.label == FREE}
    cast = {(i, 0): draw(st.integers(0, 4)) for i in range(count)}
    return Graph(tuple(nodes), (Entry(count - 1),)), tuple(verdicts), Costs(saving, cast)


def sum_of_costs(graph, costs, low):
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


@settings(max_examples=300, deadline=None)
@given(priced_problems())
def test_the_sum_of_costs_is_minimal(problem):
    graph, verdicts, costs = problem
    found = place(graph, verdicts, Facts.assume_float32(graph), costs=costs)
    free = [i for i, verdict in enumerate(verdicts) if verdict.label == FREE]
    pinned = {i for i, verdict in enumerate(verdicts) if verdict.label == LOW}
    ways = itertools.product([False, True], repeat=len(free))
    sides = [pinned | {node for node, bit in zip(free, bits) if bit} for bits in ways]
    best = min(sum_of_costs(graph, costs, low) for low in sides)
    assert sum_of_costs(graph, costs, found.low) == best
    assert found.low == min((low for low in sides if sum_of_costs(graph, costs, low) == best), key=len)
    assert found.cost == found.flow == best[0] + sum(saving for saving in costs.saving.values() if saving > 0)


def test_costs_of_thousands_of_seconds_in_fine_units_are_exact():
    graph = Graph((Node("null", "x"), Node("op", "a", inputs=(Entry(0),))), (Entry(1),))
    verdicts = Verdict(KEEP, "variable"), Verdict(FREE, "", Rule("op", CLEAR))
    for saving, low in ((2**41, frozenset()), (2**41 + 1, frozenset({1}))):
        costs = Costs({1: saving}, {(0, 0): 2**40, (1, 0): 2**40})
        assert place(graph, verdicts, Facts.assume_float32(graph), costs=costs).low == low


@pytest.mark.parametrize("seed", range(6))
def test_a_minimum_cut_of_a_large_network_is_its_maximum_flow(seed):
    """Against SciPy's."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(50, 1000))
    starts = rng.integers(0, count, 4 * count)
    ends = (starts + rng.integers(1, 1 + int(rng.integers(1, count)), 4 * count)) % count  # from long chains to a knot
    capacities = np.zeros((count, count), np.int32)
    capacities[starts, ends] = rng.integers(1, 100, 4 * count)
    capacities[ends, starts] = rng.integers(0, 100, 4 * count)
    capacities[0, rng.integers(2, count, 20)] = capacities[rng.integers(2, count, 20), 1] = 1000
    np.fill_diagonal(capacities, 0)
    arcs = [(int(i), int(j), int(capacities[i, j]), 0) for i, j in zip(*np.nonzero(capacities))]
    value, side = minimum_cut(count, arcs, 0, 1)
    sink_side = np.isin(np.arange(count), list(side))
    assert value == maximum_flow(csr_matrix(capacities), 0, 1).flow_value
    assert value == capacities[~sink_side][:, sink_side].sum()
