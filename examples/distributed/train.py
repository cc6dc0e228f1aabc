"""Train an image classifier in several processes of this machine, in float32 or in mixed precision.

Each worker takes its part of every batch, so that this is the training of one process: the same steps,
the same batch size. Worker 0 shows how far it is, evaluates and saves.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
from click.core import ParameterSource

from examples.common import checkpoint
from examples.common.command import INTERRUPTED, Command
from examples.common.options import output_option
from examples.distributed.jobs import ENGINES, run_job
from examples.image_classification import train_gluon, train_module
from examples.image_classification.settings import require_share

SCRIPTS = {"gluon": train_gluon, "module": train_module}


class LaunchCommand(Command):
    """A command whose help has the options of the scripts, too."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists."""
        super().format_options(ctx, formatter)
        command = SCRIPTS["gluon"].main
        params = [param for param in command.params if param.name not in ("kvstore", "output")]
        records = [param.get_help_record(click.Context(command)) for param in params]
        with formatter.section("Options of the training"):
            formatter.write_dl([record for record in records if record is not None])


@click.command(cls=LaunchCommand, context_settings={"ignore_unknown_options": True}, options_metavar="[OPTIONS]")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes that train.")
@click.option("--engine", type=click.Choice(list(ENGINES)), default="mxnet", show_default=True, help="Sums gradients.")
@click.option("--api", type=click.Choice(list(SCRIPTS)), default="gluon", show_default=True, help="Of MXNet.")
@output_option("distributed", "Folder that worker 0 writes to.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.pass_context
def main(ctx: click.Context, workers: int, engine: str, api: str, output: Path, arguments: Sequence[str]) -> None:
    """Train an image classifier in several processes of this machine.

    Each takes its part of every batch. Ctrl-C ends all after the same step, and --resume goes on there.
    """
    script = SCRIPTS[api]
    arguments = [*arguments, "--output", str(output)]
    _check(script.main, ctx, workers, arguments)
    width = shutil.get_terminal_size().columns - len(f"[worker {workers}] ")
    folders = os.pathsep.join([sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])])  # servers import mxmp too
    environment = {"COLUMNS": str(max(width, 1)), "PYTHONPATH": folders}
    end = run_job(engine, workers, [sys.executable, script.__file__, *arguments], environment)
    if end.code not in (0, INTERRUPTED):  # worker 0 has told of Ctrl-C
        click.echo(f"Error: {end.reason}.", err=True)
    ctx.exit(end.code)


def _check(command: click.Command, ctx: click.Context, workers: int, arguments: Sequence[str]) -> None:
    """Raise for what all workers would refuse, each in a line of its own."""
    parsed = command.make_context(ctx.info_name, list(arguments))
    if parsed.get_parameter_source("kvstore") is not ParameterSource.DEFAULT:
        raise click.UsageError("--kvstore is what --engine decides on; leave it out.", ctx)
    require_share(parsed.params["batch_size"], workers, len(parsed.params["ctx"]))
    if not (parsed.params["resume"] or parsed.params["force"]):
        checkpoint.require_free(parsed.params["output"])


if __name__ == "__main__":
    main()
