"""Scales, layers and overrides in the words of a sentence."""

from __future__ import annotations

import re
from typing import Optional, Sequence

from ..explain import float32_overrides

_NAMES = 3  # of layers in a sentence
_OF_RNN = re.compile(r"(_[lr]\d+)?_(i2h|h2h|h2r)_(weight|bias)$")


def listed(names: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return the first names, each with its note, and how many more there are."""
    noted = [f"'{name}'" for name in names]
    noted = [f"{name} ({note})" for name, note in zip(noted, notes)] if notes else noted
    more = len(names) - _NAMES
    return ", ".join(noted[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, what: str) -> str:
    """Return a count with its noun: '1 step', '2,000 steps'."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def between(lowest: Optional[int], highest: Optional[int]) -> str:
    """Return the scales from 2**lowest to 2**highest; None is no end."""
    return ends(lowest, highest) if lowest is None or highest is None else f"2**{lowest} to 2**{highest}"


def ends(lowest: Optional[int], highest: Optional[int]) -> str:
    """Return the scale that is needed at the least, and the one that may be at the most; None is none."""
    found = [f"2**{lowest} at the least"] if lowest is not None else []
    found += [f"2**{highest} at the most"] if highest is not None else []
    return ", ".join(found) or "any"


def part(share: float) -> str:
    """Return a share in percent."""
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}"


def overrides(names: Sequence[str]) -> str:
    """Return overrides of a policy for the operators whose parameters are named.

    The parameters of a recurrent layer, such as 'lstm0_l0_i2h_weight', are of one operator, or of one for each step in
    time, which are named after the layer alone: 'lstm0_rnn0', 'lstm0_t0_i2h'.
    """
    layers = (_OF_RNN.sub("", name) if _OF_RNN.search(name) else name.rpartition("_")[0] for name in names)
    return float32_overrides((layer or name for layer, name in zip(layers, names)), ending="*")


def shown_overrides(names: Sequence[str]) -> str:
    """Return how a sentence gives the overrides for layers: to be pasted, or where they are if there are many."""
    return f"'{overrides(names)}'" if len(names) <= _NAMES else "Advice.overrides has the patterns"
