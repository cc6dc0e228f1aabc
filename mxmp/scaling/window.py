"""The state of one step: from its first scaled loss to its update.

A window is an immutable value. Each of its methods that moves it on checks that it can, and returns the next one: from
READY (nothing scaled) to SCALED (a loss was scaled) to UNSCALED (gradients are true again).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, List, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.finite import merge_flags
from ..arrays.together import gather
from ..errors import TrainerError


class Stage(enum.Enum):
    """How far a window has come."""

    READY = "ready"
    SCALED = "scaled"
    UNSCALED = "unscaled"


@dataclasses.dataclass(frozen=True)
class Window:
    """What is known of the losses and gradients of one step.

    A flag is an array of shape (1,), float32, on a device: 1 or 0. It is read on the host once, by `read`.

    Attributes:
        scale: What the losses were multiplied by; fixed by the first one.
        stage: How far it has come.
        reduced: Whether the gradients were summed over contexts and workers.
        reached: Whether a backward pass came through a scaled loss.
        loss_flag: Whether every unscaled loss was finite. None: no loss.
        grad_flag: Whether every gradient was finite before it was unscaled. None: not unscaled.
        stats_flag: Whether no running statistics were lost. None: not looked at.
        masters_flag: Whether every low precision weight is what its float32 master rounds to. None: not looked at.
        finite: Whether the gradients are finite, once the host has read it.
        loss_finite: Whether every unscaled loss was finite, once the host has read it.
        stats_lost: Whether running statistics were lost, likewise.
        masters_follow: Whether the host has read that every low precision weight is what its float32 master rounds to.
    """

    scale: float = 1.0
    stage: Stage = Stage.READY
    reduced: bool = False
    reached: bool = False
    loss_flag: Optional[mx.nd.NDArray] = None
    grad_flag: Optional[mx.nd.NDArray] = None
    stats_flag: Optional[mx.nd.NDArray] = None
    masters_flag: Optional[mx.nd.NDArray] = None
    finite: Optional[bool] = None
    loss_finite: Optional[bool] = None
    stats_lost: bool = False
    masters_follow: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether no loss was scaled and no gradient reduced since the last step."""
        return self.stage is Stage.READY and not self.reduced

    @property
    def is_scaled(self) -> bool:
        """Whether a loss was scaled and the gradients are still scaled."""
        return self.stage is Stage.SCALED

    @property
    def is_unscaled(self) -> bool:
        """Whether the gradients were unscaled."""
        return self.stage is Stage.UNSCALED

    def require_can_scale(self, call: str, step: str = "step") -> None:
        """Raise if a further backward pass would mix gradients: after they were unscaled or reduced.

        ``call`` is the method that begins one, ``step`` that which ends the window.
        """
        if self.is_unscaled:
            raise TrainerError(
                f"{call} came after the gradients were unscaled; a further backward would mix scaled and true "
                f"gradients. Call {step} first, or unscale after the last backward."
            )
        if self.reduced:
            raise TrainerError(
                f"{call} came after allreduce_grads; a further backward would mix reduced and unreduced "
                "gradients. Call update first."
            )

    def scaled(self, scale: float, loss_flag: Optional[mx.nd.NDArray] = None) -> Window:
        """Return the window after a loss was multiplied by a scale; ``loss_flag``: whether it was finite."""
        self.require_can_scale("scale_loss")
        flags = [flag for flag in (self.loss_flag, loss_flag) if flag is not None]
        return self._with(scale=scale, stage=Stage.SCALED, loss_flag=merge_flags(flags) if flags else None)

    def rescaled(self, scale: float) -> Window:
        """Return the window after its gradients were multiplied to another scale."""
        if not self.is_scaled:
            raise TrainerError(f"the gradients of a window that is {self.stage.value} have no scale to be changed.")
        return self._with(scale=scale)

    def reached_by_backward(self) -> Window:
        """Return the window after a backward pass came through a scaled loss."""
        return self._with(reached=True)

    def after_reduce(self, loss_flag: Optional[mx.nd.NDArray]) -> Window:
        """Return the window after its gradients were summed; ``loss_flag`` is that of all workers."""
        if self.reduced:
            raise TrainerError("the gradients are reduced already; call update or step.")
        return self._with(reduced=True, loss_flag=loss_flag)

    def unscaled(self, grad_flag: Optional[mx.nd.NDArray]) -> Window:
        """Return the window after its gradients were divided by the scale; ``grad_flag`` is from before."""
        if self.is_unscaled:
            raise TrainerError("the gradients of this window are unscaled already; unscale them once, then step.")
        return self._with(stage=Stage.UNSCALED, grad_flag=grad_flag)

    def with_stats(self, stats_flag: Optional[mx.nd.NDArray]) -> Window:
        """Return the window with the flag of the running statistics, to be read with the others."""
        return self._with(stats_flag=stats_flag)

    def with_masters(self, masters_flag: Optional[mx.nd.NDArray]) -> Window:
        """Return the window with the flag of weights and their masters, to be read with the others."""
        return self._with(masters_flag=masters_flag)

    def decided(self, finite: bool) -> Window:
        """Return the window once it is known whether its gradients are finite; what was False stays False."""
        return self._with(finite=finite and self.finite is not False)

    def with_bad_loss(self) -> Window:
        """Return the window of a step that will be skipped, since its loss is not finite."""
        return self._with(finite=False, loss_finite=False)

    def read(self, values: Sequence[mx.nd.NDArray]) -> Tuple[List[float], Window]:
        """Copy float32 arrays of shape (1,) and the flags to the host, at once; return the numbers and the window.

        On a GPU an inf becomes a NaN. The window's ``finite`` is False if the gradients were not finite before they
        were unscaled, else None.
        """
        named = {"loss": self.loss_flag, "grad": self.grad_flag, "stats": self.stats_flag, "masters": self.masters_flag}
        flags = {name: flag for name, flag in named.items() if flag is not None}
        numbers: List[float] = gather([*values, *flags.values()]).asnumpy().tolist()
        good = {name: number == 1.0 for name, number in zip(flags, numbers[len(values) :])}
        window = self._with(
            loss_finite=good.get("loss", True),
            finite=None if good.get("grad", True) else False,
            stats_lost=not good.get("stats", True),
            masters_follow=good.get("masters", False),
        )
        return numbers[: len(values)], window

    def _with(self, **fields: Any) -> Window:
        return dataclasses.replace(self, **fields)
