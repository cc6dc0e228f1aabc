"""A run as a picture: one panel for each kind of series, the loss scale below."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence, Union

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mxmp.files import replacing

from examples.common.history import History

NOT_DRAWN = ("seconds", "step")
WINDOW = 10  # steps that a mean is taken over
WIDE = {10: 10.0, 2: 4.0}  # by base: the ratio of the largest to the smallest value from which an axis is logarithmic


def draw(history: History, path: Path, title: str) -> None:
    """Write a PNG with the series of a run: lines per step, points at the ends of epochs.

    Args:
        history: The run.
        path: The file.
        title: Stands above.
    """
    kinds = _kinds(history)
    figure = Figure(figsize=(9, 2.6 * len(kinds) + 1), tight_layout=True)
    panels = np.atleast_1d(figure.subplots(len(kinds), 1, sharex=True))
    for axes, (kind, names) in zip(panels, kinds.items()):
        _draw_panel(axes, history, kind, names)
    panels[0].set_title(title)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    save(figure, path)


def save(figure: Figure, path: Union[str, Path]) -> None:
    """Write a figure as a PNG, whole or not at all."""
    with replacing(str(path)) as (name,):
        figure.savefig(name, dpi=120, format="png")


def set_scale(axes: Any, base: int) -> None:
    """Make the y axis logarithmic where its lines span enough for ticks at powers of a base, else linear.

    Args:
        axes: With lines.
        base: 10 or 2.
    """
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()] or [[]])
    values = values[np.isfinite(values)]
    if values.size and values.min() > 0 and values.max() >= WIDE[base] * values.min():
        axes.set_yscale("log", base=base)
    else:
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)


def mark_skipped(axes: Any, skipped: Sequence[int], scales: Sequence[float], color: str) -> None:
    """Mark the skipped steps, numbered from 1, on a line of loss scales."""
    if skipped:
        axes.plot(skipped, [scales[step - 1] for step in skipped], "x", color=color, label="skipped")


def smooth(values: Sequence[float], window: int = WINDOW) -> List[float]:
    """Return the mean of each value and those up to ``window - 1`` steps before it."""
    return [float(np.mean(values[max(0, i - window + 1) : i + 1])) for i in range(len(values))]


def _kinds(history: History) -> Dict[str, List[str]]:
    """Return the names of the series by what they are, the loss scale last."""
    names = list(dict.fromkeys([*history.steps, *(name for epoch in history.epochs for name in epoch)]))
    kinds: Dict[str, List[str]] = {}
    for name in sorted(names, key=lambda name: name.startswith("loss scale")):
        if name not in NOT_DRAWN:
            kinds.setdefault(name.partition("/")[0], []).append(name)
    return kinds


def _draw_panel(axes: Any, history: History, kind: str, names: Sequence[str]) -> None:
    exact = kind == "loss scale"
    for number, name in enumerate(names):
        color, label = f"C{number}", name.partition("/")[2]
        values = history.steps.get(name, [])
        if exact:
            axes.step(range(1, len(values) + 1), values, where="mid", color=color, label=label or None)
            mark_skipped(axes, history.skipped, values, "C3")
        elif values:
            axes.plot(range(1, len(values) + 1), smooth(values), color=color, label=f"{label or 'training'}")
        ends = [(epoch["step"], epoch[name]) for epoch in history.epochs if name in epoch]
        if ends:
            axes.plot(*zip(*ends), "o-", color=f"C{number + len(names)}", label=f"{label} held out".strip())
    axes.set_ylabel(kind if exact else f"{kind}, mean of {WINDOW} steps" if kind in history.steps else kind)
    if exact or kind == "loss":
        set_scale(axes, 2 if exact else 10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
