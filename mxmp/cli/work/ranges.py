"""``mxmp ranges``: measures a checkpoint's network on a batch and prints magnitudes, the worst first."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Sequence

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import dtypes
from ...checkpoint import checkpoint_files
from ...diagnose import Magnitudes, measure_gradients, measure_ranges
from ...diagnose.batches import fill_inputs, load_batch
from ...errors import visible
from ...symbol import Checkpoint, convert_model, load_checkpoint
from ...symbol.arguments import HEADROOM
from ...symbol.checkpoint import naming_files
from ...tune.workload import make_batch
from .output import stdout

_MOST = 20  # rows of a table unless all are wanted
_MAX = dtypes.limits(dtypes.FLOAT16).max


def run(
    prefix: str,
    epoch: int,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    data: Optional[str],
    gradients: bool,
    list_all: bool,
    as_json: bool,
) -> None:
    """Measure the checkpoint of a prefix and an epoch on a batch, and print what was found."""
    model = load_checkpoint(prefix, epoch)
    given = {} if data is None else load_batch(data, model.symbol, types)
    _require_same_shapes(shapes, given, data)
    batch = {**make_batch(model, {**shapes, **{name: array.shape for name, array in given.items()}}, types), **given}
    with naming_files(*checkpoint_files(prefix, epoch)):
        found = measure_ranges(*model, [batch])
        counted = measure_gradients(*model, [_with_labels(model, batch)]) if gradients else {}
    source = data or "random numbers from 0 to 1"
    found = dict(sorted(found.items(), key=lambda pair: -pair[1]))
    counted = dict(sorted(counted.items(), key=lambda pair: -pair[1].share_lost()))
    if as_json:
        counts = {name: _values(each) for name, each in counted.items()}
        values = {"data": source, "largest_of_float16": _MAX, "ranges": found}
        click.echo(json.dumps({**values, "gradients": counts} if gradients else values, indent=2))
        return
    console = stdout()
    rows = [(name, f"{value:g}", f"{value / _MAX:.2g}", _note(value)) for name, value in found.items()]
    console.print(f"Largest magnitudes on {source}:")
    _print_table(console, ("tensor", "largest", "of float16's largest", ""), rows, list_all)
    if gradients:
        rows = [
            (name, f"{each.largest:g}", f"{each.share_lost():.2%}", f"{each.largest_scale():g}")
            for name, each in counted.items()
        ]
        columns = "gradient of", "largest", "0 in float16 unscaled", "largest scale"
        console.print(f"Gradients on {source}:")
        _print_table(console, columns, rows, list_all)


def _with_labels(model: Checkpoint, batch: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a batch with zeros for labels that it lacks."""
    plain = convert_model(*model, "O0")
    values = fill_inputs(plain, batch)
    return {name: array for name, array in values.items() if name not in {**plain.arg_params, **plain.aux_params}}


def _note(value: float) -> str:
    if value > _MAX:
        return "beyond float16"
    return "near its end: float32 if ranges are given" if value * HEADROOM > _MAX else ""


def _values(each: Magnitudes) -> Dict[str, Any]:
    counts = {"values": each.total, "zeros": each.zeros, "nonfinite": each.nonfinite, "largest": each.largest}
    return {**counts, "share_lost": each.share_lost(), "largest_scale": each.largest_scale()}


def _require_same_shapes(shapes: Mapping[str, Any], given: Mapping[str, Any], data: Optional[str]) -> None:
    for name in shapes.keys() & given.keys():
        if tuple(shapes[name]) != given[name].shape:
            sizes = ",".join(map(str, shapes[name]))
            raise click.UsageError(
                f"--shape {name}:{sizes} contradicts --data {data}, in which '{name}' has the shape "
                f"{given[name].shape}; leave --shape out, or give another batch.",
                click.get_current_context(silent=True),
            )


def _print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], list_all: bool) -> None:
    """Print rows, the worst unless all are wanted, and how many more there are."""
    shown = rows if list_all else rows[:_MOST]
    console.print(_table(columns, shown))
    if len(rows) > len(shown):
        console.print(f"… and {len(rows) - len(shown):,} more (--all)")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SQUARE)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if number in (1, 2) else "left")
    for row in rows:
        table.add_row(*(Text(visible(cell), style="red" if "beyond" in row[-1] else "") for cell in row))
    return table
