"""A ledger on a terminal: its layers, what it says, and two runs side by side."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import visible
from .advice import Advice
from .layer import Layer, shares
from .steps import log2
from .words import between

if TYPE_CHECKING:
    from .ledger import Ledger

WIDTH = 120
"""Columns of what is printed to no terminal, as of the project's other reports."""

ROWS = 20
"""Layers of a table at most."""


def table(ledger: Ledger) -> Table:
    """Return a table of the layers: those that caused most skips, then those that lose most."""
    layers = sorted(ledger.layers, key=lambda layer: _loss(layer, ledger.dtype), reverse=True)
    title = f"Gradients in {ledger.dtype}: {ledger.sampled} samples in {ledger.steps} steps"
    found = _table(title, len(layers))
    for column in ("elements", "zero", "subnormal", "largest", "skips", "lost updates"):
        found.add_column(column, justify="right")
    for layer in layers[:ROWS]:
        found.add_row(Text(visible(layer.name)), f"{layer.elements:,}", *_cells(layer, ledger.dtype))
    return found


def comparison(first: Ledger, second: Ledger) -> Table:
    """Return a table of the layers of two runs, those whose zeros and subnormals differ most first."""
    ours, theirs = ({layer.name: layer for layer in ledger.layers} for ledger in (first, second))
    names = sorted(
        dict.fromkeys([*ours, *theirs]), key=lambda name: -_difference(ours.get(name), theirs.get(name), first)
    )
    found = _table(
        f"This run, and another: {first.steps} steps in {first.dtype}, {second.steps} in {second.dtype}", len(names)
    )
    for column in ("zero", "subnormal", "largest", "skips", "lost updates"):
        found.add_column(f"{column}\nthis / other", justify="right")
    for name in names[:ROWS]:
        left, right = (
            ["-"] * 5 if layer is None else _cells(layer, ledger.dtype)
            for layer, ledger in ((ours.get(name), first), (theirs.get(name), second))
        )
        found.add_row(Text(visible(name)), *(f"{a} / {b}" for a, b in zip(left, right)))
    return found


def summary(ledger: Ledger) -> str:
    """Return the ledger in a few sentences."""
    if not ledger.steps:
        return "No step was seen yet."
    advice = ledger.advice()
    every = sum((layer.total for layer in ledger.layers), 0)
    sentences = [f"{ledger.skipped} of {ledger.steps} steps were skipped."]
    if ledger.sampled:
        found = shares(every, ledger.dtype)
        sentences.append(
            f"Of the gradients' elements {found['zero_share']:.1%} were 0 and {found['subnormal_share']:.1%} "
            f"subnormal in {ledger.dtype}."
        )
    if advice.lowest is not None or advice.highest is not None:
        which = "all layers but those for float32" if advice.float32_layers else "all layers"
        sentences.append(f"Scales that fit {which}: {_range(advice)}; the last was {advice.last:g}.")
    return " ".join([*sentences, *advice.sentences])


def text(ledger: Ledger) -> str:
    """Return the table and the summary as text."""
    return printed(table(ledger), visible(summary(ledger)))


def printed(table: Table, *lines: str) -> str:
    """Return a table as text for a terminal, with lines below it."""
    console = Console(file=io.StringIO(), width=WIDTH)
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    output: Any = console.file
    return str(output.getvalue())


def _table(title: str, count: int) -> Table:
    more = f"{count - ROWS} more layers are not shown." if count > ROWS else None
    found = Table(title=Text(visible(title)), caption=more)
    found.add_column("parameter", overflow="fold")
    return found


def _cells(layer: Layer, dtype: str) -> List[str]:
    found = layer.shares(dtype)
    lost = "-" if layer.lost_share is None else f"{layer.lost_share:.1%}"
    return [
        *(f"{found[what]:.1%}" if layer.counts else "-" for what in ("zero_share", "subnormal_share")),
        f"{layer.largest:.3g}",
        str(layer.skips),
        lost,
    ]


def _loss(layer: Layer, dtype: str) -> Tuple[float, float, float]:
    found = layer.shares(dtype)
    return layer.skips, layer.lost_share or 0.0, found["zero_share"] + found["subnormal_share"]


def _difference(ours: Optional[Layer], theirs: Optional[Layer], first: Ledger) -> float:
    if ours is None or theirs is None:
        return math.inf
    a, b = ours.shares(first.dtype), theirs.shares(first.dtype)
    lost = abs((ours.lost_share or 0.0) - (theirs.lost_share or 0.0))
    return float(sum(abs(a[what] - b[what]) for what in a) + lost)


def _range(advice: Advice) -> str:
    return between(*(None if scale is None else log2(scale) for scale in (advice.lowest, advice.highest)))
