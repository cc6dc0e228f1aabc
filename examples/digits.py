"""Train a CIFAR ResNet-20 on handwritten digits in float32, float16 and bfloat16, side by side.

Each precision starts from the same weights and sees the same batches. A table and a plot compare
them; then a mixed precision network is exported and scored in plain MXNet, without mxmp. It runs
on the CPU, where mxmp emulates float16: its accuracy is that of float16, its speed is not.

References:
    He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2 (ResNet-20);
    UCI "Optical Recognition of Handwritten Digits" (1797 images of 8x8, shipped by scikit-learn).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Callable, Iterator, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script it finds the repository

import mxmp
import mxnet as mx
import numpy as np
from gluoncv.model_zoo import cifar_resnet20_v1
from matplotlib.figure import Figure
from mxmp.diagnose import check_devices, runs_bfloat16
from mxnet import autograd, gluon
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from examples.common.batches import shuffled
from examples.common.plot import WINDOW, draw_scales, finish, save, smooth
from examples.image_classification.arrays import vary

HERE = Path(__file__).resolve().parent

TITLES = {"float32": "float32", "O1": "float16 O1", "O2": "float16 O2", "mixed_bfloat16": "bfloat16"}
"""What the modes of this demo are called in its output; each key is the name of a policy."""

LEGEND = "O1: weights in float32, cast for each step. O2: weights in float16, with float32 masters."
LEARNING_RATE = 0.1  # as section 4.2 of the paper, with its momentum and weight decay
# So short that a run of a few hundred steps shows the scale grow, overflow and back off; 2000 is usual.
LOSS_SCALE = mxmp.loss_scale.DynamicLossScale(growth_interval=20)


class Digits(NamedTuple):
    """Images (N, 1, 16, 16), float32 in [0, 1], with labels (N,), split for training and testing."""

    train_images: np.ndarray
    test_images: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray


@dataclass
class Run:
    """What training in one mode gave; the lists have one item per step."""

    mode: str
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    parameter_bytes: int = 0
    casts: int = 0
    cast_bytes: int | None = 0
    skipped: list[int] = field(default_factory=list)  # the numbers of those steps, from 1
    final_scale: float = 1.0

    @property
    def title(self) -> str:
        """The mode's name in tables and plots."""
        return TITLES.get(self.mode, self.mode)


def load_data() -> Digits:
    """Return the digits in a fixed split, 1200 to train and 597 to test.

    Every pixel is doubled, so that the last of the network's three stages still sees 4x4.
    """
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[:, None].repeat(2, axis=2).repeat(2, axis=3)
    return Digits(*train_test_split(images, digits.target, test_size=597, stratify=digits.target, random_state=0))


