"""``mxmp tune``: finds the fastest policy for a checkpoint's network and prints what was measured."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import click

from ...checkpoint import checkpoint_files
from ...policy import Policy
from ...symbol import convert_model, load_checkpoint
from ...symbol.checkpoint import naming_files
from ...tune import tune
from ...tune.workload import make_batch
from .output import pairs_table, stdout


def run(
    prefix: str,
    epoch: int,
    policy: Policy,
    objective: str,
    for_inference: bool,
    seconds: float,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    out: Optional[str],
    as_json: bool,
) -> None:
    """Tune the policy for the checkpoint of a prefix and an epoch, print what was found, and write it if asked to."""
    model = load_checkpoint(prefix, epoch)
    batch = make_batch(model, shapes, types)
    with naming_files(*checkpoint_files(prefix, epoch)):
        float32 = convert_model(*model, Policy(), shapes, types)  # of one that is converted, what it was
    result = tune(tuple(float32), [batch], policy, objective, seconds=seconds, for_inference=for_inference)
    if out is not None:
        result.save(out)
    if as_json:
        click.echo(result.to_json())
        return
    console = stdout()
    console.print(result)
    if out is not None:
        console.print(pairs_table([("written", out)]))
