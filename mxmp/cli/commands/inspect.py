"""``mxmp inspect``: what a policy decides about a network, or what a converted one holds."""

from __future__ import annotations

from typing import Any, Dict, Optional

import click

from .. import work
from .options import Prefix, make_policy, model_options


@click.command()
@click.argument("prefix", type=Prefix(read=True))
@click.option("--epoch", type=click.IntRange(min=0), help="Epoch of the parameters; the only one there unless given.")
@click.option("--policy", "text", help="The policy; O2 unless given, or what a converted network has.")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(
    prefix: str,
    epoch: Optional[int],
    text: Optional[str],
    shapes: Dict[str, Any],
    types: Dict[str, str],
    as_json: bool,
    **changes: Any,
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
