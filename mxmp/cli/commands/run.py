"""``mxmp run``: a script that imports MXNet before mxmp, as it is."""

from __future__ import annotations

import os
from typing import NoReturn, Sequence

import click

from ..program import STDIN, Program


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.pass_context
def run(ctx: click.Context, script: str, args: Sequence[str], is_module: bool) -> NoReturn:
    """Run SCRIPT as `python SCRIPT` does, where MXNet needs mxmp to be imported.

    MXNet 1.9.1 by itself is for numpy below 1.24 and Python below 3.12. With a newer one it imports if
    mxmp was imported before; for a script that cannot be changed, this command does it. Nothing else
    differs from Python: arguments, exit codes, tracebacks, Ctrl-C. What follows SCRIPT is the script's; '-'
    reads it from standard input.

    Python processes that the script starts (subprocess, multiprocessing with 'spawn') are not reached, and fail:
    `mxmp site on` reaches them.

    \b
    Examples:
      mxmp run train.py --epochs 10
      mxmp run -m package.train --epochs 10
      mxmp launch -n 2 mxmp run train.py
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not is_module and script != STDIN and not os.path.exists(script):
        hint = "; write `-m` before the name of a module" if "/" not in script and not script.endswith(".py") else ""
        raise click.BadParameter(f"there is no file {script!r}{hint}.", ctx, param_hint="'SCRIPT'")
    raise Program(script, args, is_module)
