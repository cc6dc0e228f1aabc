"""A log of steps: loss, scale, gradient norm and shares over the run, with skips marked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..charts import Line, lines
from ..numbers import figure, finite, to_float
from ..page import Section, cards, grid
from ..tables import NUMBER, Column, table

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_SKIPS = 2000  # rows of their table


def steps_sections(steps: Sequence[Mapping[str, Any]]) -> List[Section]:
    """Return the sections of a log of steps.

    Args:
        steps: A dict for each step: 'step', 'seconds' since the run began, 'taken', 'scale', 'grad_norm', 'loss',
            'zero_share', 'subnormal_share', 'largest', 'error', 'why', any of them missing, or None where it is not
            known.
    """
    return [steps_section(steps, [cards(steps_cards(steps))])] if steps else []


def steps_section(steps: Sequence[Mapping[str, Any]], before: Sequence[Markup] = ()) -> Section:
    """Return charts of a log of steps and a table of those that were skipped, behind other blocks."""
    x = [_number(each, "step", i) for i, each in enumerate(steps)]
    marks = [at for at, each in zip(x, steps) if each.get("taken") is False]
    charts = _charts(x, steps, marks)
    blocks = [*before, *([grid(charts)] if charts else [])]
    names = "scale", "next_scale", "grad_norm"
    skips = [
        (int(at), *(each.get(name) for name in names), each.get("error") or each.get("why"))
        for at, each in zip(x, steps)
        if each.get("taken") is False
    ]
    if skips:
        columns = (
            Column("step", NUMBER),
            Column("scale", NUMBER),
            Column("next scale", NUMBER),
            Column("gradient norm", NUMBER),
            Column("why"),
        )
        blocks.append(table(columns, skips[:_MOST_SKIPS], "Skipped steps", "skipped steps"))
    return Section("Steps", tuple(blocks))


def steps_cards(steps: Sequence[Mapping[str, Any]]) -> List[Tuple[str, str, str]]:
    """Return the figures of a log of steps that matter most."""
    skipped = sum(each.get("taken") is False for each in steps)
    found = [("steps", f"{len(steps):,}", f"{skipped:,} skipped")]
    last = {name: _last(steps, name) for name in ("loss", "scale")}
    found += [(f"last {name}", figure(value), "") for name, value in last.items() if value is not None]
    times = _durations(steps)
    if times:
        found.append(("seconds per step", figure(times[len(times) // 2]), "median"))
    return found


def _durations(steps: Sequence[Mapping[str, Any]]) -> List[float]:
    """Return what the steps but the first took, sorted; where a run was resumed, time may go back, and is left out."""
    seconds = [to_float(each.get("seconds")) for each in steps]
    taken = (end - begin for begin, end in zip(seconds, seconds[1:]) if begin is not None and end is not None)
    return sorted(each for each in taken if 0 <= each < math.inf)


def _charts(x: List[float], steps: Sequence[Mapping[str, Any]], marks: List[float]) -> List[Any]:
    columns: Dict[str, List[Optional[float]]] = {
        name: [to_float(each.get(name)) for each in steps]
        for name in ("loss", "scale", "grad_norm", "zero_share", "subnormal_share", "largest")
    }
    shares = [Line("zero", columns["zero_share"]), Line("subnormal", columns["subnormal_share"])]
    wanted = [
        ("Loss", [Line("loss", columns["loss"])], "auto"),
        ("Loss scale", [Line("scale", columns["scale"])], "log2"),
        ("Norm of the gradients", [Line("norm", columns["grad_norm"])], "auto"),
        ("Shares of gradient elements", shares, "share"),
        ("Largest gradient", [Line("largest", columns["largest"])], "auto"),
    ]
    return [
        lines(caption, x, series, "step", scale, marks, "skipped step")
        for caption, series, scale in wanted
        if any(value is not None for line in series for value in line.values)
    ]


def scales_of(steps: Sequence[Mapping[str, Any]]) -> List[float]:
    """Return the scales of a log of steps that are known."""
    found = (finite(to_float(each.get("scale"))) for each in steps)
    return [each for each in found if each is not None]


def _number(step: Mapping[str, Any], name: str, default: float) -> float:
    value = to_float(step.get(name))
    return float(default) if value is None else value


def _last(steps: Sequence[Mapping[str, Any]], name: str) -> Optional[float]:
    return next((value for value in (to_float(each.get(name)) for each in reversed(steps)) if value is not None), None)
