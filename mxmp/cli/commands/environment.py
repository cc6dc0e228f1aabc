"""``mxmp doctor`` and ``mxmp build``: what this machine can do, and what makes it faster."""

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

    Looks at the versions, at this machine's devices and at the environment variables that matter. Where the
    processor runs bfloat16, convolutions and matrix products are measured in it and in float32. The
    exit code is 1 if no device runs the policy in hardware, as float16 on a machine without a GPU, and 0
    otherwise.

    \b
    Example:
      mxmp doctor --policy mixed_bfloat16
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    ok = work.run("doctor", make_policy(text, (), None, None), as_json)
    ctx.exit(0 if ok else 1)


@click.command()
def build() -> None:
    """Compile an operator that rounds emulated float16 on a CPU faster, and keep it in the cache folder.

    Networks in float16 are emulated on a CPU: float32 arithmetic whose results are rounded to float16, by MXNet's
    casts or, in programs that start after this, by the operator, with the same bits. It takes a C++ compiler
    (CXX, c++ or g++) and some ten seconds; before the operator is kept it is tried on a network. The file belongs to
    this version of MXNet and of mxmp. It is in mxmp's part of $XDG_CACHE_HOME, or of ~/.cache; delete it to have casts
    round again.
    """
    click.echo(work.run("build"))
