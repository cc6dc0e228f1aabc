"""``mxmp convert``: one checkpoint to another."""

from __future__ import annotations

from typing import Any, Dict

import click

from .. import work
from .options import Prefix, make_policy, model_options


@click.command()
@click.argument("prefix", type=Prefix(read=True))
@click.argument("epoch", type=click.IntRange(min=0))
@click.option("-o", "--out", metavar="OUT", type=Prefix(), required=True, help="Prefix of the files to write.")
@click.option("--policy", "text", default="O2", show_default=True, help="The policy; O2 stores weights in float16.")
@model_options
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
def convert(
    prefix: str,
    epoch: int,
    out: str,
    text: str,
    shapes: Dict[str, Any],
    types: Dict[str, str],
    force: bool,
    **changes: Any,
) -> None:
    """Convert a checkpoint to mixed precision.

    Reads PREFIX-symbol.json and the parameters of EPOCH, and writes the same files of OUT, which
    plain MXNet loads.

    \b
    Example:
      mxmp convert resnet50 12 -o resnet50-fp16 --shape data:1,3,224,224
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    work.run("convert", prefix, epoch, out, make_policy(text, **changes), shapes, types, force)
