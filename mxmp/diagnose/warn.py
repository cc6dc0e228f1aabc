"""Warnings of what is not finite in a network that is measured."""

from __future__ import annotations

import logging
from typing import Dict, Mapping, Sequence

from ..probe.largest_values import LargestValues
from .magnitudes import Magnitudes

_LOG = logging.getLogger(__name__)
_NAMED = 3  # tensors that a warning names


def warn_of_nans(runs: Sequence[LargestValues]) -> None:
    """Warn of NaN in inputs, or that networks have made; what comes first is where it begins."""
    found: Dict[str, int] = {}
    for run in runs:
        found.update(run.nans)
    _warn("measure_ranges: NaN in", found, "ranges are those of the other elements, 0 where there are none")


def warn_of_nonfinite(counted: Mapping[str, Magnitudes]) -> None:
    """Warn of gradients that are inf or NaN."""
    found = {name: each.nonfinite for name, each in counted.items() if each.nonfinite}
    _warn("measure_gradients: inf or NaN in the gradients of", found, "all others are counted")


def _warn(what: str, found: Mapping[str, int], otherwise: str) -> None:
    if found:
        named = ", ".join(f"'{name}' ({count} elements)" for name, count in list(found.items())[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        text = "%s %s%s, in float32; %s. diagnose.find_nonfinite says where it comes from."
        _LOG.warning(text, what, named, more, otherwise)
