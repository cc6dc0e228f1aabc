"""Where boxes stand: below what they read, apart from each other, found quickly."""

from __future__ import annotations

import random
import time

import pytest

from mxmp.display.layout import layered

BOX, GAP = 100.0, 10.0


def graph(count, seed, reads=3):
    rng = random.Random(seed)
    return sorted(
        {(rng.randrange(max(0, i - 20), i), i) for i in range(1, count) for _ in range(rng.randint(1, reads))}
    )


@pytest.mark.parametrize("seed", range(5))
def test_each_box_is_below_those_that_it_reads_and_apart_from_its_row(seed):
    edges = graph(60, seed)
    found = layered(60, edges, BOX, GAP)
    assert all(found.layer[a] < found.layer[b] for a, b in edges)
    for i in range(60):
        for j in range(i):
            if found.layer[i] == found.layer[j]:
                assert abs(found.x[i] - found.x[j]) >= BOX + GAP - 1e-6
    assert min(found.x) >= BOX / 2 - 1e-6 and max(found.x) <= found.width - BOX / 2 + 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_a_line_passes_between_boxes(seed):
    edges = graph(60, seed)
    found = layered(60, edges, BOX, GAP)
    for (source, target), route in zip(edges, found.routes):
        assert route[0] == (found.x[source], found.layer[source])
        assert route[-1] == (found.x[target], found.layer[target])
        assert [layer for _, layer in route] == list(range(found.layer[source], found.layer[target] + 1))
        for x, layer in route[1:-1]:
            others = [found.x[i] for i in range(60) if found.layer[i] == layer]
            assert all(abs(x - other) > BOX / 2 for other in others)


def test_a_chain_is_straight_and_a_branch_has_its_sides_level():
    assert set(layered(4, [(0, 1), (1, 2), (2, 3)], BOX, GAP).x) == {BOX / 2}
    found = layered(4, [(0, 1), (0, 2), (1, 3), (2, 3)], BOX, GAP)
    assert found.layer == [0, 1, 1, 2]
    assert found.x[0] == found.x[3] == pytest.approx((found.x[1] + found.x[2]) / 2)


def test_two_ladders_do_not_cross():
    """Two chains, given alternately."""
    edges = [(i, i + 2) for i in range(10)]
    found = layered(12, edges, BOX, GAP)
    sides = [found.x[i] < found.x[i + 1] for i in range(0, 12, 2)]
    assert len(set(sides)) == 1


def test_many_long_edges_are_drawn_straight():
    edges = [(a, b) for b in range(1, 150) for a in range(b)]
    start = time.process_time()
    found = layered(150, edges, BOX, GAP)
    assert time.process_time() - start < 2
    assert all(len(route) == 2 for route in found.routes)
