"""Train an SSD detector in float32 and draw how much of its gradients float16 would lose, by loss scale.

The picture is figure 3 of "Mixed Precision Training" (Micikevicius et al., 2017, https://arxiv.org/abs/1710.03740): a
histogram of the gradients of all activations, on the range of float16.
"""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script it finds the repository

import click
import mxmp
import mxnet as mx
import numpy as np
from matplotlib.figure import Figure
from mxmp.diagnose import Magnitudes, measure_gradients
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from examples.common.command import Command
from examples.common.options import Options, ctx_option, learning_rate_option, output_option, require_batch
from examples.common.plot import save
from examples.ssd.batches import Batch, Scenes
from examples.ssd.networks import SMALL_SYMBOL, image_size, require_symbol
from examples.ssd.settings import data_options, load
from examples.ssd.train_symbol import SymbolLearner, to_inputs

PICTURE = "gradients.png"
SMALLEST = -60  # log2 of the smallest gradients that have a bar of their own
SCALES = (1.0, 2.0**3, 2.0**7, 2.0**10, 2.0**15)


def measure(learner: SymbolLearner, size: int, batch: Batch, ctx: mx.Context) -> Magnitudes:
    """Return the gradients of all activations on a batch, in the present state of training."""
    found = Magnitudes()
    args, aux = learner.module.get_params()
    for each in measure_gradients(learner.module.symbol, args, aux, [to_inputs(batch, size)], ctx).values():
        found.merge(each)
    return found


def scales_table(found: Magnitudes, scales: Sequence[float]) -> Table:
    """Return a row for each loss scale: the share of the gradients that becomes 0 in float16."""
    table = Table(title="gradients of activations that are not 0", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("loss scale", "become 0 in float16", "the largest"):
        table.add_column(column, justify="right")
    for scale in scales:
        fits = scale <= found.largest_scale()
        largest = f"{found.largest * scale:.3g}{'' if fits else ' (infinite)'}"
        table.add_row(f"{scale:g}", f"{100 * found.share_lost(scale):.2f} %", largest)
    return table


def draw(found: Magnitudes, scales: Sequence[float], title: str, path: Path) -> None:
    """Write a PNG: the share of the gradients of each magnitude, on float16's range."""
    figure = Figure(figsize=(9, 5), tight_layout=True)
    axes = figure.subplots()
    shares: Dict[int, float] = {}
    for exponent, count in found.counts.items():
        shown = max(exponent, SMALLEST)
        shares[shown] = shares.get(shown, 0.0) + 100 * count / found.total
    axes.bar([each - 0.5 for each in shares], list(shares.values()), width=1, edgecolor="white", linewidth=0.3)
    axes.set_xlim(SMALLEST - 1, 17)
    for low, high, color, label in _ranges():
        axes.axvspan(low, high, color=color, alpha=0.15, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("log2 of the gradient's magnitude")
    axes.set_ylabel("share of all that are not 0, %")
    lost = "\n".join(f"loss scale {scale:g}: {100 * found.share_lost(scale):.2f} % become 0" for scale in scales)
    axes.text(0.015, 0.76, lost, transform=axes.transAxes, va="top", fontsize=9)
    axes.set_title(title)
    axes.legend(loc="upper left", fontsize=9)
    save(figure, path)


def _ranges() -> Iterator[Tuple[float, float, str, str]]:
    """Yield the ranges of float16 by log2, each with a color and what it is."""
    limits = np.finfo(np.float16)
    normal, largest = math.log2(limits.tiny), math.log2(limits.max)
    least = normal + math.log2(limits.eps)  # the smallest subnormal number
    yield SMALLEST - 1, least - 1, "C3", "becomes 0 in float16"
    yield least - 1, normal, "C1", "subnormal in float16: fewer bits"
    yield normal, largest, "C2", "normal in float16"


def _batches(scenes: Scenes, batch_size: int, seed: int, steps: int) -> Iterator[Batch]:
    epochs = (scenes.train(batch_size, epoch, seed) for epoch in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(epochs), steps)


@click.command(cls=Command)
@click.option("--network", default=SMALL_SYMBOL, show_default=True, help="An SSD of symbols/.")
@data_options
@learning_rate_option(0.004)
@ctx_option
@click.option("--steps", type=click.IntRange(min=1), default=200, show_default=True, help="Of training.")
@click.option("--every", type=click.IntRange(min=1), default=10, show_default=True, help="Steps between measurements.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Of weights and order.")
@output_option("ssd_gradients", f"Folder for {PICTURE}, which is replaced.")
def main(
    network: str,
    data: str,
    size: Optional[int],
    learning_rate: float,
    ctx: Tuple[mx.Context, ...],
    steps: int,
    every: int,
    batch_size: int,
    seed: int,
    output: Path,
    **source: Any,
) -> None:
    """Train an SSD detector in float32 and draw how much of its gradients float16 would lose, by loss scale."""
    require_symbol(network)
    scenes = load(data, size=size or image_size(network), **source)
    require_batch(batch_size, ctx)
    policy, loss_scale = mxmp.Policy.parse("O0"), mxmp.loss_scale.parse(None)
    # As epochs of one step: the learning rate falls over all steps, of however many epochs.
    options = Options(policy, loss_scale, ctx, steps, 1, batch_size, seed, resume=False, force=False, output=output)
    learner = SymbolLearner(network, scenes, options, learning_rate)
    output.mkdir(parents=True, exist_ok=True)
    console, found = Console(), Magnitudes()
    batches = _batches(scenes, batch_size, seed, steps)
    for number, batch in enumerate(track(batches, "training", total=steps, console=console)):
        if number % every == 0:
            found.merge(measure(learner, scenes.size, batch, ctx[0]))
        learner.step(batch)
    if not found.total:
        raise click.ClickException("all gradients are 0 or not finite; look at --data and --learning-rate.")
    draw(found, SCALES, f"{network} on {data}, float32, {steps} steps", output / PICTURE)
    console.print(scales_table(found, SCALES))
    console.print(f"{found.zeros / (found.total + found.zeros):.1%} of all gradients are 0 in float32 already.")
    console.print(f"written: {output / PICTURE}", soft_wrap=True)


if __name__ == "__main__":
    main()
