"""Loss scales that do not change: the interface, no scaling, a static factor."""

from __future__ import annotations

import abc
import dataclasses
import numbers
from typing import Any, ClassVar, Dict, List, Mapping, Type, cast, final

from ..errors import LossScaleError, check_fields

# Scale and inverse must be normal float32 numbers, because losses are scaled and gradients unscaled in float32.
SMALLEST_SCALE = 2.0**-126
LARGEST_SCALE = 2.0**126


class LossScale(abc.ABC):
    """A factor for the loss, and the rule that gives the next factor.

    Attributes:
        value: The present factor, positive and finite.
    """

    value: float
    _KINDS: ClassVar[Dict[str, Type[LossScale]]] = {}
    _kind: ClassVar[str]
    _OLD_DEFAULTS: ClassVar[Dict[str, Any]] = {}  # fields that states of older versions lack

    def __init_subclass__(cls, kind: str = "", **kwargs: Any) -> None:
        """Register a kind of loss scale that `from_dict` can make."""
        super().__init_subclass__(**kwargs)
        cls._kind = kind
        if kind:
            LossScale._KINDS[kind] = cls

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
        return {"kind": self._kind, **{name: getattr(self, name) for name in _fields(type(self))}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> LossScale:
        """Return the loss scale that `to_dict` described.

        Raises:
            LossScaleError: If a field is missing, unknown or invalid.
        """
        if not isinstance(data, Mapping):
            raise LossScaleError(f"a loss scale's state is {data!r}; expected a dict.")
        kind = data.get("kind")
        cls = LossScale._KINDS.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise LossScaleError(f"a loss scale's state has kind {kind!r}; expected 'noop', 'static' or 'dynamic'.")
        fields = {**cls._OLD_DEFAULTS, **{name: value for name, value in data.items() if name != "kind"}}
        check_fields(f"the state of a {kind} loss scale", fields, _fields(cls), LossScaleError)
        for name, value in fields.items():
            if value is None:  # would silently mean the default
                raise LossScaleError(f"{name} is null in a loss scale's state; expected a value.")
        return cls(**fields)


def _fields(cls: Type[LossScale]) -> List[str]:
    return [field.name for field in dataclasses.fields(cast(Any, cls)) if field.init]


@final
@dataclasses.dataclass(frozen=True)
class NoOpLossScale(LossScale, kind="noop"):
    """No scaling, for float32 and for bfloat16, which has the exponent range of float32.

    Example:
        >>> NoOpLossScale().value
        1.0
    """

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
class StaticLossScale(LossScale, kind="static"):
    """A scale that never changes.

    Args:
        value: The factor, positive and finite; a power of two adds no rounding error.

    Raises:
        LossScaleError: If ``value`` is no factor.

    Example:
        >>> StaticLossScale(128).scale(0.5)
        64.0
    """

    value: float

    def __post_init__(self) -> None:
        """Validate and normalise the field."""
        object.__setattr__(self, "value", factor("scale", self.value))

    def adjust(self, grads_finite: bool) -> StaticLossScale:
        """Return this object."""
        return self


def real(name: str, value: Any) -> float:
    """Return a number as a float, or raise LossScaleError with its name."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise LossScaleError(f"{name} is {value!r}; expected a number.")
    return float(value)


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
