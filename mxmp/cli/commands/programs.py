"""``mxmp run`` and ``mxmp launch``: a script with mxmp imported before MXNet, and the processes of a job."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn, Optional, Sequence

import click

from ... import dtypes
from ... import launch as jobs
from ..contrib_amp import stand_in
from ..interrupts import raising
from ..program import Program


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.option(
    "--amp",
    type=click.Choice(dtypes.LOW_PRECISION),
    help="Give SCRIPT mxmp.amp as mxnet.contrib.amp, whose init() then is for this dtype unless it is given another.",
)
@click.pass_context
def run(ctx: click.Context, script: str, args: Sequence[str], is_module: bool, amp: Optional[str]) -> NoReturn:
    """Run SCRIPT as `python SCRIPT` does, where MXNet needs mxmp to be imported.

    MXNet 1.9.1 by itself is for numpy below 1.24 and Python below 3.12. With a newer one it imports if
    mxmp was imported before; for a script that cannot be changed, this command does it. Arguments, exit
    codes, tracebacks and Ctrl-C are as with Python. What follows SCRIPT is the script's.

    A script or library that uses `mxnet.contrib.amp` uses `mxmp.amp` with --amp, without an edit.

    Python processes that the script starts (subprocess, multiprocessing with 'spawn') are not reached: they import
    MXNet as it is, and contrib.amp's own amp.

    \b
    Examples:
      mxmp run train.py --epochs 10
      mxmp run -m package.train --epochs 10
      mxmp run --amp float16 -m sockeye.train --amp ...
      mxmp launch -n 2 mxmp run train.py
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not is_module and not os.path.exists(script):
        hint = "; write `-m` before the name of a module" if "/" not in script and not script.endswith(".py") else ""
        raise click.BadParameter(f"there is no file {script!r}{hint}.", ctx, param_hint="'SCRIPT'")
    if amp is not None:
        stand_in(amp)
    raise Program(script, args, is_module)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--workers", type=click.IntRange(min=1), required=True, help="How many run COMMAND.")
@click.option("-s", "--servers", type=click.IntRange(min=1), default=1, show_default=True, help="How many add up.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds after which the job is ended.")
@click.option("--host", default=jobs.LOOPBACK, show_default=True, help="The address of this machine to listen on.")
@click.option("--hosts", metavar="A,B,...", help="Addresses of several machines: print what each has to run.")
@click.option("--port", type=click.IntRange(1, 65535), help="The first port; free ones by default, with --hosts 9091.")
@click.pass_context
def launch(
    ctx: click.Context,
    command: Sequence[str],
    workers: int,
    servers: int,
    timeout: Optional[float],
    host: str,
    hosts: Optional[str],
    port: Optional[int],
) -> None:
    """Run COMMAND in several processes that train together with kvstore 'dist_sync'.

    Starts the scheduler and servers of MXNet too, on this machine; prints each line with the name
    of its process in front. When one fails all are ended, and its exit code is that of mxmp; 124
    says that the job took too long. All workers must make as many steps: one that makes fewer keeps
    the others waiting. Sets PYTHONUNBUFFERED=1 unless it is set.

    Ctrl-C goes to the workers, which have ten seconds to save and end. A second Ctrl-C ends all.

    \b
    Example:
      mxmp launch -n 2 python train.py --epochs 10
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if hosts is not None:
        if timeout is not None or host != jobs.LOOPBACK:
            raise click.UsageError("--hosts only prints commands; leave --timeout and --host out.", ctx)
        addresses = [address.strip() for address in hosts.split(",")]
        _print_commands(jobs.plan(command, workers, servers, addresses, port or 9091), addresses)
        return
    # It ends like a program that a signal ended, but not before the processes have.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with raising():
            end = jobs.run(jobs.plan(command, workers, servers, [host], port), timeout)
    finally:
        signal.signal(signal.SIGTERM, before)
    if end.reason:
        click.echo(f"mxmp: {end.reason}.", err=True)
    ctx.exit(end.code)


def _print_commands(processes: Sequence[jobs.Process], addresses: Sequence[str]) -> None:
    for address in dict.fromkeys(addresses):
        click.echo(f"# on {address}")
        for process in processes:
            if process.host == address:
                click.echo(f"{process} &  # {process.name}")
        click.echo("wait")
