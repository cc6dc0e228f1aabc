"""A run as a picture: one panel for each kind of series, the loss scale below."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Dict, List, Sequence, Union

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from examples.common.history import History

NOT_DRAWN = ("seconds", "step")
SCALE = "loss scale"
WINDOW = 10  # steps that a mean is taken over
WIDE = {10: 10.0, 2: 4.0}  # by base: the ratio of the largest to the smallest value from which an axis is logarithmic


def draw(history: History, path: Path, title: str) -> None:
    """Write a PNG with the series of a run: lines per step, points at the ends of epochs."""
    kinds: Dict[str, List[str]] = {}
    names = dict.fromkeys([*history.steps, *(name for epoch in history.epochs for name in epoch)])
    for name in sorted(names, key=lambda name: name == SCALE):
        if name not in NOT_DRAWN:
            kinds.setdefault(name.partition("/")[0], []).append(name)
    figure = Figure(figsize=(9, 2.6 * len(kinds) + 1), tight_layout=True)
    panels = np.atleast_1d(figure.subplots(len(kinds), 1, sharex=True))
    for axes, (kind, names) in zip(panels, kinds.items()):
        if kind == SCALE:
            draw_scales(axes, history.steps[SCALE], history.skipped, mark="C3", color="C0")
        else:
            _draw_panel(axes, history, kind, names)
        finish(axes, {SCALE: 2, "loss": 10}.get(kind, 0))
    panels[0].set_title(title)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    save(figure, path)


def draw_scales(axes: Any, scales: Sequence[Any], skipped: Sequence[int], mark: str, **style: Any) -> None:
    """Draw loss scales over the steps, and mark the skipped ones, which count from 1, in a color."""
    axes.step(range(1, len(scales) + 1), scales, where="mid", **style)
    axes.set_ylabel(SCALE)
    if skipped:
        axes.plot(skipped, [scales[step - 1] for step in skipped], "x", color=mark, label="skipped")


def finish(axes: Any, base: int) -> None:
    """Add grid and legend; make the y axis logarithmic where its lines span enough for ticks at powers of a base.

    Args:
        axes: With lines.
        base: 10, 2, or 0 for an axis that is linear.
    """
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()] or [[]])
    values = values[np.isfinite(values)]
    if base and values.size and values.min() > 0 and values.max() >= WIDE[base] * values.min():
        axes.set_yscale("log", base=base)
    elif base:
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def save(figure: Figure, path: Union[str, Path]) -> None:
    """Write a figure as a PNG, whole or not at all."""
    content, new = io.BytesIO(), Path(f"{path}.new")
    figure.savefig(content, dpi=120, format="png")
    try:
        new.write_bytes(content.getvalue())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def smooth(values: Sequence[Any]) -> List[float]:
    """Return the mean of each value and those of the steps before it, `WINDOW` together."""
    numbers = np.array(values, float)
    return [float(np.mean(numbers[max(0, i - WINDOW + 1) : i + 1])) for i in range(len(numbers))]


def _draw_panel(axes: Any, history: History, kind: str, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        label, values = name.partition("/")[2], history.steps.get(name, [])
        if values:
            axes.plot(range(1, len(values) + 1), smooth(values), color=f"C{number}", label=label or "training")
        ends = [(epoch["step"], epoch[name]) for epoch in history.epochs if name in epoch]
        if ends:
            color, label = f"C{number + len(names)}", f"{label} held out".strip()
            axes.plot(*np.array(ends, float).T, "o-", color=color, label=label)
    axes.set_ylabel(f"{kind}, mean of {WINDOW} steps" if kind in history.steps else kind)
