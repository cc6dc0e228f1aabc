"""``mxmp benchmark``: a checkpoint's network timed under several policies."""

from __future__ import annotations

import sys
from typing import Any, Mapping, Optional

import click

from ...checkpoint import checkpoint_files
from ...policy import Policy
from ...symbol import convert_model, load_checkpoint
from ...symbol.checkpoint import naming_files
from ...tune.benchmark import benchmark, context_of, default_policies
from ...tune.workload import make_batch
from .output import pairs_table, stdout


def run(
    prefix: str,
    epoch: int,
    policies: Mapping[str, Policy],
    objective: str,
    for_inference: bool,
    seconds: float,
    shapes: Mapping[str, Any],
    types: Mapping[str, str],
    gpu: Optional[int],
    as_json: bool,
) -> None:
    """Time the network of a prefix under policies, by default those that the device runs by itself, and print it."""
    context = context_of(gpu)
    model = load_checkpoint(prefix, epoch)
    batch = {name: array.as_in_context(context) for name, array in make_batch(model, shapes, types).items()}
    with naming_files(*checkpoint_files(prefix, epoch)):
        float32 = convert_model(*model, Policy(), shapes, types)  # of one that is converted, what it was
    chosen = policies or default_policies(gpu is not None)
    found = benchmark(tuple(float32), batch, chosen, objective, for_inference, seconds, sys.stderr.isatty())
    if as_json:
        click.echo(found.to_json())
        return
    console = stdout()
    console.print(found)
    if not chosen:
        note = "MXNet runs no bfloat16 here; --policy O2 emulates float16, for its error"
        console.print(pairs_table([("note", note)]))
