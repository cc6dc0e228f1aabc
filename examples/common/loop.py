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
from typing import Any, Dict, Iterable, List, Mapping, NoReturn, Optional, Sequence, Tuple

import click
import mxnet as mx
from mxmp.diagnose import Finding, check_devices
from rich.console import Console

from examples.common import checkpoint
from examples.common.command import INTERRUPTED, Interrupted
from examples.common.history import History
from examples.common.interrupt import Request, Stopped, interruptible
from examples.common.options import Options
from examples.common.parts import Part
from examples.common.plot import draw
from examples.common.progress import Display
from examples.common.summary import epochs_table, pairs_table
from examples.common.workers import Workers


class Data(abc.ABC):
    """Batches, of whatever the learner takes: of several workers each yields its own part."""

    @abc.abstractmethod
    def steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch.

        Args:
            batch_size: Examples in each, of all workers together.
        """

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

    def finish(self, folder: Path, data: Data) -> Sequence[Tuple[str, Path]]:
        """Write more files at the end of a run; return what each is and where, for the last table.

        Args:
            folder: That of the run.
            data: What it trained on.
        """
        return ()


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
    return _Run(learner, data, options, settings, title, workers or Workers()).whole()


class _Run:
    """A run and its state; arguments as for `run`."""

    def __init__(
        self,
        learner: Learner,
        data: Data,
        options: Options,
        settings: Mapping[str, Any],
        title: str,
        workers: Workers,
    ) -> None:
        self._learner, self._data, self._options, self._title = learner, data, options, title
        self._settings = {**settings, **options.settings(), "workers": workers.size}
        self._workers = workers
        self._first = workers.rank == 0
        self._console = Console(quiet=not self._first)
        self._history = History()

    def whole(self) -> History:
        """Run from the beginning or from a checkpoint to the end, or to Ctrl-C."""
        self._begin()
        try:
            with interruptible() as requested:
                self._say_share()  # from here on Ctrl-C ends the run after a step
                with Display(self._console) as display:
                    for _ in range(len(self._history.epochs), self._options.epochs):
                        self._train(requested, display)
                        self._evaluate(requested)
                        self._save()
        except Stopped:
            self._save()
            self._end_early()
        if self._first:
            self._report(self._learner.finish(self._options.output, self._data))
        return self._history

    def _begin(self) -> None:
        output = self._options.output
        if self._options.resume:
            self._history = checkpoint.load(output, self._learner.parts, self._settings)
        elif not self._options.force:
            checkpoint.require_free(output)
        if self._first:
            output.mkdir(parents=True, exist_ok=True)  # fails now rather than after an epoch
        for finding in _findings(self._options):
            self._console.print(finding.message, style="dim", highlight=False)

    def _say_share(self) -> None:
        if self._workers.size > 1:
            share = self._options.batch_size // self._workers.size
            click.echo(f"worker {self._workers.rank} of {self._workers.size} takes {share} examples of each step")

    def _train(self, requested: Request, display: Display) -> None:
        """Train for what is left of the present epoch.

        Raises:
            Stopped: On all workers, if one was asked to stop.
        """
        options, history, workers = self._options, self._history, self._workers
        epoch, done = len(history.epochs), history.step - history.epoch_start
        steps = total_steps(self._data, options) // options.epochs
        display.begin(epoch + 1, steps, done)
        batches = self._data.train(options.batch_size, epoch, options.seed)
        for batch in itertools.islice(batches, done, steps):
            # Noise such as dropout's depends on seed, step and worker alone, so that a resumed run draws the same.
            mx.random.seed((options.seed * 1_000_003 + history.step * workers.size + workers.rank) % 2**31)
            start, scale = time.perf_counter(), self._learner.loss_scale
            values = self._learner.step(batch)
            stop, *totals = workers.sum([requested.made, *values.values()])
            values = {name: total / workers.size for name, total in zip(values, totals)}
            series = {**values, "loss scale": scale, "seconds": time.perf_counter() - start}
            history.add_step(series, self._learner.last_step_skipped)
            figures = {name: f"{value:.3f}" for name, value in values.items()}
            display.advance({**figures, "scale": f"{scale:g}"})
            if stop:
                raise Stopped

    def _evaluate(self, requested: Request) -> None:
        """End the epoch with what worker 0 measures, whose network is the one that is saved.

        Raises:
            Stopped: On all workers, if one was asked to stop; the epoch has not ended then.
        """
        figures: Mapping[str, float] = {}
        if self._first:
            held_out = itertools.islice(self._data.test(self._options.batch_size), self._options.batches)
            with contextlib.suppress(Stopped):
                figures = self._learner.evaluate(requested.guard(held_out))
        (stop,) = self._workers.sum([requested.made])
        if stop:
            raise Stopped
        self._history.add_epoch(figures)

    def _save(self) -> None:
        if self._first:
            checkpoint.save(self._options.output, self._learner.parts, self._settings, self._history)

    def _end_early(self) -> NoReturn:
        self._workers.sum([0])  # whoever ends ends all: not before the state is saved
        if not self._first:
            raise click.exceptions.Exit(INTERRUPTED)
        how = f"with: {_resume_command()}" if self._workers.size == 1 else "with the same command and --resume"
        raise Interrupted(f"interrupted after step {self._history.step}; it is saved, go on {how}") from None

    def _report(self, written: Sequence[Tuple[str, Path]]) -> None:
        output = self._options.output
        picture = output / "run.png"
        policy = str(self._options.policy).replace(",", ", ")
        draw(self._history, picture, f"{self._title}\n{policy}")
        self._console.print(epochs_table(self._history, self._title))
        pairs = [
            ("policy", policy),
            ("steps", _steps(self._history.step, self._learner.skipped_steps)),
            *((f"network {name}", _relative(output / f"{name}-0000.params")) for name in self._learner.parts),
            ("history", _relative(output / checkpoint.RECORD)),
            ("plot", _relative(picture)),
            *((name, _relative(file)) for name, file in written),
        ]
        self._console.print(pairs_table(pairs))


def _steps(number: int, skipped: int) -> str:
    """Return how many steps there were and how many were skipped; if all were, what to do."""
    text = f"{number}, of which {skipped} skipped"
    return f"{text}: nothing is learned before the loss scale fits; train longer" if skipped == number else text


def _findings(options: Options) -> List[Finding]:
    """Return what the policy means on the devices that are used: the processor, or the graphics cards."""
    *cards, processor = check_devices(options.policy)
    return [processor] if options.ctx[0].device_type == "cpu" else cards


def _resume_command() -> str:
    arguments = [argument for argument in sys.argv if argument not in ("--force", "--resume")]
    return shlex.join([os.path.basename(sys.executable), *arguments, "--resume"])


def _relative(path: Any) -> str:
    return os.path.relpath(path)
