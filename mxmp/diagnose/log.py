"""Log training steps: the record of a step, and its two forms, a table and event files of TensorBoard.

The values of a step stay on the device until the next step ends. The finite check of that step has waited for them by
then, so that the log adds no wait of the host to a step.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import csv
import dataclasses
import fcntl
import io
import math
import os
import secrets
import time
import weakref
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import mxnet as mx
import numpy as np
from mxnet.gluon.contrib.estimator import BatchEnd, TrainBegin, TrainEnd

from ..arrays import all_to_float32, sum_of_squares, to_float32
from ..errors import CheckpointError, DependencyError, TrainerError, a_type_of, listed
from ..files import require_folder
from ..train.step import Observer, Step, StepEnd, scaler_of
from .instrument import ranges_of

FILE = "steps.csv"
"""The name of a `CSVLogger`'s file in the folder of a run."""

_BEFORE_THE_STEP = -2001  # MXNet's GradientUpdateHandler, which calls the trainer's step, has -2000
_FLUSH_SECONDS = 5.0

Log = TypeVar("Log", bound="StepLogger")
Path = Union[str, "os.PathLike[str]"]


class StepRecord(NamedTuple):
    """One step of a log; None was not measured.

    Attributes:
        step: Its number among all steps, taken and skipped, from 1 on.
        seconds: Since the log was attached; where a log is attached again, or its file goes on, after the last ones.
        taken: Whether the weights were updated.
        scale: The loss scale of this step.
        next_scale: That of the next step.
        grad_norm: Norm of all true gradients, summed over contexts and workers, not divided by the batch size. The
            trainer clips them after it, the user's own code (by ``param.grad()``) before it. Not finite if a gradient
            is not.
        loss: Mean of the losses that `StepLogger.log` was given, of all batches of the step; without any, of those that
            went to ``scale_loss``. A Module sends none there.
        error: The error that the step raised, in one line.
        why: The weights whose gradients were not finite in a skipped step, each with the share of its elements, the
            smallest share first. Backward spreads inf and NaN to ever more elements, so that one is likely the
            cause.
    """

    step: int
    seconds: float
    taken: bool
    scale: float
    next_scale: float
    grad_norm: Optional[float] = None
    loss: Optional[float] = None
    error: str = ""
    why: str = ""


@dataclasses.dataclass
class _Step:
    """The values of a step that lie on the devices until they are written."""

    norm: Optional[Callable[[], float]] = None
    losses: List[Tuple[Any, int]] = dataclasses.field(default_factory=list)  # the mean of each, and its elements
    scaled: List[Tuple[Any, int]] = dataclasses.field(default_factory=list)  # the same of those that went to scale_loss
    why: str = ""
    record: Optional[StepRecord] = None  # the rest of a step that is over
    is_skipped: bool = False

    def read(self) -> StepRecord:
        """Return the record, complete."""
        losses = self.losses or self.scaled
        count = sum(size for _, size in losses)
        loss = sum(_number(mean) * size for mean, size in losses) / count if count else math.nan
        norm = None if self.norm is None else self.norm()
        assert self.record is not None
        return self.record._replace(grad_norm=norm, loss=loss if losses else None, why=self.why)


