"""Train the digits in each precision with several seeds and print how far each is from float32.

Run it from the repository: ``python -m benchmarks.accuracy``.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import mean

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.common import make_parser, write
from examples.common.plot import save
from examples.digits import TITLES, explain, load_data, train

BASELINE = "float32"
TARGET = 0.5
"""Largest distance wanted from float32, in points of accuracy, between the means over the seeds."""


def measure(modes: list[str], seeds: list[int], epochs: int, batch_size: int) -> dict[str, list[float]]:
    """Return the test accuracy in percent, one for each seed, by mode."""
    data = load_data()
    accuracies: dict[str, list[float]] = {mode: [] for mode in modes}
    for mode, seed in track([(mode, seed) for seed in seeds for mode in modes], "training"):
        run, _ = train(mode, data, epochs, batch_size, seed)
        accuracies[mode].append(100 * run.accuracy)
    return accuracies


def differences(accuracies: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean of each mode less that of float32, in points."""
    return {mode: mean(values) - mean(accuracies[BASELINE]) for mode, values in accuracies.items()}


def table(accuracies: dict[str, list[float]]) -> Table:
    """Return the accuracies as a table."""
    result = Table("mode", "each seed", "mean", "to float32", "target", title="Accuracy on handwritten digits, %")
    for mode, difference in differences(accuracies).items():
        values = accuracies[mode]
        each = "  ".join(f"{value:.2f}" for value in values)
        target = "" if mode == BASELINE else f"within {TARGET:g}"
        result.add_row(TITLES.get(mode, mode), each, f"{mean(values):.2f}", f"{difference:+.2f}", target)
    return result


def plot(accuracies: dict[str, list[float]], path: str) -> None:
    """Draw one dot for each run and a line at each mean."""
    figure = Figure(figsize=(7, 4), tight_layout=True)
    axes = figure.subplots()
    for place, values in enumerate(accuracies.values()):
        axes.plot([place] * len(values), values, "o", color="C0")
        axes.hlines(mean(values), place - 0.2, place + 0.2, color="C1")
    center = mean(accuracies[BASELINE])
    axes.axhspan(center - TARGET, center + TARGET, color="C2", alpha=0.15, label="target for the means")
    axes.set_xticks(range(len(accuracies)), [TITLES.get(mode, mode) for mode in accuracies])
    axes.set(ylabel="test accuracy, %", title="ResNet-20 on handwritten digits")
    axes.legend()
    save(figure, path)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--modes", nargs="+", default=list(TITLES)[1:], metavar="POLICY", help="besides float32")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train, print the table, write JSON and plot."""
    args = parse_args(argv)
    console = Console()
    modes = explain([BASELINE, *(mode for mode in args.modes if mode != BASELINE)], console)
    accuracies = measure(modes, args.seeds, args.epochs, args.batch_size)
    result = {
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "seeds": args.seeds,
        "accuracies": accuracies,
    }
    result = {**result, "differences": differences(accuracies), "target": TARGET}
    file = write(args.out, "accuracy", result)
    plot(accuracies, str(args.out / "accuracy.png"))
    console.print(table(accuracies))
    console.print(f"Written: {os.path.relpath(file)} and accuracy.png beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
