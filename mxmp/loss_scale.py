"""Loss scales as immutable values: none, static, dynamic.

A loss scale multiplies the loss, so that small gradients survive a format with few exponent bits, and divides the
gradients again before the update. The classes here only hold numbers and decide which scale comes next; the trainer
multiplies the loss and skips the step.

References:
    Micikevicius et al., "Mixed Precision Training", 2017, section 3.2, https://arxiv.org/abs/1710.03740
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import math
import numbers
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Type, cast, final

from .errors import LossScaleError, check_fields
from .names import hooks as _hooks

globals().update(_hooks(__name__))

_LOG = logging.getLogger(__name__)

AT_FLOOR = ("raise", "warn", "hold")
"""What a dynamic scale can do when its floor does not help."""

# How a dynamic scale without an init_scale finds its level; docs/performance.md has the measurements.
_WARM_UP_START = 2.0**8  # Few gradients are lost from here on.
_WARM_UP_END = 2.0**15  # The largest power of two in float16, so that a float16 loss bears it.
_WARM_UP_BACKOFF = 2.0**-3  # Leaves room for gradients that grow, as those of a GAN do.

# Scale and inverse must be normal float32 numbers, because losses are scaled and gradients unscaled in float32.
SMALLEST_SCALE = 2.0**-126
LARGEST_SCALE = 2.0**126


class LossScale(abc.ABC):
    """A factor for the loss, and the rule that gives the next factor.

    Attributes:
        value: The present factor, positive and finite.
    """

    value: float
    kind: ClassVar[str]

    def scale(self, value: Any) -> Any:
        """Return ``value`` times the scale, in the dtype of ``value``.

        Args:
            value: A float, a numpy array, an NDArray, or anything else that has ``*``. Cast
                low precision values up first: 65536 times a float16 loss is inf.
        """
        return value * self.value

    def unscale(self, value: Any) -> Any:
        """Return ``value`` divided by the scale, in the dtype of ``value``.

        Exactly undoes `scale` if the scale is a power of two and nothing leaves the normal range.
        """
        return value * (1.0 / self.value)

    @abc.abstractmethod
    def adjust(self, grads_finite: bool) -> LossScale:
        """Return the loss scale for the next step.

        Args:
            grads_finite: Whether every gradient of the step was finite.

        Raises:
            LossScaleError: If a dynamic scale gives up; see `DynamicLossScale`.
        """

    def to_dict(self) -> Dict[str, Any]:
        """Return every field as plain JSON data; `from_dict` is the inverse."""
        return {"kind": self.kind, **{name: getattr(self, name) for name in _fields(type(self))}}

    def _repr_html_(self) -> str:
        """Return the fields as HTML for a notebook, one to a line."""
        from .display import Facts, Section, page  # Only when it is shown, not with every import of mxmp.

        values = self.to_dict().items()
        pairs = [(name, f"{value:,.10g}" if isinstance(value, float) else str(value)) for name, value in values]
        return page.fragment("Loss scale", [Section("Loss scale", [Facts(pairs)])])

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LossScale:
        """Return the loss scale that `to_dict` described.

        Raises:
            LossScaleError: If a field is missing, unknown or invalid.
        """
        if not isinstance(data, Mapping):
            raise LossScaleError(f"a loss scale's state is {data!r}; expected a dict.")
        kind = data.get("kind")
        kinds: Iterable[Any] = (NoOpLossScale, StaticLossScale, DynamicLossScale)
        cls = next((each for each in kinds if each.kind == kind), None)
        if cls is None:
            raise LossScaleError(f"a loss scale's state has kind {kind!r}; expected 'noop', 'static' or 'dynamic'.")
        fields = {name: value for name, value in data.items() if name != "kind"}
        check_fields(f"the state of a {kind} loss scale", fields, _fields(cls), LossScaleError)
        for name, value in fields.items():
            if value is None:  # It would silently mean the default.
                raise LossScaleError(f"{name} is null in a loss scale's state; expected a value.")
        return cast(LossScale, cls(**fields))


def _fields(cls: Type[LossScale]) -> List[str]:
    return [field.name for field in dataclasses.fields(cast(Any, cls)) if field.init]


@final
@dataclasses.dataclass(frozen=True)
class NoOpLossScale(LossScale):
    """No scaling, for float32 and for bfloat16, which has the exponent range of float32.

    Example:
        >>> NoOpLossScale().value
        1.0
    """

    kind = "noop"
    value: float = dataclasses.field(default=1.0, init=False)

    def scale(self, value: Any) -> Any:
        """Return ``value`` itself."""
        return value

    def unscale(self, value: Any) -> Any:
        """Return ``value`` itself."""
        return value

    def adjust(self, grads_finite: bool) -> NoOpLossScale:
        """Return this object."""
        return self


@final
@dataclasses.dataclass(frozen=True)
class StaticLossScale(LossScale):
    """A scale that never changes.

    Args:
        value: The factor, positive and finite; a power of two adds no rounding error.

    Raises:
        LossScaleError: If ``value`` is no factor.

    Example:
        >>> StaticLossScale(128).scale(0.5)
        64.0
    """

    kind = "static"
    value: float

    def __post_init__(self) -> None:
        """Validate and normalise the field."""
        object.__setattr__(self, "value", factor("scale", self.value))

    def adjust(self, grads_finite: bool) -> StaticLossScale:
        """Return this object."""
        return self


@final
@dataclasses.dataclass(frozen=True)
class DynamicLossScale(LossScale):
    """A scale that grows while gradients stay finite and backs off when they do not.

    After a non-finite step the scale is multiplied by ``backoff_factor``; after ``growth_interval`` finite steps in a
    row, by ``growth_factor``. It never leaves ``[min_scale, max_scale]``. With ``hysteresis`` above 1 the first
    back-off since the scale last grew needs that many non-finite steps. Each later one backs off at once.

    Without an ``init_scale`` the scale warms up. It starts at 256 and doubles after every finite step, up to 32768.
    The first non-finite step ends the warm-up and divides the scale by 8. That costs one skipped step; halving from
    65536 costs several. After the warm-up the scale moves as said above.

    At the floor a back-off is impossible, and gradients that stay non-finite there are a fault of the model, not of
    the scale. After ``max_floor_skips`` such steps in a row ``at_floor`` decides: 'raise' an error, 'warn' in the log,
    or 'hold' still.

    Args:
        init_scale: The first scale. Not given, it is 256, or the nearest in ``[min_scale, max_scale]``, and warms up.
        growth_factor: Above 1.
        backoff_factor: Between 0 and 1, both excluded.
        growth_interval: Steps; at least 1.
        min_scale: The floor; positive.
        max_scale: The ceiling.
        hysteresis: Steps; at least 1, which means none.
        at_floor: 'raise', 'warn' or 'hold'.
        max_floor_skips: Steps; at least 1.
        value: State: the present scale; ``init_scale`` if not given.
        growth_tracker: State: finite steps in a row since the scale last moved.
        hysteresis_tracker: State: non-finite steps up to the next back-off; ``hysteresis`` if not given.
        floor_skips: State: non-finite steps in a row at the floor.
        warming_up: State: whether the scale is still warming up.

    Raises:
        LossScaleError: If a field is invalid or the fields contradict each other.

    Example:
        >>> DynamicLossScale(init_scale=2.0**16).adjust(grads_finite=False).value
        32768.0
        >>> DynamicLossScale().adjust(grads_finite=True).value
        512.0

    References:
        Hysteresis: DynamicGradScaler of Megatron-LM, megatron/core/optimizer/grad_scaler.py.
    """

    kind = "dynamic"
    init_scale: float = cast(float, None)
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0**24
    hysteresis: int = 1
    at_floor: str = "raise"
    max_floor_skips: int = 50
    value: float = cast(float, None)
    growth_tracker: int = 0
    hysteresis_tracker: int = cast(int, None)
    floor_skips: int = 0
    warming_up: bool = cast(bool, None)

    def __post_init__(self) -> None:
        """Validate and normalise every field."""
        for name in ("min_scale", "max_scale"):
            object.__setattr__(self, name, factor(name, getattr(self, name)))
        self._complete()
        floats = {"init_scale": factor, "value": factor, "growth_factor": real, "backoff_factor": real}
        for name, read in floats.items():
            object.__setattr__(self, name, read(name, getattr(self, name)))
        for name in ("growth_interval", "hysteresis", "max_floor_skips"):
            count(name, getattr(self, name), 1)
        for name in ("growth_tracker", "hysteresis_tracker", "floor_skips"):
            count(name, getattr(self, name), 0)
        self._check_options()
        self._check_state()

    def __repr__(self) -> str:
        """Return the value and the fields that it does not have by default; it evaluates to an equal scale."""
        unset = {"init_scale": self._nearest(), "hysteresis_tracker": self.hysteresis, "warming_up": False}
        fields = [(field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in fields if value != unset.get(name, default)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _nearest(self) -> float:
        """Return the first scale of a warm-up."""
        return min(max(_WARM_UP_START, self.min_scale), self.max_scale)

    def _complete(self) -> None:
        """Set the fields that were not given."""
        states = ("init_scale", "value", "hysteresis_tracker", "warming_up")
        missing = {name for name in states if getattr(self, name) is None}
        first = self._nearest() if "init_scale" in missing else self.init_scale
        for name, default in zip(states, (first, first, self.hysteresis, {"init_scale", "value"} <= missing)):
            if name in missing:
                object.__setattr__(self, name, default)

    def _check_options(self) -> None:
        if not 1.0 < self.growth_factor < math.inf:
            raise LossScaleError(
                f"growth_factor={self.growth_factor} would never raise the scale; expected a finite number above 1."
            )
        if not 0.0 < self.backoff_factor < 1.0:
            raise LossScaleError(
                f"backoff_factor={self.backoff_factor} would not lower the scale; expected a number between 0 and 1, "
                "both excluded."
            )
        if self.min_scale > self.max_scale:
            raise LossScaleError(f"min_scale={self.min_scale} is above max_scale={self.max_scale}.")
        if self.at_floor not in AT_FLOOR:
            raise LossScaleError(f"unknown at_floor {self.at_floor!r}; expected 'raise', 'warn' or 'hold'.")

    def _check_state(self) -> None:
        bounds = f"[min_scale={self.min_scale}, max_scale={self.max_scale}]"
        for name in ("init_scale", "value"):
            if not self.min_scale <= getattr(self, name) <= self.max_scale:
                raise LossScaleError(f"{name}={getattr(self, name)} lies outside {bounds}.")
        if self.growth_tracker >= self.growth_interval:
            raise LossScaleError(
                f"growth_tracker={self.growth_tracker} has passed growth_interval={self.growth_interval}; expected a "
                "smaller one. Reset growth_tracker to 0 when you shorten the interval."
            )
        if not isinstance(self.warming_up, bool):
            raise LossScaleError(f"warming_up={self.warming_up!r}; expected True or False.")
        if self.hysteresis_tracker > self.hysteresis:
            raise LossScaleError(f"hysteresis_tracker={self.hysteresis_tracker} is above hysteresis={self.hysteresis}.")

    def adjust(self, grads_finite: bool) -> DynamicLossScale:
        """Return the loss scale for the next step.

        Args:
            grads_finite: Whether every gradient of the step was finite.

        Raises:
            LossScaleError: If ``at_floor='raise'`` and this is the last of ``max_floor_skips`` in a row at the floor.
        """
        return self._after_finite() if grads_finite else self._after_non_finite()

    def _moved(self, **state: Any) -> DynamicLossScale:
        """Return this scale with another state, which is not checked again: a step makes one."""
        moved = object.__new__(DynamicLossScale)
        vars(moved).update(vars(self), **state)
        return moved

    def _after_finite(self) -> DynamicLossScale:
        end = min(_WARM_UP_END, self.max_scale)
        if self.warming_up and self.value < end:
            return self._moved(value=min(2.0 * self.value, end), floor_skips=0)
        # At max_scale it grows by nothing, but the tracker and the hysteresis start anew, as in Megatron-LM.
        tracker = self.growth_tracker + 1
        grows = tracker >= self.growth_interval
        return self._moved(
            value=min(self.value * self.growth_factor, self.max_scale) if grows else self.value,
            growth_tracker=0 if grows else tracker,
            hysteresis_tracker=self.hysteresis if grows else self.hysteresis_tracker,
            floor_skips=0,
            warming_up=False,
        )

    def _after_non_finite(self) -> DynamicLossScale:
        # The step in which the scale reaches the floor does not count: it was taken at a larger scale.
        floor_skips = self.floor_skips + 1 if self.value <= self.min_scale else 0
        if floor_skips and floor_skips % self.max_floor_skips == 0:
            if self.at_floor == "raise":
                raise LossScaleError(floor_message(floor_skips, self.min_scale))
            if self.at_floor == "warn":
                _LOG.warning(floor_message(floor_skips, self.min_scale))
        factor, tracker = _WARM_UP_BACKOFF, self.hysteresis_tracker
        if not self.warming_up:
            tracker = max(tracker - 1, 0)
            factor = 1.0 if tracker else self.backoff_factor
        return self._moved(
            value=max(self.value * factor, self.min_scale),
            growth_tracker=0,
            hysteresis_tracker=tracker,
            floor_skips=floor_skips,
            warming_up=False,
        )


def parse(spec: Any) -> LossScale:
    """Return the loss scale that a short form means.

    Args:
        spec: 'dynamic'; a number, also as a string, for a static scale; None; a `LossScale`, which comes back.

    Raises:
        LossScaleError: If it is none of these, or the number is no factor.

    Example:
        >>> parse(512)
        StaticLossScale(value=512.0)
    """
    if isinstance(spec, LossScale):
        return spec
    if spec is None:
        return NoOpLossScale()
    if isinstance(spec, str):
        if spec.strip().lower() == "dynamic":
            return DynamicLossScale()
        try:
            spec = float(spec)
        except ValueError as e:
            raise LossScaleError(_unknown_spec(spec)) from e
    if isinstance(spec, bool) or not isinstance(spec, numbers.Real):
        raise LossScaleError(_unknown_spec(spec))
    return StaticLossScale(real("loss_scale", spec))


def _unknown_spec(spec: Any) -> str:
    return f"unknown loss scale {spec!r}; expected 'dynamic', a number, a LossScale or None."


def floor_message(skips: int, min_scale: float, first_bad: str = "") -> str:
    """Return the message for gradients that stay non-finite at the floor for ``skips`` steps in a row.

    ``first_bad`` says where the gradients went bad, if known: "'fc1_weight' at step 1312".
    """
    where = f"; first bad gradient: {first_bad}" if first_bad else ""
    return (
        f"gradients non-finite for {skips} steps in a row and the scale is at min_scale={min_scale}{where}. Lower the "
        "learning rate, or keep the layer in float32 by an override of the policy."
    )


def real(name: str, value: Any) -> float:
    """Return a number as a float, or raise LossScaleError with its name."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise LossScaleError(f"{name} is {value!r}; expected a number.")
    try:
        return float(value)
    except OverflowError:
        raise LossScaleError(f"{name} is {value!r:.80}; expected a number within the range of a float.") from None


def factor(name: str, value: Any) -> float:
    """Return a loss scale as a float, or raise LossScaleError with its name."""
    number = real(name, value)
    if not SMALLEST_SCALE <= number <= LARGEST_SCALE:  # False for NaN as well
        raise LossScaleError(
            f"{name}={number} is no loss scale; expected a positive, finite number between 2**-126 and 2**126, so "
            "that it and its inverse are float32 numbers."
        )
    return number


def count(name: str, value: Any, least: int) -> None:
    """Check that a number of steps is whole and at least ``least``, or raise LossScaleError with its name."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LossScaleError(f"{name}={value!r}; expected a whole number of at least {least}.")
