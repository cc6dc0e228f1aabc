"""The training loop: epochs of steps with a progress bar, checkpoints, and an end that Ctrl-C may bring."""

from __future__ import annotations

import abc
import itertools
import os
import shlex
import sys
import time
from typing import Any, Dict, Iterable, List, Mapping

import click
import mxnet as mx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from examples.common import checkpoint
from examples.common.command import Interrupted
from examples.common.history import History
from examples.common.interrupt import Request, Stopped, interruptible
from examples.common.options import Options
from examples.common.parts import Part
from examples.common.plot import draw
from examples.common.summary import epochs_table, pairs_table
from mxmp.diagnose import Finding, check_devices


class Data(abc.ABC):
    """Batches, of whatever the learner takes."""

    @abc.abstractmethod
    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""

    @abc.abstractmethod
    def train(self, batch_size: int, epoch: int, seed: int) -> Iterable[Any]:
        """Yield the batches of an epoch, which depend on nothing but the arguments."""

    @abc.abstractmethod
    def test(self, batch_size: int) -> Iterable[Any]:
        """Yield the batches held out."""


class Learner(abc.ABC):
    """What is trained.

    Attributes:
        parts: Networks with their trainers, by the names of their files.
    """

    parts: Mapping[str, Part]

    @property
    @abc.abstractmethod
    def loss_scale(self) -> float:
        """The present loss scale."""

    @property
    @abc.abstractmethod
    def skipped_steps(self) -> int:
        """Steps skipped so far."""

    @abc.abstractmethod
    def step(self, batch: Any) -> Dict[str, float]:
        """Train on a batch and return what it gave: 'loss', 'accuracy', ... the same names every time."""

    @abc.abstractmethod
    def evaluate(self, batches: Iterable[Any]) -> Dict[str, float]:
        """Return figures of the batches held out."""


def total_steps(data: Data, options: Options) -> int:
    """Return the number of steps of a whole run, for a learning rate schedule.

    Raises:
        click.ClickException: If there is not one batch.
    """
    steps = data.steps(options.batch_size)
    if not steps:
        raise click.BadParameter(
            f"there are fewer than {options.batch_size} training examples.", param_hint="--batch-size"
        )
    return options.epochs * min(steps, options.batches or steps)


def run(learner: Learner, data: Data, options: Options, settings: Mapping[str, Any], title: str) -> History:
    """Train, save after each epoch, and end with a table, a plot and the files' names.

    Args:
        learner: What to train.
        data: What on.
        options: The options of the script.
        settings: What decides on the run's course beside the options: network, data, learning rate.
        title: Stands above table and plot.

    Raises:
        Interrupted: At Ctrl-C, after the present step; the state is saved then, and the run goes on
            with ``--resume``.
        click.ClickException: If the checkpoint to resume from is missing or of another run.
    """
    settings = {**settings, **options.settings()}
    history = History()
    if options.resume:
        history = checkpoint.load(options.output, learner.parts, settings)
    elif not options.force:
        checkpoint.require_free(options.output)
    options.output.mkdir(parents=True, exist_ok=True)  # fails now rather than after an epoch
    console = Console()
    for finding in _findings(options):
        console.print(finding.message, style="dim", highlight=False)
    try:
        with interruptible() as requested, _progress(console) as progress:
            for _ in range(len(history.epochs), options.epochs):
                _train_epoch(learner, data, options, history, progress, requested)
                checkpoint.save(options.output, learner.parts, settings, history)
    except Stopped:
        checkpoint.save(options.output, learner.parts, settings, history)
        raise Interrupted(
            f"interrupted after step {history.step}; it is saved, go on with: {_resume_command()}"
        ) from None
    _report(learner, options, history, title, console)
    return history


def _train_epoch(
    learner: Learner,
    data: Data,
    options: Options,
    history: History,
    progress: Progress,
    requested: Request,
) -> None:
    """Train for what is left of the present epoch, and evaluate."""
    epoch, done = len(history.epochs), history.step - history.epoch_start
    steps = total_steps(data, options) // options.epochs
    task = progress.add_task(f"epoch {epoch + 1}", total=steps, completed=done, state="")
    batches = itertools.islice(data.train(options.batch_size, epoch, options.seed), done, steps)
    for batch in requested.guard(batches):
        # Noise such as dropout's depends on seed and step alone, so that a resumed run draws the same.
        mx.random.seed((options.seed * 1_000_003 + history.step) % 2**31)
        start, scale = time.perf_counter(), learner.loss_scale
        values = learner.step(batch)
        history.add_step({**values, "loss scale": scale, "seconds": time.perf_counter() - start})
        state = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
        progress.update(task, advance=1, state=f"{state}  scale {scale:g}")
    held_out = itertools.islice(data.test(options.batch_size), options.batches)
    history.add_epoch(learner.evaluate(requested.guard(held_out)))


def _report(learner: Learner, options: Options, history: History, title: str, console: Console) -> None:
    picture = options.output / "run.png"
    draw(history, picture, title)
    console.print(epochs_table(history, title))
    pairs = [
        ("policy", options.policy),
        ("steps", f"{history.step}, of which {learner.skipped_steps} skipped"),
        *((f"network {name}", _relative(options.output / f"{name}-0000.params")) for name in learner.parts),
        ("history", _relative(options.output / checkpoint.RECORD)),
        ("plot", _relative(picture)),
    ]
    console.print(pairs_table(pairs))


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description:9}"), BarColumn(), TextColumn("{task.completed}/{task.total}")
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[state]}"), console=console)


def _findings(options: Options) -> List[Finding]:
    """Return what the policy means on the devices that are used: the processor, or the graphics cards."""
    *cards, processor = check_devices(options.policy)
    return [processor] if options.ctx[0].device_type == "cpu" else cards


def _resume_command() -> str:
    arguments = [argument for argument in sys.argv if argument not in ("--force", "--resume")]
    return shlex.join([os.path.basename(sys.executable), *arguments, "--resume"])


def _relative(path: Any) -> str:
    return os.path.relpath(path)
