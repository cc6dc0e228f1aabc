"""``mxmp convert`` and ``mxmp inspect``: one checkpoint to another, and what a policy decides or a network holds."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import click

from .. import work
from .options import check_prefix, make_policy, model_options


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", callback=check_prefix, required=True, help="Prefix of the files to write.")
@click.option("--policy", "text", default="O2", show_default=True, help="The policy; O2 stores weights in float16.")
@click.option(
    "--for-inference",
    is_flag=True,
    help="The model will only infer: fold BatchNorm into the layers before it, in float32, and leave out dropout.",
)
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def convert(prefix: str, epoch: int, out: str, text: str, shapes: Any, types: Any, **options: Any) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    flags = options.pop("for_inference"), options.pop("force")
    work.run("convert", prefix, epoch, out, make_policy(text, **options), shapes, types, *flags)


@click.command()
@click.argument("prefix", callback=partial(check_prefix, read=True))
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the parameters; the only one there unless given.")
@click.option("--policy", "text", help="The policy; O2 unless given, or what a converted network has.")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    prefix: str, epoch: Optional[int], text: Optional[str], shapes: Any, types: Any, as_json: bool, **changes: Any
) -> None:
    """Show each operator's precision, the reason and the casts.

    PREFIX-symbol.json may be a float32 network: then this is what a conversion would decide. A
    network that mxmp converted is shown as it is, unless a policy is given. Layers in float16 with a
    batch, channels or other sizes that are no multiples of 8, which tensor cores want, are named; give
    the shapes of inputs for the batch.

    \b
    Example:
      mxmp inspect resnet50 --policy mixed_bfloat16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    asked = text is not None or any(changes.values())
    work.run("inspect", prefix, epoch, make_policy(text or "O2", **changes), asked, shapes, types, as_json)
