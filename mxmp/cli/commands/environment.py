"""``mxmp doctor``, ``build`` and ``site``: what this machine can do, and how MXNet finds mxmp in this environment."""

from __future__ import annotations

import os

import click

from ...compat import needed, site_file
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


@click.group()
def site() -> None:
    """Let programs import MXNet before mxmp, or without it, in this Python environment.

    MXNet 1.9.1 by itself is for numpy below 1.24 and Python below 3.12. With a newer one it imports if
    mxmp was imported before. `mxmp site on` writes a file into site-packages, from which Python learns to do
    that when MXNet or GluonCV is imported; other programs do not notice. MXMP_SITE=0 in the environment
    switches it off for a process. Run `mxmp site off` before you uninstall mxmp: pip does not know the file. Left
    behind, it does nothing.

    \b
    Examples:
      mxmp site on
      mxmp site status
    """  # noqa: D301 - click keeps the lines behind its mark as they are


@site.command()
def on() -> None:
    """Write the file."""
    site_file.write()
    _say()


@site.command()
def off() -> None:
    """Remove the file."""
    _say(removed=site_file.remove())


@site.command()
def status() -> None:
    """Say whether the file is there, and whether MXNet needs it."""
    _say()


def _say(removed: bool = False) -> None:
    path = click.format_filename(site_file.path())
    if site_file.is_outdated():
        click.echo(f"outdated: {path} is of another version of mxmp; run `mxmp site on` again")
    elif site_file.is_on():
        click.echo(f"on: {path}")
        if os.environ.get(site_file.SWITCH) == "0":
            click.echo(f"{site_file.SWITCH}=0 is set, so it does nothing here")
    else:
        click.echo(f"off: removed {path}" if removed else f"off: there is no {path}")
    if not needed():
        click.echo("MXNet does not need it with this Python and numpy")
    elif not site_file.is_on():
        click.echo("with this Python and numpy programs import mxmp before MXNet, or `mxmp site on` does it for them")
