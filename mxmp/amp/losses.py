"""One loss scale for each of several losses that a trainer learns from, as Apex's ``num_losses``."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx

from ..arrays.finite import all_finite
from ..arrays.norms import scale_in_place
from ..errors import LossScaleError, TrainerError
from ..loss_scale import LossScale
from ..scaling.scaler import Scaler, Stage


class LossScalers(Scaler):
    """A `Scaler` with a loss scale per loss; `select` says whose turn it is.

    All losses of a window share its gradients. Where the scale of the next one differs, the
    gradients that are there are brought to it, so that the window has one scale at any time: exact
    in float32, while float16 gradients may overflow or lose bits. After each backward pass it is
    noted on the device whether the gradients are finite. In a skipped step the scale of the loss
    that made them non-finite backs off; losses before it count as finite, and those after it cannot
    be judged.

    Args:
        loss_scale: What each of them starts with.
        count: Number of losses, at least 1.
    """

    def __init__(self, loss_scale: LossScale, count: int) -> None:
        self.current = 0
        self.scales: List[LossScale] = [loss_scale] * count
        self._marks: List[Tuple[int, mx.nd.NDArray]] = []
        super().__init__(loss_scale)

    @property
    def _loss_scale(self) -> LossScale:
        return self.scales[self.current]

    @_loss_scale.setter
    def _loss_scale(self, value: LossScale) -> None:
        self.scales[self.current] = value

    def _set(self, value: LossScale) -> None:
        self.scales = [value] * len(self.scales)

    def select(self, loss_id: int) -> None:
        """Make a loss the present one.

        Raises:
            TrainerError: If there is no such loss, or it cannot be scaled now.
        """
        if isinstance(loss_id, bool) or not isinstance(loss_id, int) or not 0 <= loss_id < len(self.scales):
            raise TrainerError(f"loss_id={loss_id!r}: the trainer has losses 0 to {len(self.scales) - 1}.")
        self._require_can_open()
        self.current = loss_id

    def bring(self, grads: List[mx.nd.NDArray], scale: float) -> None:
        """Bring the gradients of the window, which are ``grads``, to a scale; in place, in their dtype."""
        if self.window.stage is Stage.SCALED:
            scale_in_place(grads, scale / self.window.scale)
            self.window.scale = scale

    def mark(self, grads: List[mx.nd.NDArray]) -> None:
        """Note whether the gradients of the window are finite after the present loss; no host read."""
        if grads:
            self._marks.append((self.current, all_finite(grads)))

    def settle(self, finite: bool, step: int, first_bad: Callable[[], Optional[str]]) -> None:
        """Adjust the scales of the window's losses; one more host read for each if the step is skipped."""
        losses = list(dict.fromkeys(loss_id for loss_id, _ in self._marks)) or [self.current]
        self.current = losses[-1] if finite else self._first_bad_loss(losses[-1])
        for loss_id in losses[: losses.index(self.current)]:
            self.scales[loss_id] = self.scales[loss_id].adjust(True)
        super().settle(finite, step, first_bad)

    def _first_bad_loss(self, default: int) -> int:
        """Return the loss that made the gradients non-finite, ``default`` if they became so later."""
        return next((loss_id for loss_id, flag in self._marks if flag.asscalar() != 1.0), default)

    def close_window(self) -> None:
        """Forget the present window."""
        super().close_window()
        self._marks = []

    def to_dict(self) -> Dict[str, Any]:
        """Return all loss scales and the counters as plain JSON data."""
        return {**super().to_dict(), "loss_scales": [scale.to_dict() for scale in self.scales]}

    def check_dict(self, data: Dict[str, Any]) -> None:
        """Check that `load_dict` will take a state; changes nothing.

        Raises:
            LossScaleError: If a field is missing or invalid, or it is of another number of losses.
            TrainerError: If the owner cannot work with a loss scale.
        """
        super().check_dict(data)
        found = data.get("loss_scales")
        if not isinstance(found, list) or len(found) != len(self.scales):
            count = len(found) if isinstance(found, list) else 1
            raise LossScaleError(f"the state is of {count} losses; expected {len(self.scales)} (num_losses).")
        for each in found:
            self.refuse(LossScale.from_dict(each))

    def load_dict(self, data: Dict[str, Any]) -> None:
        """Take the state that `to_dict` returned, or change nothing.

        Raises:
            LossScaleError: As `check_dict`.
            TrainerError: As `check_dict`.
        """
        super().load_dict(data)
        self.scales = [LossScale.from_dict(each) for each in data["loss_scales"]]
