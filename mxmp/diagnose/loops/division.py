"""By what the gradients of a step are divided: by the loss, by ``step(batch_size)``, by both, or by neither."""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Sequence, Set, Tuple

from .calls import Call
from .findings import LoopFindings
from .reductions import EACH, MEAN, Part, parts_of
from .state import arrays_in

_HALF = 0.5  # what L2Loss multiplies by, beside the weights of losses; smaller factors may be 1 / batch


class _Loss(NamedTuple):
    shape: Tuple[int, ...]
    context: str
    parts: Sequence[Part]


class Division:
    """Notes the losses of the steps of one trainer, and adds to the findings what is divided twice, or not at all."""

    def __init__(self, found: LoopFindings) -> None:
        self._found = found
        self._losses: List[_Loss] = []  # of the step under way
        self._backwards = 0
        self._by_hand: List[float] = []  # batch sizes of steps whose losses were divided by these already
        self._steps = 0

    def note(self, loss: Any, outputs: Mapping[str, int]) -> None:
        """Note what is to be backpropagated: an NDArray, or nested lists and tuples; outputs as for `parts_of`."""
        self._backwards += 1
        self._losses += [_Loss(array.shape, str(array.ctx), parts_of(array, outputs)) for array in arrays_in(loss)]

    @property
    def counts(self) -> Set[int]:
        """What a step may divide by beside the batch: the number of backwards, of losses, of the losses' elements."""
        elements = [math.prod(loss.shape) for loss in self._losses]
        each = elements if len({loss.context for loss in self._losses}) == 1 else ()
        return {self._backwards, len(self._losses), sum(elements), *each}

    def check(self, batch_size: Any, calls: Sequence[Call]) -> None:
        """Compare the losses of a step with what it divides by.

        Args:
            batch_size: What ``step`` is called with.
            calls: The calls of the nets that were recorded.
        """
        losses, backwards = self._losses, self._backwards
        self._losses, self._backwards, self._steps = [], 0, self._steps + 1
        parts = [part for loss in losses for part in loss.parts]
        is_number = isinstance(batch_size, (int, float)) and not isinstance(batch_size, bool)
        if not is_number or not parts or any(part.kind is None for part in parts):
            return
        if any(part.by_axis for part in parts) and not _is_first(batch_size, calls):
            return
        if batch_size == 1:
            self._check_sum(losses, {call.rows for call in calls})
        elif batch_size > 1:
            is_number_of_means = batch_size in {backwards, len(losses)}
            self._check_twice(batch_size, parts, is_number_of_means, len({loss.context for loss in losses}))

    def finish(self) -> None:
        """Add what all steps have in common: a number that changes is not the batch's, but one of positives perhaps."""
        if self._by_hand and len(self._by_hand) == self._steps:
            self._found.add("divided_twice", _twice("is divided by the batch size", self._by_hand[0], 1), "warning")

    def _check_twice(self, batch_size: float, parts: Sequence[Part], is_number_of_means: bool, contexts: int) -> None:
        if any(_is_multiple(factor, batch_size) for part in parts for factor in part.factors):
            return  # the mean is taken back, or something is not understood
        is_divided = all(any(math.isclose(factor * batch_size, 1) for factor in part.factors) for part in parts)
        if all(part.kind == MEAN for part in parts):
            if not is_number_of_means:
                self._found.add("divided_twice", _twice("is a mean over the batch", batch_size, contexts), "warning")
            elif is_divided:
                what = "is divided by the number of the losses that are added up"
                self._found.add("divided_twice", _twice(what, batch_size, 1), "warning")
        elif is_divided and not is_number_of_means:
            self._by_hand.append(batch_size)

    def _check_sum(self, losses: Sequence[_Loss], rows: Set[int]) -> None:
        """Find sums over a batch that nothing divides; only where that is sure."""
        parts = [part for loss in losses for part in loss.parts]
        if len(rows) != 1 or min(rows) <= 1:
            return
        is_summed = [part.kind != MEAN and part.is_sure and _least(part.factors) >= _HALF for part in parts]
        vectors = [loss for loss in losses if any(part.kind == EACH for part in loss.parts)]
        if all(is_summed) and all(loss.shape[:1] == tuple(rows) for loss in vectors):
            size = min(rows)
            self._found.add(
                "not_divided",
                f"the loss is summed over a batch of {size}, and step(1) does not divide: gradients are {size} times "
                f"those of a mean, and grow with the batch. Call step({size}), data.shape[0], if that is not meant.",
                "note",
            )


def _twice(what: str, batch_size: float, contexts: int) -> str:
    """Return what is said of a gradient that is divided twice; means on several contexts are summed over these."""
    each = " on each context" if contexts > 1 else ""
    return (
        f"the loss {what}{each}, and step({batch_size:g}) divides the gradients by {batch_size:g} once more, so that "
        f"the learning rate is {batch_size / contexts:g} times smaller than it says. Call step({contexts}), or leave "
        f"the loss undivided, as one for each example or their sum."
    )


def _is_first(batch_size: float, calls: Sequence[Call]) -> bool:
    """Return whether the first axis of what nets were called with is the batch, and no other can be."""
    others = {size for call in calls for shape in call.sizes for size in shape[1:]}
    rows = [call.rows for call in calls]
    return batch_size in {sum(rows), *rows} and batch_size not in others


def _least(factors: Sequence[float]) -> float:
    return min(map(abs, factors), default=1.0)


def _is_multiple(factor: float, batch_size: float) -> bool:
    """Return whether a factor may undo a mean over a batch."""
    return not math.isfinite(factor) or math.isclose(math.remainder(factor, batch_size), 0, abs_tol=1e-6)
