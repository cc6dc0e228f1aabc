"""The command line: parsing of arguments and printing, and nothing else."""

from __future__ import annotations

import logging
from typing import Any

import click
import mxnet as mx

from .. import __version__
from ..errors import MxmpError, mxnet_reason
from .convert import convert
from .doctor import doctor
from .inspect import inspect
from .launch import launch

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""


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
            click.echo(f"mxmp: error: {' '.join(str(e).split())}", err=True)
            ctx.exit(1)
        except mx.MXNetError as e:
            click.echo(f"mxmp: error: MXNet: {mxnet_reason(e)}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("mxmp: interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group("mxmp", cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mxmp")
def main() -> None:
    """Mixed precision for Apache MXNet: convert checkpoints, look at what a conversion decides and at the machine."""
    logging.basicConfig(format="mxmp: %(levelname)s: %(message)s")


main.add_command(convert)
main.add_command(doctor)
main.add_command(inspect)
main.add_command(launch)
