"""The commands of ``mxmp``, and how errors end them."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from .. import __version__
from ..errors import MxmpError, mxnet_reason, visible
from .checkpoints import benchmark, convert
from .diagnose import compare, inspect, ranges, report
from .environment import build, doctor, launch, run
from .interrupts import INTERRUPTED, LINE


class CommandLine(click.Group):
    """A group of commands that ends with one line and an exit code, whatever goes wrong.

    0 for success, 1 for work that failed or a machine without the hardware that ``doctor`` looked for,
    2 (click's own) for arguments that cannot be used, 130 for Ctrl-C.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except MxmpError as e:
            # MXNet's reasons, which messages quote, have several lines.
            _fail(ctx, " ".join(line.strip() for line in str(e).split("\n")))
        except KeyboardInterrupt:
            click.echo(LINE, err=True)
            ctx.exit(INTERRUPTED)
        except Exception as e:
            mxnet = sys.modules.get("mxnet.base")  # not imported here, only to know its error
            if mxnet is None or not isinstance(e, mxnet.MXNetError):
                raise
            _fail(ctx, f"MXNet: {mxnet_reason(e)}")


@click.group("mxmp", cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mxmp")
def commands() -> None:
    """Mixed precision for Apache MXNet: convert checkpoints, time them, look at what is decided and at the machine."""


for command in (benchmark, build, compare, convert, doctor, inspect, launch, ranges, report, run):
    commands.add_command(command)


def _fail(ctx: click.Context, message: str) -> NoReturn:
    click.echo(f"mxmp: error: {visible(message)}", err=True)
    ctx.exit(1)
