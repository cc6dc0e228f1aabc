"""What `LossScaleOptimizer` has of Keras' optimizers: arguments, defaults and properties."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import mxnet as mx

from ..errors import LossScaleError, TrainerError
from ..loss_scale import LARGEST_SCALE, DynamicLossScale, LossScale, StaticLossScale
from ..train.masters import MultiPrecision
from ..train.scaler import ScalerStatus
from .whole_step import WholeStepOptimizer

# The defaults of tf.keras 2.12.
INITIAL_SCALE = 2.0**15
DYNAMIC_GROWTH_STEPS = 2000


class KerasOptimizer(ScalerStatus, WholeStepOptimizer):
    """The properties of Keras' LossScaleOptimizer; it shows attributes alone once it has an owner."""

    _owner: Optional[str]

    @property
    def inner_optimizer(self) -> mx.optimizer.Optimizer:
        """The optimizer that was given."""
        return self.inner

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return isinstance(self._scaler.loss_scale, DynamicLossScale)

    @property
    def initial_scale(self) -> float:
        """The first scale."""
        scale = self._scaler.loss_scale
        return scale.init_scale if isinstance(scale, DynamicLossScale) else scale.value

    @property
    def dynamic_growth_steps(self) -> Optional[int]:
        """Finite steps after which the scale doubles; None if it does not."""
        scale = self._scaler.loss_scale
        return scale.growth_interval if isinstance(scale, DynamicLossScale) else None

    @property  # type: ignore[override]  # a number, as Keras has it
    def loss_scale(self) -> float:
        """The present scale. May be set between steps."""
        self._require_own("loss_scale")
        return self._scaler.loss_scale.value

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        """Set the scale of the steps to come."""
        self._require_ready("setting loss_scale")
        present = self._scaler.loss_scale
        if isinstance(present, DynamicLossScale):
            value = StaticLossScale(value).value
            self._scaler.loss_scale = dataclasses.replace(present, value=value, growth_tracker=0, floor_skips=0)
        else:
            self._scaler.loss_scale = StaticLossScale(value)

    @property
    def iterations(self) -> int:
        """Steps taken; skipped ones do not count."""
        return int(self.num_update - self.begin_num_update)

    @property
    def learning_rate(self) -> float:
        """The inner optimizer's present learning rate."""
        return float(self.inner.learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        """Set the inner optimizer's learning rate."""
        self.inner.set_learning_rate(value)

    def _require_own(self, call: str) -> None:
        if self._owner is not None:
            raise TrainerError(
                f"{call}: this optimizer belongs to a {self._owner} already, whose own methods scale the loss and step."
            )

    def _require_ready(self, call: str) -> None:
        self._require_own(call)
        if not self._scaler.state.is_ready:
            raise TrainerError(
                f"{call} came between get_scaled_loss and apply_gradients; call apply_gradients first, or "
                "discard_grads to give the step up."
            )


def wrapped(inner: Any) -> MultiPrecision:
    """Return an optimizer that was given, with masters; raise if it is none, has a loss scale, or is a trainer's."""
    if isinstance(inner, KerasOptimizer):
        raise TrainerError(
            "inner is a LossScaleOptimizer, which has a loss scale already; wrap the optimizer in it once."
        )
    if not isinstance(inner, mx.optimizer.Optimizer):
        raise TrainerError(
            f"inner is {inner!r}; expected an mx.optimizer.Optimizer. Create it by name with mx.optimizer.create."
        )
    if inner.param_dict:
        raise TrainerError("inner is the optimizer of a trainer, which would go on using it; make another one.")
    return inner if isinstance(inner, MultiPrecision) else MultiPrecision(inner)


def make_loss_scale(dynamic: Any, initial_scale: Any, growth_steps: Any) -> LossScale:
    """Return the loss scale that the arguments of `LossScaleOptimizer` mean.

    Raises LossScaleError if they contradict each other, or are no numbers.
    """
    if not isinstance(dynamic, bool):
        raise LossScaleError(f"dynamic is {dynamic!r}; expected True or False.")
    if not dynamic and growth_steps is not None:
        raise LossScaleError(f"dynamic_growth_steps={growth_steps!r} with dynamic=False: a static scale does not grow.")
    if not dynamic and initial_scale is None:
        raise LossScaleError("initial_scale is missing: with dynamic=False the scale has to be given, such as 1024.")
    try:
        if not dynamic:
            return StaticLossScale(initial_scale)
        return DynamicLossScale(
            init_scale=INITIAL_SCALE if initial_scale is None else initial_scale,
            growth_interval=DYNAMIC_GROWTH_STEPS if growth_steps is None else growth_steps,
            max_scale=LARGEST_SCALE,
        )
    except LossScaleError as e:
        given = f"initial_scale={initial_scale!r}, dynamic_growth_steps={growth_steps!r}"
        raise LossScaleError(f"{given}: {e}") from e
