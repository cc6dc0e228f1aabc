"""A ledger of gradients: what vanished, what was subnormal, what overflowed, by layer and over the run."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

from ..histograms import RANGES, histogram, power
from ..numbers import figure, to_float
from ..page import Section, cards, notes
from ..tables import HISTOGRAM, NUMBER, SHARE, Column, table

if TYPE_CHECKING:
    from markupsafe import Markup


def ledger_sections(ledger: Mapping[str, Any]) -> List[Section]:
    """Return the sections of a ledger, given what its ``to_dict`` returns."""
    return [gradients_section(ledger, (cards(ledger_cards(ledger)), notes("Advice", ledger.get("advice") or ())))]


def gradients_section(ledger: Mapping[str, Any], before: Sequence[Markup] = ()) -> Section:
    """Return a ledger's histogram and table, behind other blocks."""
    dtype = ledger["dtype"] if ledger["dtype"] in RANGES else "float16"
    layers, blocks = ledger["layers"], list(before)
    counts, zeros = _sum(layers), sum(map(_zeros, layers))
    if counts or zeros:
        blocks.append(histogram(f"All gradients, against {dtype}'s range", counts, dtype, zeros))
    blocks.append(table(_columns(dtype), [_row(layer) for layer in layers], "Gradients by layer", "layers"))
    every, sampled = ledger["every"], ledger["sampled"]
    steps = "1 sampled step" if sampled == 1 else f"{sampled:,} sampled steps"
    lead = f"Gradients as they were, times the loss scale, in {steps}, one in {every:,}."
    return Section("Gradients", tuple(blocks), lead)


def ledger_cards(ledger: Mapping[str, Any]) -> List[Tuple[str, str, str]]:
    """Return the figures of a ledger that matter most."""
    steps, skipped, scale = ledger["steps"], ledger["skipped"], ledger.get("scale") or {}
    found = [
        ("steps", figure(steps), f"{ledger['sampled']:,} sampled"),
        ("skipped", figure(skipped), _part(skipped, steps)),
    ]
    if scale.get("last") is not None:
        found.append(("loss scale at the end", figure(scale["last"]), _advised(scale)))
    return found


def _columns(dtype: str) -> List[Column]:
    return [
        Column("layer"),
        Column("elements", NUMBER, "Number of the gradient's elements"),
        Column("zero", SHARE, "Share that is zero: behind a ReLU that is off, or because it vanished"),
        Column("subnormal", SHARE, f"Share below {dtype}'s normal range, with fewer digits"),
        Column("largest", NUMBER, "Largest magnitude"),
        Column("skips", NUMBER, "Skipped steps in which of no other gradient a smaller share was not finite"),
        Column("lost updates", SHARE, "Share of updates below half a bit of the weight, which change nothing"),
        Column("magnitudes", HISTOGRAM, f"By powers of two, without zeros; shaded where {dtype} has none", dtype),
    ]


def _row(layer: Mapping[str, Any]) -> Tuple[Any, ...]:
    names = "name", "elements", "zero_share", "subnormal_share", "largest", "skips", "lost_update_share", "histogram"
    return tuple(layer.get(name) for name in names)


def _sum(layers: List[Mapping[str, Any]]) -> Dict[int, float]:
    total: Counter[int] = Counter()
    for layer in layers:
        total.update({int(key): count for key, count in (layer.get("histogram") or {}).items()})
    return {exponent: float(count) for exponent, count in total.items()}


def _zeros(layer: Mapping[str, Any]) -> int:
    """Return how many counted elements of a layer are 0, 0 where that was not kept."""
    return sum(int(each.get("zero", 0)) for each in (layer.get("counts") or {}).values())


def _advised(scale: Mapping[str, Any]) -> str:
    """Return between what scales the ledger advises to stay, as far as it knows."""
    ends = [(word, scale.get(name)) for word, name in (("at least", "lowest"), ("at most", "highest"))]
    known = [f"{word} {_power(value)}" for word, value in ends if value is not None]
    return f"advised: {', '.join(known)}" if known else ""


def _power(value: Any) -> str:
    """Return a scale, as a power of two if it is one."""
    fraction, exponent = math.frexp(to_float(value) or 0.0)
    return power(exponent - 1) if fraction == 0.5 else figure(value)


def _part(count: int, total: int) -> str:
    return f"{100 * count / total:.2g} % of them" if total and count else ""
