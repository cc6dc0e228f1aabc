"""``mxmp convert``, ``mxmp inspect`` and ``mxmp tune``: what is done with a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from .. import work
from .options import check_prefix, make_policy, model_options, refuse_beside


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", callback=check_prefix, required=True, help="Prefix of the files to write.")
@click.option("--policy", "text", default="O2", show_default=True, help="The policy; O2 stores weights in float16.")
@click.option(
    "--tuned",
    type=click.Path(),
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
    flags = options.pop("for_inference"), options.pop("force"), options.pop("tuned")
    if flags[-1] is not None:
        refuse_beside(ctx, "--tuned", "text", *options)
    work.run("convert", prefix, epoch, out, make_policy(text, **options), shapes, types, *flags)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("--policy", "text", default="mixed_bfloat16", show_default=True, help="The policy to begin with.")
@click.option(
    "--objective",
    type=click.Choice(["training", "inference"]),
    help="What is timed: forward and backward, or forward alone; training unless --for-inference is given.",
)
@click.option("--for-inference", is_flag=True, help="Time inference with BatchNorm folded, as convert does it.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60,
    show_default=True,
    help="About how long it may take.",
)
@click.option("-o", "--out", type=click.Path(), metavar="FILE", help="Write the plan, for `mxmp convert --tuned FILE`.")
@model_options
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
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
    if for_inference and objective == "training":
        raise click.UsageError("--for-inference is for --objective inference.", ctx)
    if not shapes:
        raise click.UsageError("give --shape of every input, such as data:8,3,224,224.", ctx)
    asked = objective or ("inference" if for_inference else "training")
    out, force, as_json = options.pop("out"), options.pop("force"), options.pop("as_json")
    policy = make_policy(text, **options)
    work.run("tune", prefix, epoch, policy, asked, for_inference, seconds, shapes, types, out, force, as_json)


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
    work.run("inspect", prefix, epoch, make_policy(text or "O2", **changes), asked, shapes, types, as_json, summary)
