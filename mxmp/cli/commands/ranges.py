"""``mxmp ranges``: the magnitudes of a checkpoint's network on a batch."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from ...checkpoint import require_checkpoint
from .. import work
from .options import batch_option, check_prefix, input_options


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@input_options
@batch_option()
@click.option("--gradients", is_flag=True, help="Run backward too, and count the gradients by magnitude.")
@click.option("--all", "list_all", is_flag=True, help="List all tensors, not only the worst.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def ranges(
    ctx: click.Context,
    prefix: str,
    epoch: int,
    shapes: Any,
    types: Any,
    data: Optional[str],
    gradients: bool,
    list_all: bool,
    as_json: bool,
) -> None:
    """Show how large the tensors of a checkpoint's network are, beside float16's range.

    The network runs in float32, on one batch. Its tensors are listed with their largest magnitudes, the worst first.
    What is beyond half of float16's range stays in float32 if a conversion is given the ranges, for a batch does not
    have the largest value of all. With --gradients: which share of each activation's gradient becomes 0 in
    float16 without a loss scale, and the largest scale that keeps it finite. Labels that are not given are zeros:
    what loss heads alone read beside their data, and inputs whose names end in 'label'.

    \b
    Example:
      mxmp ranges resnet50 12 --data batch.npz
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not shapes and data is None:
        raise click.UsageError("give --shape of every input, such as data:1,3,224,224, or --data.", ctx)
    require_checkpoint(prefix, epoch)
    work.run("ranges", prefix, epoch, shapes, types, data, gradients, list_all, as_json)
