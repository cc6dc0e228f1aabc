"""``mxmp doctor``: what this machine can do."""

from __future__ import annotations

import click

from .. import work
from .options import make_policy


@click.command()
@click.option("--policy", "text", default="O1", show_default=True, help="The policy; its compute dtype counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, text: str, as_json: bool) -> None:
    """Say whether this machine runs a policy in hardware, and what to do about what does not.

    Looks at the versions, at what GPUs MXNet has code for, at this machine's devices and at the
    environment variables that matter. Where the processor runs bfloat16, a convolution and a matrix
    product are measured in it and in float32. The exit code is 1 if no device runs the policy in hardware,
    as float16 on a machine without a GPU, and 0 otherwise.

    \b
    Example:
      mxmp doctor --policy mixed_bfloat16
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    ok = work.run("doctor", make_policy(text, (), None, None), as_json)
    ctx.exit(0 if ok else 1)
