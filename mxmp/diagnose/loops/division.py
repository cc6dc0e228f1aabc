"""By what the gradients of a step are divided: by the loss, by ``step(batch_size)``, by both, or by neither.

Said is only what is sure. A factor says nothing: 1/2 may be that of `L2Loss`, a weight, a share of two losses, or one
over a batch of two. So a loss that is divided by a number is not accused, whatever the number.
"""

from __future__ import annotations

import math
from typing import Any, List, Mapping, NamedTuple, Sequence, Set, Tuple

from .calls import Call, fits
from .findings import LoopFindings
from .reductions import EACH, MEAN, Part, parts_of
from .state import arrays_in


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
        self._losses, self._backwards = [], 0
        parts = [part for loss in losses for part in loss.parts]
        is_number = isinstance(batch_size, (int, float)) and not isinstance(batch_size, bool)
        if not is_number or not parts or any(part.kind is None for part in parts):
            return
        if any(part.by_axis for part in parts) and not _is_first(batch_size, calls):
            return
        if batch_size == 1:
            self._check_sum(losses, {call.rows for call in calls})
        elif batch_size > 1 and fits(batch_size, calls) and batch_size not in {backwards, len(losses)}:
            self._check_twice(batch_size, parts, len({loss.context for loss in losses}))

    def _check_twice(self, batch_size: float, parts: Sequence[Part], contexts: int) -> None:
        """Find means over a batch that a step divides by once more; not where a factor may take a mean back."""
        if all(part.kind == MEAN and all(abs(factor) <= 1 for factor in part.factors) for part in parts):
            each = " on each context" if contexts > 1 else ""  # which are summed over the contexts
            self._found.add(
                "divided_twice",
                f"the loss is a mean over the batch{each}, and step({batch_size:g}) divides the gradients by "
                f"{batch_size:g} once more, so that the learning rate is {batch_size / contexts:g} times smaller than "
                f"it says. Call step({contexts}), or leave the loss undivided, as one for each example or their sum.",
                "warning",
            )

    def _check_sum(self, losses: Sequence[_Loss], rows: Set[int]) -> None:
        """Find sums over a batch that nothing divides; not where a factor may do it."""
        parts = [part for loss in losses for part in loss.parts]
        if len(rows) != 1 or min(rows) <= 1:
            return
        factors = [factor for part in parts for factor in part.factors]
        is_summed = all(part.kind != MEAN and part.is_sure for part in parts)
        vectors = [loss for loss in losses if any(part.kind == EACH for part in loss.parts)]
        is_whole = all(loss.shape[:1] == tuple(rows) for loss in vectors)
        if is_summed and is_whole and all(abs(factor) >= 1 for factor in factors):
            size = min(rows)
            self._found.add(
                "not_divided",
                f"the loss is summed over a batch of {size}, and step(1) does not divide: gradients are {size} times "
                f"those of a mean, and grow with the batch. Call step({size}), data.shape[0], if that is not meant.",
                "note",
            )


def _is_first(batch_size: float, calls: Sequence[Call]) -> bool:
    """Return whether the first axis of what nets were called with is the batch, and no other can be."""
    others = {size for call in calls for shape in call.sizes for size in shape[1:]}
    rows = [call.rows for call in calls]
    return batch_size in {sum(rows), *rows} and batch_size not in others
