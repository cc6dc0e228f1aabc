"""The training loop: epochs of steps with a progress bar, checkpoints, and an end that Ctrl-C may bring."""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import shlex
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any, Dict, Iterable, Iterator, Mapping, NoReturn, Optional, Sequence, Tuple

import click
import mxnet as mx
from mxmp.diagnose import check_devices
from rich.console import Console

from examples.common import checkpoint
from examples.common.command import INTERRUPTED, Interrupted
from examples.common.history import History
from examples.common.interrupt import interruptible
from examples.common.options import Options
from examples.common.parts import Part
from examples.common.plot import draw
from examples.common.progress import Display
from examples.common.summary import epochs_table, pairs_table
from examples.common.workers import Workers


class Data(abc.ABC):
    """Batches, of whatever the learner takes: of several workers each yields its own part.

    Attributes:
        count: Examples to train on.
    """

    count: int

    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch, of so many examples of all workers together."""
        return self.count // batch_size

    @abc.abstractmethod
    def train(self, batch_size: int, epoch: int, seed: int) -> Iterable[Any]:
        """Yield the whole batches of an epoch, which depend on nothing but the arguments."""

    @abc.abstractmethod
    def test(self, batch_size: int) -> Iterable[Any]:
        """Yield the batches held out, in order; the last one may be smaller."""


class Learner(abc.ABC):
    """What is trained.

    Attributes:
        parts: Networks with their trainers, by the names of their files.
        scaler: The trainer or module that scales the loss, if it is one.
    """

    parts: Mapping[str, Part]
    scaler: Any

    @property
    def loss_scale(self) -> float:
        """The present loss scale."""
        return float(self.scaler.loss_scale.value)

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far."""
        return int(self.scaler.skipped_steps)

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped."""
        return bool(self.scaler.last_step_skipped)

    @abc.abstractmethod
    def step(self, batch: Any) -> Dict[str, float]:
        """Train on a batch and return what it gave: 'loss', 'accuracy', ... the same names every time.

        Of several workers each returns the means over its part of the batch.
        """

    @abc.abstractmethod
    def evaluate(self, batches: Iterable[Any]) -> Dict[str, float]:
        """Return figures of the batches held out; of several workers, the first alone is asked."""

    def finish(self, folder: Path) -> Sequence[Tuple[str, Path]]:
        """Write more files at the end of a run; return what each is and where, for the last table."""
        return ()


def total_steps(data: Data, options: Options) -> int:
    """Return the number of steps of a whole run, for a learning rate schedule."""
    steps = data.steps(options.batch_size)
    if not steps:
        raise click.BadParameter(
            f"there are fewer than {options.batch_size} training examples.", param_hint="--batch-size"
        )
    return options.epochs * min(steps, options.batches or steps)


def falling_rate(data: Data, options: Options, learning_rate: float) -> Dict[str, Any]:
    """Return parameters of an optimizer: a rate that warms up over a tenth of a run and falls like a cosine to 0.

    Skipped steps do not count as any.
    """
    steps = total_steps(data, options)
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=learning_rate, warmup_steps=steps // 10)
    return {"learning_rate": learning_rate, "lr_scheduler": schedule}


def run(
    learner: Learner,
    data: Data,
    options: Options,
    settings: Mapping[str, Any],
    title: str,
    workers: Optional[Workers] = None,
) -> History:
    """Train, save after each epoch, and end with a table, a plot and the files' names.

    Args:
        learner: What to train.
        data: What on.
        options: The options of the script.
        settings: What decides on the run's course beside the options: network, data, learning rate.
        title: Stands above table and plot.
        workers: The processes that train together, each of which calls this. All stop after the same
            step; files, table and all but one line are the first one's, as are the figures of what was
            held out.

    Raises:
        Interrupted: At Ctrl-C, after the present step; the state is saved then, and the run goes on
            with ``--resume``.
        click.ClickException: If the checkpoint to resume from is missing or of another run.
    """
    workers = workers or Workers()
    settings = {**settings, **options.settings(), "workers": workers.size}
    one = _Run(learner, data, options, settings, workers)
    one.train()
    if one.first:
        one.report(title)
    return one.history


class _Stopped(Exception):
    """Ctrl-C was pressed, and the present step is over."""


class _Run:
    """A run and its state; arguments as for `run`."""

    def __init__(
        self, learner: Learner, data: Data, options: Options, settings: Mapping[str, Any], workers: Workers
    ) -> None:
        self._learner, self._data, self._options = learner, data, options
        self._settings, self._workers = settings, workers
        self.first, self.history = workers.rank == 0, History()
        self._console = Console(quiet=not self.first)

    def train(self) -> None:
        """Train from the beginning or from a checkpoint to the end, or to Ctrl-C."""
        self._begin()
        try:
            with interruptible() as requested:
                if self._workers.size > 1:  # from here on Ctrl-C ends the run after a step
                    share = f"takes {self._options.batch_size // self._workers.size} examples of each step"
                    click.echo(f"worker {self._workers.rank} of {self._workers.size} {share}")
                with Display(self._console) as display:
                    while len(self.history.epochs) < self._options.epochs:
                        self._train_epoch(requested, display)
                        self._evaluate(requested)
                        self._save()
        except _Stopped:
            self._save()
            self._end_early()

    def report(self, title: str) -> None:
        """Write and print what is left of the run."""
        output, history = self._options.output, self.history
        written = self._learner.finish(output)
        policy = str(self._options.policy).replace(",", ", ")
        draw(history, output / "run.png", f"{title}\n{policy}")
        files = [
            *((f"network {name}", output / f"{name}-0000.params") for name in self._learner.parts),
            ("history", output / checkpoint.RECORD),
            ("plot", output / "run.png"),
            *written,
        ]
        steps = f"{history.step}, of which {self._learner.skipped_steps} skipped"
        if self._learner.skipped_steps == history.step:
            steps += ": nothing is learned before the loss scale fits; train longer"
        self._console.print(epochs_table(history, title))
        rows = [("policy", policy), ("steps", steps), *((name, os.path.relpath(file)) for name, file in files)]
        self._console.print(pairs_table(rows))

    def _begin(self) -> None:
        output = self._options.output
        if self._options.resume:
            self.history = checkpoint.load(output, self._learner.parts, self._settings)
        elif not self._options.force:
            checkpoint.require_free(output)
        if self.first:
            output.mkdir(parents=True, exist_ok=True)  # fails now rather than after an epoch
        *cards, processor = check_devices(self._options.policy)
        for finding in [processor] if self._options.ctx[0].device_type == "cpu" else cards:
            self._console.print(finding.message, style="dim", highlight=False)

    def _train_epoch(self, requested: Event, display: Display) -> None:
        """Train for what is left of the present epoch; raise `_Stopped` on all workers if one was asked to stop."""
        options, history, workers = self._options, self.history, self._workers
        epoch, done = len(history.epochs), history.step - history.epoch_start
        steps = total_steps(self._data, options) // options.epochs
        display.begin(epoch + 1, steps, done)
        batches = self._data.train(options.batch_size, epoch, options.seed)
        for batch in itertools.islice(batches, done, steps):
            # Noise such as dropout's depends on seed, step and worker alone, so that a resumed run draws the same.
            mx.random.seed((options.seed * 1_000_003 + history.step * workers.size + workers.rank) % 2**31)
            start, scale = time.perf_counter(), self._learner.loss_scale
            values = self._learner.step(batch)
            stop, *totals = workers.sum([requested.is_set(), *values.values()])
            values = {name: total / workers.size for name, total in zip(values, totals)}
            series = {**values, "loss scale": scale, "seconds": time.perf_counter() - start}
            history.add_step(series, self._learner.last_step_skipped)
            display.step({**{name: f"{value:.3f}" for name, value in values.items()}, "scale": f"{scale:g}"})
            if stop:
                raise _Stopped

    def _evaluate(self, requested: Event) -> None:
        """End the epoch with what worker 0 measures, whose network is the one that is saved; or stop before its end."""
        figures: Mapping[str, float] = {}
        if self.first:
            held_out = itertools.islice(self._data.test(self._options.batch_size), self._options.batches)
            with contextlib.suppress(_Stopped):
                figures = self._learner.evaluate(_until(requested, held_out))
        (stop,) = self._workers.sum([requested.is_set()])
        if stop:
            raise _Stopped
        self.history.add_epoch(figures)

    def _save(self) -> None:
        if self.first:
            checkpoint.save(self._options.output, self._learner.parts, self._settings, self.history)

    def _end_early(self) -> NoReturn:
        self._workers.sum([0])  # whoever ends ends all: not before the state is saved
        if not self.first:
            raise click.exceptions.Exit(INTERRUPTED)
        arguments = [argument for argument in sys.argv if argument not in ("--force", "--resume")]
        again = shlex.join([os.path.basename(sys.executable), *arguments, "--resume"])
        how = f"with: {again}" if self._workers.size == 1 else "with the same command and --resume"
        raise Interrupted(f"interrupted after step {self.history.step}; it is saved, go on {how}") from None


def _until(requested: Event, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; raise after the one during which Ctrl-C was pressed."""
    for batch in batches:
        yield batch
        if requested.is_set():
            raise _Stopped
