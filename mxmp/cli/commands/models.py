"""``mxmp convert``, ``mxmp inspect`` and ``mxmp tune``: what is done with a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from ...checkpoint import check_out_prefix, checkpoint_files, require_checkpoint
from .. import work
from .options import (
    check_prefix,
    make_policy,
    model_options,
    out_option,
    refuse_beside,
    require_new,
    require_timed,
    timing_options,
)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", callback=check_prefix, required=True, help="Prefix of the files to write.")
@click.option("--policy", "text", default="O2", show_default=True, help="The policy; O2 stores weights in float16.")
@click.option(
    "--tuned",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Take policy, shapes and --for-inference from what `mxmp tune -o` wrote, if it holds here.",
)
@click.option(
    "--for-inference",
    is_flag=True,
    help="The model will only infer: fold BatchNorm into the layers before it, in float32, and leave out dropout.",
)
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.pass_context
def convert(
    ctx: click.Context, /, prefix: str, epoch: int, out: str, text: str, shapes: Any, types: Any, **options: Any
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads. A plan of `mxmp tune` is refused where it does not hold: on another machine, for another
    network or other shapes.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    for_inference, force, tuned = options.pop("for_inference"), options.pop("force"), options.pop("tuned")
    if tuned is not None:
        refuse_beside(ctx, "--tuned", "text", *options)
    policy = make_policy(text, **options)
    check_out_prefix(prefix, out, "-o ")
    require_new(*checkpoint_files(out, epoch), force=force)
    require_checkpoint(prefix, epoch)
    work.run("convert", prefix, epoch, out, policy, shapes, types, for_inference, tuned)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("--policy", "text", default="mixed_bfloat16", show_default=True, help="The policy to begin with.")
@timing_options(60, "About how long it may take.")
@model_options
@out_option("Write the plan, for `mxmp convert --tuned FILE`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    prefix: str,
    epoch: int,
    text: str,
    objective: Optional[str],
    for_inference: bool,
    seconds: float,
    shapes: Any,
    types: Any,
    **options: Any,
) -> None:
    """Find the policy with which a checkpoint's network is fastest on this machine's processor, by running it.

    Plans of different kinds take turns on the clock. What is found is measured once more, beside float32 and
    the policy as given; float32 is the answer unless another is faster by more than the noise. Inputs are random
    numbers of the shapes given, labels zeros. Nothing of the checkpoint is changed. Ctrl-C ends the search, and what
    was found is measured and printed; pressed again, it is printed unmeasured. Give the threads of the real
    work (OMP_NUM_THREADS), and let nothing else run.

    \b
    Example:
      mxmp tune resnet50 12 --shape data:8,3,224,224 --objective inference -o resnet50-plan.json
      mxmp convert resnet50 12 -o resnet50-fast --tuned resnet50-plan.json
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = require_timed(ctx, objective, for_inference, shapes)
    out, force, as_json = options.pop("out"), options.pop("force"), options.pop("as_json")
    policy = make_policy(text, **options)
    if out is not None:
        require_new(out, force=force)
    require_checkpoint(prefix, epoch)
    work.run("tune", prefix, epoch, policy, asked, for_inference, seconds, shapes, types, out, as_json)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the parameters; the only one there unless given.")
@click.option("--policy", "text", help="The policy; O2 unless given, or what a converted network has.")
@model_options
@click.option("--summary", is_flag=True, help="Count by kind of operator instead of a row for each.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    shapes: Any,
    types: Any,
    as_json: bool,
    summary: bool,
    **changes: Any,
) -> None:
    """Show each operator's precision, the reason and the casts.

    PREFIX-symbol.json may be a float32 network: then this is what a conversion would decide. A
    network that mxmp converted is shown as it is, unless a policy is given. Layers in float16 with a
    batch, channels or other sizes that are no multiples of 8, which tensor cores want, are named; give
    the shapes of inputs for the batch. A long network fits on a page with --summary.

    \b
    Example:
      mxmp inspect resnet50 --policy mixed_bfloat16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = text is not None or any(changes.values())
    policy = make_policy(text or "O2", **changes)
    require_checkpoint(prefix, epoch)
    work.run("inspect", prefix, epoch, policy, asked, shapes, types, as_json, summary)
