"""One loss scale for each of several losses that a trainer learns from, as Apex's ``num_losses``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

import mxnet as mx

from ..arrays.finite import all_finite
from ..errors import LossScaleError, TrainerError
from ..loss_scale import LossScale
from .source import Moved, ScaleSource, Where, adjusted

if TYPE_CHECKING:
    from .scaler import Scaler


class LossScalePerLoss(ScaleSource):
    """A loss scale for each of several losses that a trainer learns from, as Apex's ``num_losses``.

    All losses of a step share its gradients. After each backward pass it is noted, on a GPU without waiting for it,
    whether they are finite. In a skipped step the scale of the loss that made them non-finite backs off; losses
    before it count as finite, and of those after it nothing is known. ``current`` is the number of the loss
    that is scaled now.
    """

    def __init__(self, loss_scale: LossScale, count: int) -> None:
        super().__init__(loss_scale)
        self.current = 0
        self.scales: List[LossScale] = [loss_scale] * count
        self._flags: List[Tuple[int, mx.nd.NDArray]] = []

    @property
    def loss_scale(self) -> LossScale:
        """The present loss scale of the current loss."""
        return self.scales[self.current]

    def select(self, loss_id: int) -> None:
        """Make a loss the current one, or raise a TrainerError if there is no such loss."""
        if isinstance(loss_id, bool) or not isinstance(loss_id, int) or not 0 <= loss_id < len(self.scales):
            raise TrainerError(f"loss_id={loss_id!r}: the trainer has losses 0 to {len(self.scales) - 1}.")
        self.current = loss_id

    def note(self, grads: List[mx.nd.NDArray]) -> None:
        """Note whether the gradients of the step are finite after the current loss, as `all_finite` says."""
        if grads:
            self._flags.append((self.current, all_finite(grads)))

    def replace(self, value: LossScale) -> None:
        """Set the loss scale of all losses."""
        self.scales = [value] * len(self.scales)

    def adjust(self, scaler: Scaler, finite: bool, where: Where) -> Moved:
        """Move the scales of the step's losses; one more host read for each if the step is skipped."""
        losses = list(dict.fromkeys(loss_id for loss_id, _ in self._flags)) or [self.current]
        self.current = losses[-1] if finite else self._first_bad_loss(losses[-1])
        for loss_id in losses[: losses.index(self.current)]:
            self.scales[loss_id] = self.scales[loss_id].adjust(True)
        before = self.loss_scale
        self.scales[self.current] = adjusted(before, finite, where)
        return before, self.loss_scale

    def _first_bad_loss(self, default: int) -> int:
        """Return the loss that made the gradients non-finite, ``default`` if they became so later."""
        return next((loss_id for loss_id, flag in self._flags if flag.asscalar() != 1.0), default)

    def end_window(self) -> None:
        """Forget what was noted of the present step."""
        self._flags = []

    def to_dict(self) -> Dict[str, Any]:
        """Return all loss scales as plain JSON data."""
        return {**super().to_dict(), "loss_scales": [scale.to_dict() for scale in self.scales]}

    def from_dict(self, data: Dict[str, Any]) -> List[LossScale]:
        """Return what `to_dict` described; a LossScaleError if it is invalid or of another number of losses."""
        super().from_dict(data)
        found = data.get("loss_scales")
        if not isinstance(found, list) or len(found) != len(self.scales):
            count = len(found) if isinstance(found, list) else 1
            raise LossScaleError(f"the state is of {count} losses; expected {len(self.scales)} (num_losses).")
        return [LossScale.from_dict(each) for each in found]

    def load(self, values: Sequence[LossScale]) -> None:
        """Take what `from_dict` returned."""
        self.scales = list(values)