def batches(data: Digits, batch_size: int, rng: np.random.RandomState) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield one epoch of shuffled batches, each image shifted by up to one pixel each way."""
    for chosen in shuffled(len(data.train_images), batch_size, rng):
        yield vary(data.train_images[chosen], 1, False, rng), data.train_labels[chosen]


def make_net(mode: str, images: mx.nd.NDArray, seed: int) -> gluon.HybridBlock:
    """Return a ResNet-20 converted to a mode, with weights that depend on the seed alone."""
    mx.random.seed(seed)
    net = cifar_resnet20_v1(classes=10)
    net.initialize(mx.init.Xavier())
    net(images[:1])  # completes the shapes, and with them the initialization
    net.hybridize(static_alloc=True, static_shape=True)
    return mxmp.gluon.convert(net, mode)


def make_trainer(net: gluon.HybridBlock, mode: str, **optimizer_params: object) -> mxmp.gluon.Trainer:
    """Return an SGD trainer with the loss scale that a mode asks for."""
    wanted = mxmp.Policy.parse(mode).loss_scale
    return mxmp.gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": LEARNING_RATE, "momentum": 0.9, "wd": 1e-4, **optimizer_params},
        loss_scale=LOSS_SCALE if wanted == "dynamic" else wanted,
    )


def train_step(
    net: gluon.HybridBlock, trainer: mxmp.gluon.Trainer, images: mx.nd.NDArray, labels: mx.nd.NDArray
) -> mx.nd.NDArray:
    """Take one training step and return the loss of each image, (N,) float32."""
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels)
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    trainer.step(len(images))
    return loss


def train(
    mode: str, data: Digits, epochs: int, batch_size: int, seed: int, on_step: Callable[[Run], None] = lambda run: None
) -> tuple[Run, gluon.HybridBlock]:
    """Train in one mode and return what it gave, with the network.

    Args:
        mode: Name of a policy.
        data: What to train and test on.
        epochs: How often to go through the training images; a tenth of it warms up.
        batch_size: Images per step.
        seed: Decides on the weights, the order of the images and their shifts.
        on_step: Called after each step.
    """
    rng = np.random.RandomState(seed)
    net = make_net(mode, mx.nd.array(data.train_images[:batch_size]), seed)
    steps = epochs * (len(data.train_images) // batch_size)
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=LEARNING_RATE, warmup_steps=steps // 10)
    trainer = make_trainer(net, mode, lr_scheduler=schedule)
    run = Run(mode)
    for _ in range(epochs):
        for images, labels in batches(data, batch_size, rng):
            start = time.perf_counter()
            run.scales.append(trainer.loss_scale.value)
            loss = train_step(net, trainer, mx.nd.array(images), mx.nd.array(labels))
            run.losses.append(float(loss.mean().asscalar()))
            run.seconds.append(time.perf_counter() - start)
            run.skipped += [len(run.losses)] if trainer.last_step_skipped else []
            on_step(run)
    run.final_scale = trainer.loss_scale.value
    params = net.collect_params().values()
    run.parameter_bytes = sum(param.data().size * np.dtype(param.dtype).itemsize for param in params)
    if mxmp.Policy.parse(mode).is_mixed:
        report = mxmp.gluon.report(net)
        run.casts, run.cast_bytes = report.casts, report.cast_bytes
    predicted = net(mx.nd.array(data.test_images)).asnumpy().argmax(axis=1)
    run.accuracy = float((predicted == data.test_labels).mean())
    return run, net


def score_exported(net: gluon.HybridBlock, data: Digits, folder: Path) -> float:
    """Export a network and return its accuracy in a process that uses nothing of mxmp."""
    folder = folder.resolve()
    symbol_file, params_file = mxmp.gluon.export(net, str(folder / "digits"))
    np.savez(folder / "digits-test.npz", images=data.test_images, labels=data.test_labels)
    # mxmp run lets MXNet import where it does not by itself; the script checks that it uses nothing else of mxmp.
    command = [sys.executable, "-m", "mxmp", "run", str(HERE / "score_exported.py")]
    command += [symbol_file, params_file, str(folder / "digits-test.npz")]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["accuracy"])


def run_modes(args: argparse.Namespace, data: Digits, console: Console) -> list[tuple[Run, gluon.HybridBlock]]:
    """Train in each mode behind a progress bar."""
    total = args.epochs * (len(data.train_images) // args.batch_size)
    columns = (TextColumn("{task.description:10}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"), console=console) as progress:
        tasks = {mode: progress.add_task(TITLES.get(mode, mode), total=total, state="") for mode in args.modes}

        def show(run: Run) -> None:
            progress.update(tasks[run.mode], advance=1, state=f"loss {run.losses[-1]:.3f} scale {run.scales[-1]:g}")

        return [train(mode, data, args.epochs, args.batch_size, args.seed, show) for mode in args.modes]


def table(runs: list[Run]) -> Table:
    """Return the runs as a table, one row each."""
    result = Table(title="ResNet-20 on handwritten digits", caption=LEGEND, box=box.SIMPLE, padding=(0, 1, 0, 0))
    result.add_column("mode", no_wrap=True)
    for column in ("accuracy", "s/step", "params B", "casts", "cast B", "skipped", "scale"):
        result.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        cast_bytes = "unknown" if run.cast_bytes is None else f"{run.cast_bytes:,}"
        cells = [f"{100 * run.accuracy:.2f} %", f"{median(run.seconds):.4f}", f"{run.parameter_bytes:,}"]
        cells += [str(run.casts), cast_bytes, str(len(run.skipped)), f"{run.final_scale:g}"]
        result.add_row(run.title, *cells)
    return result


def plot(runs: list[Run], path: Path) -> None:
    """Draw the losses and the loss scales over the steps, the skipped ones marked."""
    figure = Figure(figsize=(9, 7), tight_layout=True)
    losses, scales = figure.subplots(2, 1, sharex=True)
    # O1 and O2 can coincide: later lines are dashed, so that those below show through.
    styles = {run.mode: {"color": f"C{i}", "linestyle": (0, (5, i)), "label": run.title} for i, run in enumerate(runs)}
    for run in runs:
        losses.plot(range(1, len(run.losses) + 1), smooth(run.losses), **styles[run.mode])
    for run in [run for run in runs if len(set(run.scales)) > 1] or runs:
        draw_scales(scales, run.scales, run.skipped, styles[run.mode]["color"], **styles[run.mode])
    losses.set(ylabel=f"training loss, mean of {WINDOW} steps", title="ResNet-20 on handwritten digits")
    scales.set_xlabel("step")
    finish(losses, 10)
    finish(scales, 2)
    save(figure, path)


def explain(modes: list[str], console: Console) -> list[str]:
    """Say how float16 and bfloat16 run on this machine; return the modes that run at all."""
    low = {mode: mxmp.Policy.parse(mode).compute_dtype for mode in modes}
    for dtype in sorted({"float16", "bfloat16"} & set(low.values()), reverse=True):
        console.print(check_devices(dtype)[-1].message)
    return [mode for mode in modes if low[mode] != "bfloat16" or runs_bfloat16()]


def check_export(results: list[tuple[Run, gluon.HybridBlock]], data: Digits, out: Path, console: Console) -> bool:
    """Export a mixed precision network and return whether plain MXNet gives it the same accuracy.

    bfloat16 is exported, since plain MXNet has no float16 convolution on a CPU.
    """
    exportable = [(run, net) for run, net in results if mxmp.Policy.parse(run.mode).compute_dtype == "bfloat16"]
    if not exportable:
        console.print("Nothing exported: on a CPU plain MXNet runs bfloat16 networks, but none of float16.")
        return True
    run, net = exportable[-1]
    accuracy = score_exported(net, data, out)
    same = accuracy == run.accuracy
    console.print(
        f"Exported the {run.title} network to {os.path.relpath(out / 'digits-symbol.json')}; plain MXNet scores it at "
        f"{100 * accuracy:.2f} %, {'the same' if same else 'NOT the same'} as here ({100 * run.accuracy:.2f} %)."
    )
    return same


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Return the command line's options, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("--epochs", 12), ("--batch-size", 64), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=HERE / "output", help="folder to write to; default: %(default)s")
    text = "policies; default: " + " ".join(TITLES)
    parser.add_argument("--modes", nargs="+", default=list(TITLES), metavar="POLICY", help=text)
    args = parser.parse_args(argv)
    if args.epochs < 1 or not 1 <= args.batch_size <= 1200:
        parser.error("--epochs has to be at least 1, and --batch-size from 1 to 1200")
    try:
        for mode in args.modes:
            mxmp.Policy.parse(mode)
    except mxmp.errors.PolicyError as e:
        parser.error(str(e))
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 if the exported network scores as the trained one did.

    Where MXNet runs no bfloat16 there is none to export, and the demo ends with the plot.
    """
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    args.modes = explain(args.modes, console)
    if not args.modes:
        return 1
    data = load_data()
    results = run_modes(args, data, console)
    runs = [run for run, _ in results]
    console.print(table(runs))
    plot(runs, args.out / "digits.png")
    console.print(f"Loss curves and loss scales: {os.path.relpath(args.out / 'digits.png')}")
    return 0 if check_export(results, data, args.out, console) else 1


if __name__ == "__main__":
    sys.exit(main())
