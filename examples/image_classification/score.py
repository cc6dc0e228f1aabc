"""Score a checkpoint: of these scripts, of ``mx.model.save_checkpoint``, or of ``mxmp convert``."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
from mxmp.symbol import load_checkpoint
from rich.console import Console
from rich.progress import track

from examples.common.command import Command
from examples.common.summary import pairs_table
from examples.image_classification.scoring import Scored, score, scoring_options


@click.command(cls=Command)
@click.argument("prefix")
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Number in the file's name.")
@scoring_options
def main(prefix: str, epoch: int, scored: Scored) -> None:
    """Score the checkpoint PREFIX-symbol.json, PREFIX-0000.params in the precision that it is stored in.

    A float16 network is emulated on a CPU.
    """
    checkpoint = load_checkpoint(prefix, epoch)
    console = Console()
    batches = track(scored.batches(), description="scoring", total=scored.limit, console=console)
    result = score(checkpoint, batches, scored.ctx)
    rows = [
        ("network", f"{prefix}-symbol.json"),
        ("images", f"{result.count} of {scored.name}"),
        ("accuracy", f"{100 * result.accuracy:.2f} %"),
        ("context", str(scored.ctx)),
        ("speed", "too few batches to tell" if math.isnan(result.speed) else f"{result.speed:.0f} images/s"),
    ]
    console.print(pairs_table(rows))


if __name__ == "__main__":
    main()