class StepLogger(Observer, TrainBegin, BatchEnd, TrainEnd, abc.ABC):
    """Records the steps of one trainer, module or optimizer; its children say where to.

    It changes nothing of the training, bit for bit. Each step is written when the next one ends, and the last one by
    `detach` or `close`. The end of the program closes every log that is still alive. A log that is gone with its
    trainer before that loses its last step, unless it is closed.

    Attributes:
        priority: For an Estimator: before the handler that makes the step.
    """

    priority = _BEFORE_THE_STEP
    path = ""  # The file or folder that is written.

    def __init__(self, every: int) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise TrainerError(f"{type(self).__name__}: every={every!r}; expected a whole number of steps, 1 or more.")
        self._every = every
        self._count, self._begin = 0, 0.0
        self._seconds = 0.0  # of the last step
        self._skipped = 0  # how many steps were skipped, up to the one that is written
        self._closed = False
        self._pending: Optional[_Step] = None  # a step that is over, and not written
        self._start()

    def _start(self) -> None:
        """Begin with a first batch."""
        self._step = _Step()
        self._has_loss = False  # whether that of the present batch was given
        self._awaits_loss = False  # whether that of the batch before was not
        self._in_group = False  # whether that batch made no step: gradients are added up

    def attach(self: Log, owner: Any) -> Log:
        """Record each step of a trainer, a module or a `LossScaleOptimizer` of mxmp from now on; return the log.

        A module may be attached before it is bound, so that ``fit`` is recorded. Steps that a kvstore takes by itself
        (``update_on_kvstore=True``) are not told. With several workers let one keep a log. A second call with the same
        owner does nothing.

        Raises:
            TrainerError: If ``owner`` is none of them; if the log is attached to another, or closed.
        """
        if self._closed:
            raise TrainerError(f"attach: this {type(self).__name__} is closed; make another.")
        is_new = self._owner is None
        super().attach(owner)
        if is_new:
            self._begin, self._skipped = time.monotonic() - self._seconds, owner.skipped_steps
            self._at_exit = _closing(self)
            atexit.register(self._at_exit)
        return self

    def detach(self) -> None:
        """Write the last step and record no further ones; a second call does nothing."""
        if self._owner is not None:
            super().detach()
            self._start()
            atexit.unregister(self._at_exit)
            self._flush()

    def close(self) -> None:
        """Detach, and close the file; a second call does nothing."""
        try:
            self.detach()
        finally:
            if not self._closed:
                self._closed = True
                self._end()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, every={self._every}, steps={self._count})"

    def log(self, loss: Any) -> None:
        """Record the loss of the step under way; between steps, that of the step that has just ended.

        In the loop of a `mxmp.gluon.Accumulator` the mean over all batches of a step is recorded, each by its elements.

        Args:
            loss: As it was before scaling: a number, an NDArray of any shape, or a list of them, one per context. Their
                mean is recorded; arrays are averaged on their devices in float32, and not waited for.

        Raises:
            TrainerError: If ``loss`` is none of these, or the log is not attached.
        """
        if self._owner is None:
            raise TrainerError(f"log: this {type(self).__name__} is not attached; call attach(trainer) first.")
        parts = list(loss) if isinstance(loss, (list, tuple)) else [loss]
        wrong = [part for part in parts if not isinstance(part, (int, float, np.number, mx.nd.NDArray))]
        if wrong or not parts:
            text = f"{a_type_of(wrong[0])}" if wrong else "an empty list"
            raise TrainerError(f"log: loss is {text}; expected a number, an NDArray, or a list of them.")
        between = scaler_of(self._owner).window is None and not self._in_group
        is_late = self._awaits_loss and (between or self._in_group)
        step = self._pending if is_late and between and self._pending is not None else self._step
        with mx.autograd.pause():
            step.losses += map(_mean, parts)
        self._has_loss, self._awaits_loss = not is_late, False

    # ------------------------------------------------------------------ an observer

    def on_losses(self, losses: Sequence[mx.nd.NDArray], begins: bool) -> None:
        """Average the losses that go to ``scale_loss``, on their devices, for a step of which `log` is told none."""
        if begins and not self._in_group:  # those before were discarded with their gradients
            self._step.scaled = []
        with mx.autograd.pause():
            self._step.scaled += map(_mean, losses)

    def on_batch(self) -> None:
        """Know that the next loss may be that of the batch which has just been added up."""
        self._end_batch(in_group=True)

    def _end_batch(self, in_group: bool) -> None:
        self._awaits_loss, self._has_loss, self._in_group = not self._has_loss, False, in_group

    def on_reduced(self, step: Step, scale: float) -> None:
        """Compute the sum of the squares of all gradients, in one step of ``every``; it stays on the device."""
        self._step.norm = _norm(step, scale) if self._count % self._every == 0 else None

    def on_skip(self, step: Step) -> None:
        """Note which gradients are not finite."""
        self._step.why = _why_skipped(step)

    def on_end(self, end: StepEnd) -> None:
        """Write the step before, and keep this one until the next ends."""
        self._flush()
        error = "" if end.error is None else " ".join(f"{type(end.error).__name__}: {end.error}".split())
        self._seconds = time.monotonic() - self._begin
        record = StepRecord(end.number, self._seconds, end.taken, end.scale, end.loss_scale.value, error=error)
        self._step.record, self._step.is_skipped = record, end.skipped
        if not (end.taken or end.skipped or error):
            self._step.why = "the loss is not finite"
        self._pending, self._step = self._step, _Step()
        self._end_batch(in_group=False)
        self._count += 1
        if end.error is not None:  # which may end the program
            self._flush()

    def _flush(self) -> None:
        step, self._pending = self._pending, None
        if step is not None:
            self._skipped += step.is_skipped
            self._write(step.read())

    # ------------------------------------------------------------------ a handler of an Estimator

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Attach the log to an Estimator's trainer."""
        self.detach()
        self.attach(estimator.trainer)

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Record the losses of a batch."""
        self.log(loss=kwargs["loss"])

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Write the last step."""
        self.detach()

    # ------------------------------------------------------------------ methods of children.

    @abc.abstractmethod
    def _write(self, record: StepRecord) -> None:
        """Write one step."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Close the file."""


