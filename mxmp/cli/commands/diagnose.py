"""``mxmp compare``: where a checkpoint's network loses accuracy."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from ...checkpoint import require_checkpoint
from .. import work
from .options import batch_option, check_prefix, make_policy, model_options, out_option, require_new


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("--policy", "text", default="O1", show_default=True, help="The policy.")
@batch_option("With labels, gradients are compared too.")
@click.option("--worst", type=click.IntRange(min=1), default=20, show_default=True, help="How many operators to list.")
@model_options
@out_option("Write all of it as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: int,
    text: str,
    data: Optional[str],
    worst: int,
    out: Optional[str],
    shapes: Any,
    types: Any,
    **options: Any,
) -> None:
    """Run a checkpoint's network in float32 and in low precision side by side, and show where accuracy is lost.

    Of each operator: its own error, on float32's inputs; the error carried there; and what it contributes to the error
    of the outputs, the worst first. float16 is emulated on this processor. Inputs are those of --data, or random
    numbers of the shapes given.

    \b
    Example:
      mxmp compare resnet50 12 --shape data:1,3,224,224 --worst 10
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not shapes and data is None:
        raise click.UsageError("give --data, or --shape of every input, such as data:1,3,224,224.", ctx)
    if data is not None and shapes:
        raise click.UsageError("--data has shapes; leave --shape out.", ctx)
    force, as_json = options.pop("force"), options.pop("as_json")
    policy = make_policy(text, **options)
    if out is not None:
        require_new(out, force=force)
    require_checkpoint(prefix, epoch)
    work.run("compare", prefix, epoch, policy, shapes, types, data, worst, out, as_json)
