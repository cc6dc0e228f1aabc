"""Minimum cuts against all cuts of small graphs, and against SciPy's maximum flow on larger ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from mxmp.passes.place import minimum_cut

SOURCE, SINK = 0, 1


@st.composite
def networks(draw, capacities):
    """Return a number of vertices and arcs between them, parallel ones and circles among them."""
    count = draw(st.integers(2, 9))
    vertex = st.integers(0, count - 1)
    arcs = draw(st.lists(st.tuples(vertex, vertex, capacities, capacities), max_size=3 * count))
    return count, [arc for arc in arcs if arc[0] != arc[1]]


def cheapest_cuts(count, arcs):
    """Return the value of the cheapest cuts and their sink sides, of all there are."""
    sides = [
        {SINK} | {vertex for vertex, bit in enumerate(bits, 2) if bit}
        for bits in itertools.product([False, True], repeat=count - 2)
    ]
    values = [
        sum(there * (start not in side and end in side) + back * (end not in side and start in side)
            for start, end, there, back in arcs)
        for side in sides
    ]  # fmt: skip
    return min(values), [side for side, value in zip(sides, values) if value == min(values)]


@pytest.mark.parametrize(
    "capacities", [st.integers(0, 3), st.integers(0, 100), st.sampled_from([0, 1, 2**31, 2**53 + 1, 2**80])]
)
def test_minimum_cut_is_the_cheapest_with_the_smallest_sink_side(capacities):
    @settings(max_examples=200, deadline=None)
    @given(networks(capacities))
    def check(network):
        value, side = minimum_cut(*network, SOURCE, SINK)
        cheapest, sides = cheapest_cuts(*network)
        assert value == cheapest
        assert side == min(sides, key=len)

    check()


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_is_the_maximum_flow_of_larger_networks(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(50, 1000))
    reach = int(rng.integers(1, count))  # from long chains to one knot
    capacities = np.zeros((count, count), np.int32)
    starts = rng.integers(0, count, 4 * count)
    ends = (starts + rng.integers(1, reach + 1, 4 * count)) % count
    capacities[starts, ends] = rng.integers(1, 100, 4 * count)
    capacities[ends, starts] = rng.integers(0, 100, 4 * count)
    capacities[SOURCE, rng.integers(2, count, 20)] = 1000
    capacities[rng.integers(2, count, 20), SINK] = 1000
    np.fill_diagonal(capacities, 0)
    arcs = [(int(i), int(j), int(capacities[i, j]), 0) for i, j in zip(*np.nonzero(capacities))]
    value, side = minimum_cut(count, arcs, SOURCE, SINK)
    sink_side = np.isin(np.arange(count), list(side))
    assert value == maximum_flow(csr_matrix(capacities), SOURCE, SINK).flow_value
    assert value == capacities[~sink_side][:, sink_side].sum()


@pytest.mark.parametrize("saving", [1, 100, 10**4])
def test_minimum_cut_follows_a_chain_of_thousands(saving):
    last = 5001
    links = [(vertex, vertex + 1, 10**6, 10**6) for vertex in range(2, last)]
    savings = [(vertex, SINK, saving, 0) for vertex in range(2, last + 1)]
    value, side = minimum_cut(last + 1, [(SOURCE, 2, 10**6, 10**6), *links, *savings], SOURCE, SINK)
    assert value == min(10**6, saving * (last - 1))
    assert side == ({SINK} if value < 10**6 else set(range(1, last + 1)))
