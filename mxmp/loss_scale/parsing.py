"""Parsing of the short forms in which users give a loss scale."""

from __future__ import annotations

import numbers
from typing import Any

from ..errors import LossScaleError
from .base import LossScale, NoOpLossScale, StaticLossScale
from .dynamic import DynamicLossScale


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
    return StaticLossScale(float(spec))


def _unknown_spec(spec: Any) -> str:
    return f"unknown loss scale {spec!r}; expected 'dynamic', a number, a LossScale or None."
