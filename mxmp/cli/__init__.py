"""Internal: the command line ``mxmp``, which parses arguments, calls the library and prints.

No module here imports MXNet, numpy or rich, which take seconds to import. A command imports them once its arguments are
checked, so that ``--help`` and wrong arguments are answered at once.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, List, NoReturn, Optional, Sequence

import click

from .. import __version__
from ..errors import MxmpError, mxnet_reason, visible
from .checkpoints import convert, inspect
from .environment import Program, build, doctor, launch, run
from .measure import benchmark, compare, ranges, report

INTERRUPTED = 130
"""The exit code that a shell expects of a program that Ctrl-C ended: 128 and the signal's number."""


class CommandLine(click.Group):
    """A group of commands of which each error is one line and an exit code.

    The code is 0 for success. It is 1 if the work failed, or if ``doctor`` found no hardware for the policy. It is 2,
    click's own code, for arguments that no checkpoint could make valid. It is 130 for Ctrl-C.
    """

    def parse_args(self, ctx: click.Context, args: List[str]) -> List[str]:
        """Read the options before the command."""
        try:
            return super().parse_args(ctx, args)
        except (click.NoSuchOption, click.BadOptionUsage) as e:
            _fail_usage(ctx, e)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as e:
            _fail_usage(ctx, e)
        except MxmpError as e:
            # MXNet's reasons, which messages quote, have several lines.
            _fail(ctx, " ".join(line.strip() for line in str(e).split("\n")))
        except KeyboardInterrupt:
            click.echo("mxmp: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as e:
            mxnet = sys.modules.get("mxnet.base")  # None if the command did not import MXNet.
            if mxnet is None or not isinstance(e, mxnet.MXNetError):
                raise
            _fail(ctx, f"MXNet: {mxnet_reason(e)}")


@click.group("mxmp", cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mxmp")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Mixed precision for Apache MXNet.

    Converts checkpoints, compares them with float32, times them, and looks at this machine. `mxmp COMMAND --help` has
    an example of each command.

    Exit codes: 0 for success, 1 for work that failed, 2 for arguments that cannot be used, 130 for Ctrl-C.
    """
    if ctx.invoked_subcommand != run.name:  # The script configures its own logging.
        logging.basicConfig(format="mxmp: %(levelname)s: %(message)s")


for command in (benchmark, build, compare, convert, doctor, inspect, launch, ranges, report, run):
    commands.add_command(command)


def _fail(ctx: click.Context, message: str, code: int = 1) -> NoReturn:
    click.echo(f"mxmp: error: {visible(message)}", err=True)
    ctx.exit(code)


def _fail_usage(ctx: click.Context, error: click.UsageError) -> NoReturn:
    command = (error.ctx or ctx).command_path
    _fail(ctx, f"{error.format_message()} See `{command} --help`.", error.exit_code)


def main(args: Optional[Sequence[str]] = None, prog_name: str = "mxmp") -> NoReturn:
    """Run the program ``mxmp`` and end the process."""
    try:
        commands.main(args, prog_name)
    except Program as e:
        program = e
    else:
        raise AssertionError("click ends the process")
    program.run()  # outside of the block, so that the program's errors have no context.