class CSVLogger(StepLogger):
    """Writes a line per training step: number, seconds, scale, gradient norm, loss, errors.

    The columns are the fields of `StepRecord`; an empty cell was not measured, ``taken`` is 0 or 1. Each line
    is written whole, so that a process that is killed leaves whole lines. A file that exists is continued. A step that
    a resumed run makes again has two lines, the later one below.

    Args:
        path: A file that ends in ``.csv``; else the folder of a run, which is made if it is missing and gets a
            ``steps.csv``.
        every: In which steps the gradient norm is computed: the first, and then one in so many.

    Raises:
        CheckpointError: If the file cannot be written, has other columns, or another log is writing it.
        TrainerError: If ``every`` is no positive whole number.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run, CSVLogger(run) as log:  # CSVLogger(run).attach(trainer)
        ...     print(os.path.basename(log.path))
        steps.csv
    """

    def __init__(self, path: Path, *, every: int = 10) -> None:
        super().__init__(every)
        self.path = _file_of(path)
        with _writing(self.path):
            self._file = open(self.path, "ab+", buffering=0)
            try:
                self._go_on()
            except BaseException:
                self._file.close()
                raise

    def _go_on(self) -> None:
        """Go on behind the lines that are there: with our header, whole, and written by nobody else."""
        _lock(self._file, self.path)
        self._file.seek(0)
        content = self._file.read()
        header, whole = ",".join(StepRecord._fields), content[: content.rfind(b"\n") + 1]
        first = (whole or content).split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
        if first != header if whole else not header.startswith(first):
            raise CheckpointError(
                f"{self.path}: its columns are {first[:200]!r}; expected {header!r}. Give another path."
            )
        self._file.truncate(len(whole))  # a line that was never finished
        if not whole:
            self._append(StepRecord._fields)
        try:
            rows = list(csv.DictReader(whole.decode("utf-8", "replace").splitlines()))
            seconds = float(rows[-1]["seconds"]) if rows else 0.0
        except (TypeError, ValueError, csv.Error):  # of a line that is damaged
            seconds = 0.0
        self._seconds = seconds if math.isfinite(seconds) else 0.0

    def _append(self, cells: Any) -> None:
        """Append a line, or nothing if the disk is full."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        line, size = text.getvalue().encode("utf-8", "replace"), os.fstat(self._file.fileno()).st_size
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError:
            os.ftruncate(self._file.fileno(), size)
            raise

    def _write(self, record: StepRecord) -> None:
        record = record._replace(seconds=round(record.seconds, 3))
        with _writing(self.path):
            self._append([int(cell) if isinstance(cell, bool) else cell for cell in record])

    def _end(self) -> None:
        self._file.close()


class TensorBoardLogger(StepLogger):
    """Writes the scalars of each training step to an event file: ``tensorboard --logdir FOLDER`` shows them.

    They are ``loss_scale``, ``skipped_steps`` (of the trainer, so far), ``gradients/norm``, and ``loss`` if it is
    given; `StepRecord` explains each. Numbers that are not finite, such as the norm of a skipped step, are left out.
    The file is brought up to date every five seconds and at the end. A resumed run that is given the same folder goes
    on in a second file there.

    Args:
        folder: Of the event files; made if it is missing.
        every: In which steps the gradient norm is computed: the first, and then one in so many.

    Raises:
        DependencyError: If tensorboardX is missing: ``pip install './mxmp[tensorboard]'``.
        CheckpointError: If the folder cannot be written.
        TrainerError: If ``every`` is no positive whole number.
    """

    # tensorboardX's SummaryWriter writes from a thread of its own: where the disk is full that ends, and training
    # waits for ever. Its EventsWriter, which is called here, writes at once.

    def __init__(self, folder: Path, *, every: int = 10) -> None:
        super().__init__(every)
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise CheckpointError(f"TensorBoardLogger: folder is {folder!r}; expected the folder of the event files.")
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2
        except (ImportError, TypeError) as e:  # a TypeError is protobuf's, for messages made by another version of it
            why = str(e).strip().split("\n")[0]
            raise DependencyError(f"tensorboardX cannot be imported ({why}); pip install './mxmp[tensorboard]'.") from e
        self.path, self._event = os.fspath(folder), event_pb2.Event
        self._name = f"{self.path}: its event file"
        unique = f".{os.getpid()}.{secrets.token_hex(4)}"  # its own names are the same for a whole second
        with _writing(self._name):
            os.makedirs(folder, exist_ok=True)
            self._writer = EventsWriter(os.path.join(self.path, "events"), unique)
            self._flush_events()

    def _write(self, record: StepRecord) -> None:
        scalars = {
            "skipped_steps": self._skipped,
            "loss_scale": record.scale,
            "gradients/norm": record.grad_norm,
            "loss": record.loss,
        }
        event = self._event(wall_time=time.time(), step=record.step)
        for tag, value in scalars.items():
            if value is not None and math.isfinite(value):
                event.summary.value.add(tag=tag, simple_value=value)
        with _writing(self._name):
            self._writer.write_event(event)
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush_events()

    def _flush_events(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()

    def _end(self) -> None:
        with _writing(self._name):
            self._writer.close()


@contextlib.contextmanager
def _writing(name: str) -> Iterator[None]:
    """Let an error of the system within the block name the file that cannot be written."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as e:
        raise CheckpointError(f"{name} cannot be written: {e.strerror or e}.") from e


