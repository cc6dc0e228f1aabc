"""The smallest set of items that passes a test, as far as few tests can tell; free of MXNet."""

from __future__ import annotations

from typing import FrozenSet, Generator, List, Sequence, Tuple, TypeVar

T = TypeVar("T")


def minimal_set(items: Sequence[T]) -> Generator[FrozenSet[T], bool, FrozenSet[T]]:
    """Propose sets of items, be sent whether each passes, and return a passing one that no item can leave.

    First the shortest beginning of the items that passes is looked for: lengths that double, then bisection. Then
    items are removed from it, half of them at once, then quarters, in the end one by one, the last first; until each
    item alone is needed. A set may be proposed twice.

    The set returned is 1-minimal, whatever passes: it passes, and it does not if any one item leaves it. It is a
    smallest set if supersets of passing sets pass and there is one 1-minimal set, or if items simply add up and are
    given in the order of what they add.

    Args:
        items: The items, those that are probably needed first. All of them together have to pass, none must not.

    References:
        Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002, for the removal
        (delta debugging), https://doi.org/10.1109/32.988498
    """
    needed = yield from _shortest_beginning(items)
    return (yield from _without_needless(items[:needed]))


def _shortest_beginning(items: Sequence[T]) -> Generator[FrozenSet[T], bool, int]:
    """Return how many of the first items pass, with one item less of which the test fails."""
    # Invariant: the first ``fails`` items fail, and, once the first loop ends, the first ``passes`` pass.
    fails, passes = 0, min(1, len(items))
    while passes < len(items) and not (yield frozenset(items[:passes])):
        fails, passes = passes, min(2 * passes, len(items))
    while passes - fails > 1:
        middle = (fails + passes) // 2
        if (yield frozenset(items[:middle])):
            passes = middle
        else:
            fails = middle
    return passes


def _without_needless(items: Sequence[T]) -> Generator[FrozenSet[T], bool, FrozenSet[T]]:
    """Return a 1-minimal set of those among items that pass."""
    kept = list(items)
    size = max(1, len(kept) // 2)
    # At size 1 a round without a removal has shown each item to be needed; after a removal others may not be.
    while True:
        shorter = yield from _without_groups(kept, size)
        if size == 1 and len(shorter) == len(kept):
            return frozenset(kept)
        kept, size = shorter, max(1, min(size, len(shorter)) // 2)


def _without_groups(items: List[T], size: int) -> Generator[FrozenSet[T], bool, List[T]]:
    """Return items without those groups of neighbours, of a size, that can leave one after the other."""
    kept = list(items)
    for start, end in reversed(_groups(len(items), size)):
        shorter = kept[:start] + kept[end:]
        if shorter and (yield frozenset(shorter)):
            kept = shorter
    return kept


def _groups(count: int, size: int) -> List[Tuple[int, int]]:
    return [(start, min(start + size, count)) for start in range(0, count, size)]
