"""``mxmp benchmark``: how fast a checkpoint's network runs here under several policies."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional, Sequence

import click

from ...checkpoint import describe_epochs, require_checkpoint, saved_epochs
from ...errors import CheckpointError
from .. import work
from .options import check_prefix, make_policy, model_options, require_timed, timing_options


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0), required=False)
@click.option(
    "--policy",
    "texts",
    multiple=True,
    help="A policy to measure beside float32; those that the device runs by itself unless given. Repeatable.",
)
@timing_options(30, "About how long the rounds may take, of which there are at least five.")
@click.option("--gpu", type=click.IntRange(min=0), help="Run on this GPU instead of the processor.")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def benchmark(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: Optional[int],
    texts: Sequence[str],
    objective: Optional[str],
    for_inference: bool,
    seconds: float,
    shapes: Any,
    types: Any,
    **options: Any,
) -> None:
    """Time a checkpoint's network under several policies, and compare its outputs with float32's.

    The policies take turns, round by round; printed are the medians, the time relative to float32 and whether the
    difference is more than noise. Inputs are random numbers of the shapes given, labels zeros. Nothing of the
    checkpoint is changed. Float16 is emulated on a CPU and measured only if asked for. Give the threads of the real
    work (OMP_NUM_THREADS), and let nothing else run. EPOCH may be left out if there are parameters of one alone.

    \b
    Example:
      mxmp benchmark resnet50 12 --shape data:8,3,224,224 --objective inference
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = require_timed(ctx, objective, for_inference, shapes)
    gpu, as_json = options.pop("gpu"), options.pop("as_json")
    if any(options.values()) and not texts:
        raise click.UsageError("--keep-float32 and its like change a policy; give --policy too.", ctx)
    policies = {text: make_policy(text, **options) for text in texts}
    require_checkpoint(prefix)
    if epoch is None:
        epochs = saved_epochs(prefix)
        if len(epochs) != 1:
            there = describe_epochs(prefix) or "there are none"
            raise CheckpointError(f"{prefix}: give the EPOCH of its parameters; {there}.")
        epoch = epochs[0]
    require_checkpoint(prefix, epoch)
    work.run("benchmark", prefix, epoch, policies, asked, for_inference, seconds, shapes, types, gpu, as_json)
