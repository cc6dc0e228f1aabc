"""``mxmp compare``: runs a checkpoint's network beside float32 and prints the error of each operator."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import click

from ...checkpoint import checkpoint_files
from ...diagnose import compare
from ...diagnose.batches import load_batch
from ...display import Table, terminal
from ...errors import visible
from ...policy import Policy
from ...symbol import load_checkpoint
from ...symbol.checkpoint import naming_files
from ...tune.workload import make_batch
from .output import NARROW, pairs_table, stdout


def run(
    prefix: str,
    epoch: int,
    policy: Policy,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    data: Optional[str],
    worst: int,
    out: Optional[str],
    as_json: bool,
) -> None:
    """Compare the checkpoint of a prefix and an epoch with float32, print what was found, and write it if asked to."""
    model = load_checkpoint(prefix, epoch)
    batch = make_batch(model, shapes, types) if data is None else load_batch(data, model.symbol, types)
    with naming_files(*checkpoint_files(prefix, epoch)):
        found = compare(tuple(model), batch, policy)
    if out is not None:
        found.save(out)
    if as_json:
        click.echo(found.to_json())
        return
    console = stdout()
    blocks = found.sections(worst=worst)[0].blocks
    table = next(block for block in blocks if isinstance(block, Table))
    console.print(terminal.table(table, narrow=console.width < NARROW))
    for line in found.summary:
        console.print(visible(line), soft_wrap=True)
    inputs = "random numbers from 0 to 1; give real ones with --data" if data is None else data
    shown = f"{worst} of {len(found.rows)} operators, the worst; --worst N lists more"
    pairs = [("inputs", inputs)] + ([("listed", shown)] if worst < len(found.rows) else [])
    console.print(pairs_table(pairs + ([] if out is None else [("written", out)])))
