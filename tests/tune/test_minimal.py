"""The smallest passing set: against brute force, 1-minimal always, with few tests."""

import itertools
import random

import pytest

from mxmp.tune.accuracy import minimal_set


def run(items, passes):
    """Return the set found and how many different sets were tried."""
    proposals, known, sent = minimal_set(items), {}, None
    try:
        while True:
            tried = proposals.send(sent)
            sent = known.setdefault(tried, passes(tried))
    except StopIteration as end:
        return end.value, len(known)


@pytest.mark.parametrize("seed", range(15))
def test_it_is_a_smallest_set_where_one_is_needed_or_losses_add_up_in_the_order_of_the_items(seed):
    draw = random.Random(seed)
    items = list(range(draw.randint(2, 10)))
    needed = frozenset(draw.sample(items, draw.randint(1, len(items))))
    assert run(draw.sample(items, len(items)), needed.issubset)[0] == needed
    losses = {item: draw.random() for item in items}
    tolerance = draw.uniform(0, 0.9) * sum(losses.values())

    def passes(kept):
        return sum(losses[item] for item in items if item not in kept) <= tolerance

    found, _ = run(sorted(items, key=losses.__getitem__, reverse=True), passes)
    subsets = itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(len(items) + 1))
    assert passes(found) and len(found) == len(next(subset for subset in subsets if passes(subset)))


@pytest.mark.parametrize("seed", range(15))
def test_it_passes_and_is_1_minimal_whatever_passes(seed):
    draw = random.Random(seed)
    items = list(range(draw.randint(1, 8)))
    verdicts = {frozenset(items): True}

    def passes(kept):
        assert kept, "the empty set was proposed"
        return verdicts.setdefault(kept, draw.random() < 0.4)

    found, _ = run(items, passes)
    assert passes(found) and not any(passes(found - {item}) for item in found if len(found) > 1)


@pytest.mark.parametrize("needed, most", [({0}, 1), ({0, 1, 2}, 8), ({0, 1, 2, 17}, 25)])
def test_few_among_many_are_found_in_few_tests_where_the_order_is_good(needed, most):
    found, tests = run(list(range(1000)), frozenset(needed).issubset)
    assert found == needed and tests <= most
