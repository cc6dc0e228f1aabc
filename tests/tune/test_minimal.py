"""The smallest passing set: against brute force, 1-minimal always, with few tests."""

from __future__ import annotations

import itertools
import random

import pytest

from mxmp.tune.minimal import minimal_set


def run(items, passes):
    """Return the set found and how many different sets were tried."""
    proposals, known, sent = minimal_set(items), {}, None
    try:
        while True:
            tried = proposals.send(sent)
            sent = known.setdefault(tried, passes(tried))
    except StopIteration as end:
        return end.value, len(known)


def smallest(items, passes):
    """Return the size of the smallest passing set, by trying all."""
    sizes = range(len(items) + 1)
    return next(n for n in sizes if any(passes(frozenset(s)) for s in itertools.combinations(items, n)))


@pytest.mark.parametrize("seed", range(15))
def test_the_one_set_that_is_needed_is_found_in_any_order(seed):
    draw = random.Random(seed)
    items = list(range(draw.randint(1, 10)))
    needed = frozenset(draw.sample(items, draw.randint(1, len(items))))
    draw.shuffle(items)
    found, _ = run(items, needed.issubset)
    assert found == needed


@pytest.mark.parametrize("seed", range(15))
def test_it_is_a_smallest_set_where_losses_add_up_and_the_order_is_theirs(seed):
    draw = random.Random(seed)
    items = list(range(draw.randint(2, 10)))
    losses = {item: draw.random() for item in items}
    tolerance = draw.uniform(0, 0.9) * sum(losses.values())

    def passes(kept):
        return sum(losses[item] for item in items if item not in kept) <= tolerance

    found, _ = run(sorted(items, key=losses.__getitem__, reverse=True), passes)
    assert passes(found) and len(found) == smallest(items, passes)


@pytest.mark.parametrize("seed", range(15))
def test_it_passes_and_is_1_minimal_whatever_passes(seed):
    draw = random.Random(seed)
    items = list(range(draw.randint(1, 8)))
    verdicts = {frozenset(items): True, frozenset(): False}

    def passes(kept):
        return verdicts.setdefault(kept, draw.random() < 0.4)

    found, _ = run(items, lambda kept: passes(kept) if kept else pytest.fail("the empty set was proposed"))
    assert found and passes(found)
    assert not any(passes(found - {item}) for item in found)


def test_few_among_many_are_found_in_few_tests_where_the_order_is_good():
    items = list(range(1000))
    for needed, most in (({0}, 1), ({0, 1, 2}, 8), ({0, 1, 2, 17}, 25)):
        found, tests = run(items, frozenset(needed).issubset)
        assert found == needed and tests <= most, (needed, tests)