def _closing(log: StepLogger) -> Callable[[], None]:
    """Return a function that closes a log, and does not keep the log, its trainer or its parameters alive."""
    alive = weakref.ref(log)

    def close() -> None:
        log = alive()
        if log is not None:
            log.close()

    return close


def _file_of(path: Path) -> str:
    """Return the file that a path means; the folder of a run is made."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise CheckpointError(f"CSVLogger: path is {path!r}; expected the folder of a run or a file that ends in .csv.")
    text = os.fspath(path)
    if text.endswith(".csv"):
        require_folder(text)
        return text
    try:
        os.makedirs(text, exist_ok=True)
    except OSError as e:
        raise CheckpointError(f"{text}: the folder cannot be made: {e.strerror or e}.") from e
    return os.path.join(text, FILE)


def _lock(file: BinaryIO, path: str) -> None:
    """Hold a file for ourselves, where the file system has locks."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(f"{path}: another log is writing it; give each its own path.") from None
    except OSError:
        pass


def _norm(step: Step, scale: float) -> Callable[[], float]:
    """Return a function that reads the norm of the true gradients, the largest of several contexts or NaN."""
    groups = [group for group in step.groups() if group]
    groups = groups[:1] if step.kvstore is not None else groups  # All contexts have the same.
    squares = [sum_of_squares(all_to_float32([update.grad for update in group])) for group in groups]
    return lambda: float(np.sqrt(np.max([_number(square) for square in squares], initial=0.0))) / scale


def _why_skipped(step: Step) -> str:
    """Return in a line which gradients of a skipped step are not finite, the smallest share first; '' if all are.

    The smallest share of a gradient on several contexts counts. Waits for the gradients; they are read once for all
    logs of a step. The stored rows of a row_sparse gradient count.
    """
    if step.seen is None:
        step.seen = _nonfinite_shares(step)
    shares: Dict[str, float] = step.seen
    names = sorted(shares, key=lambda name: shares[name])
    text = listed(names, [f" ({100 * shares[name]:.3g} %)" for name in names])
    return f"gradients not finite: {text}" if names else ""


def _nonfinite_shares(step: Step) -> Dict[str, float]:
    shares: Dict[str, float] = {}
    for group in step.groups():
        named = ((step.name(update.index), update.grad.as_nd_ndarray()) for update in group)
        grads = {name: grad if grad.stype == "default" else grad.data for name, grad in named}
        for each in ranges_of({name: grad for name, grad in grads.items() if grad.size}):
            if each.bad:
                shares[each.name] = min(each.bad / each.size, shares.get(each.name, 1.0))
    return shares


def _mean(loss: Any) -> Tuple[Any, int]:
    """Return the mean of a loss, on its device, and the number of its elements."""
    if not isinstance(loss, mx.nd.NDArray):
        return float(loss), 1
    return to_float32(loss.as_nd_ndarray()).astype("float32", copy=False).mean(), loss.size


def _number(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0]) if isinstance(value, mx.nd.NDArray) else value
