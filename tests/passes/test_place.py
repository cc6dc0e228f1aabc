"""Casts are placed by a minimum cut: against brute force over all labellings, and against SciPy."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Decision, Facts, place
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.passes.place import minimum_cut
from mxmp.rules import CLEAR, Rule

# A rule with one input that is never cast and one that takes either dtype, so that every kind of
# port is part of the random problems.
RULE = Rule("op", CLEAR, keep=(3,), any_dtype=(4,), keep_outputs=(1,))
VARIABLE = Decision(KEEP, "variable")
OUTPUT = -1  # among those that read a tensor


@st.composite
def problems(draw):
    """Return a graph and its verdicts."""
    nodes, decisions = [], []
    for position in range(draw(st.integers(2, 9))):
        fan_in = draw(st.integers(0 if position < 4 else 1, min(position, 5)))
        drawn = (divmod(draw(st.integers(0, 4 * position - 1)), 4) for _ in range(fan_in))
        inputs = tuple(Entry(node, int(port == 3)) for node, port in drawn)
        nodes.append(Node("op" if inputs else "null", f"n{position}", inputs=inputs, num_outputs=2))
        label = draw(st.sampled_from([FREE, FREE, FREE, FREE, FLOAT32, LOW, LOW, KEEP]))
        decisions.append(Decision(label, "", RULE) if inputs else VARIABLE)
    heads = draw(st.lists(st.integers(0, len(nodes) - 1), min_size=1, max_size=2))
    return Graph(tuple(nodes), tuple(map(Entry, heads))), tuple(decisions)


def readers_of(graph):
    """Return by tensor the nodes that want it in their own precision; None stands for an input that is never cast."""
    readers = {head.key: {OUTPUT} for head in graph.heads}
    for position, node in enumerate(graph.nodes):
        for port, entry in enumerate(node.inputs):
            readers.setdefault(entry.key, set()).update(set() if port == 4 else {None if port == 3 else position})
    return readers


def price(readers, saving, cast_costs, low, params):
    """Return (objective, casts) of a labelling, straight from the definition."""
    cast = []
    for (node, index), sides in readers.items():
        is_made_low = node in low and (index == 0 or node in params)
        cast += [cast_costs[node, index]] if any((side in low) != is_made_low for side in sides) else []
    missed = sum(units for node, units in saving.items() if node not in low)
    return missed + sum(cast), len(cast)


@pytest.mark.behaviour("one cast of a weight")
@settings(max_examples=250, deadline=None)
@given(problems(), st.sampled_from(["bytes", "casts"]), st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_bytes_or_casts_without_shapes_are_minimal(problem, unit, output_low, stored, seed):
    """With the storage of parameters, where it is free; of equal placements that with the most in float32 is taken."""
    graph, decisions = problem
    numbers, readers = random.Random(seed), readers_of(graph)
    sizes = {(i, index): numbers.randint(1, 60) for i in range(len(decisions)) for index in range(2)}
    params = frozenset(i for i, node in enumerate(graph.nodes) if node.is_variable and stored)
    free = [i for i, decision in enumerate(decisions) if decision.label == FREE]
    if unit == "bytes":
        saving = {i: sum(2 * sizes[key] for key in readers if i in readers[key] or key == (i, 0)) for i in free}
        costs = saving, {key: 6 * size for key, size in sizes.items()}
    else:
        costs = {}, dict.fromkeys(sizes, 1)
    facts = Facts(dict.fromkeys(sizes, "float32"), {key: (n,) for key, n in sizes.items() if unit == "bytes"})
    found = place(graph, decisions, facts, output_low=output_low, free_params=params)
    pinned = {i for i, decision in enumerate(decisions) if decision.label == LOW} | ({OUTPUT} if output_low else set())
    choices = itertools.product(*([(), (i,)] for i in (*free, *params)))
    lows = [frozenset(pinned.union(*chosen)) for chosen in choices]
    prices = {low: price(readers, *costs, low, params) for low in lows}
    best = min(prices.values())
    cheapest = [low - {OUTPUT} for low in prices if prices[low] == best]
    assert found == min(cheapest, key=len) and all(found <= low for low in cheapest)


def test_a_size_that_no_placement_depends_on_is_asked_for_too():
    """Node 2 saves bytes in low precision, and no casts."""
    nodes = (Node("null", "data"), *(Node("op", f"n{i}", inputs=(Entry(i),)) for i in range(3)))
    graph, dtypes = Graph(nodes, (Entry(3),)), {(i, 0): "float32" for i in range(4)}
    decisions = VARIABLE, *(Decision(label, "", RULE) for label in (FLOAT32, FREE, LOW))
    assert place(graph, decisions, Facts(dtypes, dict.fromkeys(dtypes, (8,)))) == {2, 3}
    assert place(graph, decisions, Facts(dtypes, {(i, 0): (8,) for i in range(1, 4)})) == {3}


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
