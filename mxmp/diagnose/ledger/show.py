"""A ledger on a terminal: its layers, what it says, and two runs side by side."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Tuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import visible
from .advice import Advice
from .layer import Layer, shares
from .steps import log2
from .vanish import in_low_precision
from .words import between, counted, listed

if TYPE_CHECKING:
    from .ledger import Ledger

WIDTH = 120
"""Columns of what is printed to no terminal, as of the project's other reports."""

ROWS = 20
"""Layers of a table at most."""

COLUMNS = ("zero", "subnormal", "largest", "first in skips", "lost updates")
"""What is shown of a layer. It is first in a skip if of no other gradient a smaller share was not finite."""


def table(ledger: Ledger) -> Table:
    """Return a table of the layers: those that were first in most skips, then those that lose most."""
    layers = sorted(ledger.layers, key=lambda layer: _loss(layer, ledger.dtype), reverse=True)
    found = _table(f"Gradients in {_length(ledger)}", len(layers))
    for column in ("elements", *COLUMNS):
        found.add_column(column, justify="right")
    for layer in layers[:ROWS]:
        found.add_row(Text(visible(layer.name)), f"{layer.elements:,}", *_cells(layer, ledger.dtype))
    return found


def comparison(first: Ledger, second: Ledger) -> str:
    """Return two runs side by side: a table of layers, those whose shares differ most first, and what to know of it."""
    ours, theirs = ({layer.name: layer for layer in ledger.layers} for ledger in (first, second))
    names = list(dict.fromkeys([*ours, *theirs]))
    names.sort(key=lambda name: -_difference(_shares(ours.get(name), first), _shares(theirs.get(name), second)))
    found = _table(f"This run: {_length(first)}. The other: {_length(second)}", len(names))
    for column in COLUMNS:
        found.add_column(f"{column}\nthis / other", justify="right")
    for name in names[:ROWS]:
        left, right = (
            ["-"] * len(COLUMNS) if layer is None else _cells(layer, ledger.dtype)
            for layer, ledger in ((ours.get(name), first), (theirs.get(name), second))
        )
        found.add_row(Text(visible(name)), *(f"{a} / {b}" for a, b in zip(left, right)))
    return printed(found, *map(visible, _differences(first, second, ours, theirs)))


def _differences(first: Ledger, second: Ledger, ours: Mapping[str, Layer], theirs: Mapping[str, Layer]) -> List[str]:
    """Return what is to be known where two runs are compared."""
    found = []
    for which, ledger in (("This run", first), ("The other run", second)):
        if not ledger.sampled:
            found.append(f"{which} has no sample: none of its steps ({ledger.steps:,}) was taken.")
    for which, some, others in (("this run", ours, theirs), ("the other run", theirs, ours)):
        names = [name for name in some if name not in others]
        if names and others:
            found.append(f"Only {which} has {listed(names)}.")
    if ours and theirs and not set(ours) & set(theirs):
        found = ["The runs have no layer in common: parameters are compared by name."]
    if first.dtype != second.dtype:
        found.append(f"Shares are those of {first.dtype} in this run and of {second.dtype} in the other.")
    fits = [_range(ledger.advice()) for ledger in (first, second)]
    return [*found, f"Scales that fit: {fits[0]} in this run, {fits[1]} in the other."] if all(fits) else found


def summary(ledger: Ledger) -> str:
    """Return the ledger in a few sentences."""
    if not ledger.steps:
        return "No step was seen yet."
    advice, layers = ledger.advice(), ledger.layers
    sentences = [f"{ledger.skipped} of {ledger.steps} steps were skipped."]
    if not ledger.sampled:
        sentences.append("No step was taken, so no gradients were counted.")
    elif any(layer.total.any() for layer in layers):
        found = shares(sum(layer.total for layer in layers), ledger.dtype)
        sentences.append(
            f"Of the gradients' elements {found['zero_share']:.1%} were 0 and {found['subnormal_share']:.1%} "
            f"subnormal in {ledger.dtype}."
        )
        if not any(in_low_precision(layer.counts, ledger.dtype) for layer in layers if layer.counts):
            sentences.append(f"They were computed in float32, where that is no loss; {ledger.dtype} would lose it.")
    else:
        sentences.append("No gradient of a sample has elements.")
    if _range(advice):
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
    more = f"{counted(count - ROWS, 'more layer')} not shown." if count > ROWS else None
    found = Table(title=Text(visible(title)), caption=more)
    found.add_column("parameter", overflow="fold")
    return found


def _cells(layer: Layer, dtype: str) -> List[str]:
    found = layer.shares(dtype)
    lost = "-" if layer.lost_share is None else f"{layer.lost_share:.1%}"
    return [
        *(f"{found[what]:.1%}" if layer.counts else "-" for what in ("zero_share", "subnormal_share")),
        f"{layer.largest:.3g}" if layer.counts else "-",
        str(layer.skips),
        lost,
    ]


def _loss(layer: Layer, dtype: str) -> Tuple[float, float, float]:
    found = layer.shares(dtype)
    return layer.skips, layer.lost_share or 0.0, found["zero_share"] + found["subnormal_share"]


def _shares(layer: Optional[Layer], ledger: Ledger) -> Optional[List[float]]:
    return None if layer is None else [*layer.shares(ledger.dtype).values(), layer.lost_share or 0.0]


def _difference(ours: Optional[List[float]], theirs: Optional[List[float]]) -> float:
    """Return how much shares differ; of a layer that one run has, more than any."""
    return math.inf if ours is None or theirs is None else sum(abs(a - b) for a, b in zip(ours, theirs))


def _length(ledger: Ledger) -> str:
    seen = f"{counted(ledger.sampled, 'sample')} in {counted(ledger.steps, 'step')}"
    return f"{ledger.dtype}, {seen}, one in {ledger.every}"


def _range(advice: Advice) -> str:
    """Return the scales that fit; '' if nothing tells."""
    if advice.lowest is None and advice.highest is None:
        return ""
    return between(*(None if scale is None else log2(scale) for scale in (advice.lowest, advice.highest)))
