"""Convert a float32 checkpoint into one that stores and runs float16 or bfloat16, and score both."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
from mxmp import Policy
from mxmp.symbol import convert_checkpoint, load_checkpoint
from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.common.command import Command
from examples.common.options import policy_option
from examples.image_classification.scoring import Scored, score, scoring_options


@click.command(cls=Command)
@click.argument("prefix")
@click.argument("out")
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Number in the file's name.")
@policy_option("O2")
@click.option("--force", is_flag=True, help="Replace files of OUT that exist.")
@scoring_options
def main(prefix: str, out: str, epoch: int, policy: Policy, force: bool, scored: Scored) -> None:
    """Convert the checkpoint PREFIX-symbol.json, PREFIX-0000.params to the same files of OUT, and score both.

    The result loads in plain MXNet. On a CPU, which has no float16 products, it is scored emulated.
    """
    source = load_checkpoint(prefix, epoch)
    for file in (f"{out}-symbol.json", f"{out}-{epoch:04d}.params"):
        if Path(file).exists() and not force:
            raise click.ClickException(f"{file}: it exists; name another OUT, or give --force to replace it.")
    shapes = {"data": (scored.batch_size, *scored.images.shape)}
    model = convert_checkpoint(prefix, epoch, out, policy, shapes)
    console = Console()
    table = Table(title=f"{scored.name}, {policy.compute_dtype}")
    table.add_column("checkpoint", overflow="fold")
    for column in ("accuracy", "parameters, bytes", "casts"):
        table.add_column(column, justify="right")
    written = load_checkpoint(out, epoch)  # what is scored is what another program will read
    for name, each, size, casts in (
        (prefix, source, model.param_bytes[0], 0),
        (out, written, model.param_bytes[1], model.report.casts),
    ):
        batches = track(scored.batches(), description=f"scoring {name}", total=scored.limit, console=console)
        result = score(each, batches, scored.ctx)
        table.add_row(name, f"{100 * result.accuracy:.2f} % of {result.count}", f"{size:,}", str(casts))
    console.print(table)


if __name__ == "__main__":
    main()
