"""Time one training step of ResNet-20 in each precision and print the ratios to float32.

The modes take turns, one step each, so that whatever else the machine does hits all of them
alike. Run it from the repository: ``python -m benchmarks.step_time``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from statistics import median
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "2")  # MXNet reads it once, when it is imported

import mxnet as mx
import numpy as np
from matplotlib.figure import Figure
from mxnet import gluon
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mxmp
from benchmarks.common import make_parser, write
from examples.common.plot import save
from examples.digits import TITLES, explain, make_net, make_trainer, train_step

BASELINE = "float32"
TARGETS = {"O1": 2.0, "O2": 2.0, "mixed_bfloat16": 1.0}
"""Largest ratio to float32 wanted: emulated float16; bfloat16 where the processor has it."""


class Training(NamedTuple):
    """A network in one mode, with all that one step of it needs."""

    net: gluon.HybridBlock
    trainer: mxmp.gluon.Trainer
    images: mx.nd.NDArray
    labels: mx.nd.NDArray

    def step(self) -> float:
        """Take one training step and return its seconds, the wait for its end included."""
        start = time.perf_counter()
        train_step(*self)
        mx.nd.waitall()
        return time.perf_counter() - start


def make_training(mode: str, batch_size: int) -> Training:
    """Return a training on noise: images (N, 3, 32, 32) float32, labels (N,)."""
    rng = np.random.RandomState(0)
    images = mx.nd.array(rng.rand(batch_size, 3, 32, 32))
    labels = mx.nd.array(rng.randint(0, 10, size=batch_size))
    net = make_net(mode, images, seed=0)
    # The labels are noise: a small learning rate keeps the losses finite for as long as it runs.
    return Training(net, make_trainer(net, mode, learning_rate=0.01), images, labels)


def measure(
    modes: list[str], batch_size: int, warmup: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of each timed step, and how many of them were skipped, by mode.

    Args:
        modes: Names of policies.
        batch_size: Images per step.
        warmup: Steps before the timed ones, enough for the loss scale to settle: a skipped step
            is a shorter one.
        rounds: Timed steps of each mode.
    """
    trainings = {mode: make_training(mode, batch_size) for mode in modes}
    for _ in track(range(warmup), "warming up"):
        for training in trainings.values():
            training.step()
    before = {mode: training.trainer.skipped_steps for mode, training in trainings.items()}
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in track(range(rounds), "measuring "):
        for mode, training in trainings.items():
            seconds[mode].append(training.step())
    return seconds, {mode: training.trainer.skipped_steps - before[mode] for mode, training in trainings.items()}


def table(medians: dict[str, float], ratios: dict[str, float], skipped: dict[str, int]) -> Table:
    """Return the medians and ratios as a table."""
    result = Table("mode", "ms/step", "ratio", "target", "skipped", title="One training step of ResNet-20")
    for mode, value in medians.items():
        target = f"at most {TARGETS[mode]:g}" if mode in TARGETS else ""
        result.add_row(TITLES.get(mode, mode), f"{1000 * value:.1f}", f"{ratios[mode]:.2f}", target, str(skipped[mode]))
    return result


def plot(seconds: dict[str, list[float]], path: str) -> None:
    """Draw the spread of the step times as boxes, one for each mode."""
    figure = Figure(figsize=(7, 4), tight_layout=True)
    axes = figure.subplots()
    axes.boxplot([[1000 * value for value in values] for values in seconds.values()], showfliers=False)
    axes.set_xticks(range(1, len(seconds) + 1), [TITLES.get(mode, mode) for mode in seconds])
    axes.set_ylim(bottom=0)
    axes.set(ylabel="ms per training step", title="ResNet-20 on a CPU; float16 is emulated")
    axes.grid(axis="y", alpha=0.3)
    save(figure, path)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--warmup", type=int, default=10, help="untimed steps; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps; default: %(default)s")
    parser.add_argument("--modes", nargs="+", default=list(TARGETS), metavar="POLICY", help="besides float32")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure, print the table, write JSON and plot."""
    args = parse_args(argv)
    console = Console()
    modes = explain([BASELINE, *(mode for mode in args.modes if mode != BASELINE)], console)
    seconds, skipped = measure(modes, args.batch_size, args.warmup, args.rounds)
    medians = {mode: median(values) for mode, values in seconds.items()}
    ratios = {mode: value / medians[BASELINE] for mode, value in medians.items()}
    result = {"batch_size": args.batch_size, "medians": medians, "ratios": ratios, "targets": TARGETS}
    file = write(args.out, "step_time", {**result, "skipped": skipped, "seconds": seconds})
    plot(seconds, str(args.out / "step_time.png"))
    console.print(table(medians, ratios, skipped))
    console.print(f"Written: {os.path.relpath(file)} and step_time.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
