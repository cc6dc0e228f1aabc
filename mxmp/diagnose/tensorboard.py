"""Steps of a training as event files of TensorBoard, in the format that tensorboardX writes."""

from __future__ import annotations

import math
import os
import secrets
import time
from typing import Any, Union

from ..errors import CheckpointError, DependencyError
from .step_log import StepLogger, StepRecord

_SKIPPED = "skipped_steps"

_TAGS = {
    "scale": "loss_scale",
    "grad_norm": "gradients/norm",
    "zero_share": "gradients/zero_share",
    "subnormal_share": "gradients/subnormal_share",
    "largest": "gradients/largest",
    "loss": "loss",
}
"""Under which name TensorBoard shows a field of a step."""

_FLUSH_SECONDS = 5.0


class TensorBoardLogger(StepLogger):
    """Writes the scalars of each training step to an event file: ``tensorboard --logdir FOLDER`` shows them.

    They are ``loss_scale``, ``skipped_steps`` (of the trainer, so far), ``gradients/norm``, ``loss`` if it is given,
    and of a ledger ``gradients/zero_share``, ``gradients/subnormal_share`` and ``gradients/largest``; `StepRecord` says
    what each is. Numbers that are not finite, such as the norm of a skipped step, are left out. The file is brought up
    to date every five seconds and at the end. A resumed run that is given the same folder goes on in a second file
    there.

    Args:
        folder: Of the event files; made if it is missing.
        every: In which steps the gradient norm is computed: the first, and then one in so many.
        ledger: A ledger on the same trainer, whose shares are recorded.

    Raises:
        DependencyError: If tensorboardX is missing: ``pip install 'mxmp[tensorboard]'``.
        CheckpointError: If the folder cannot be written.
        TrainerError: If ``every`` is no positive whole number, or ``ledger`` has no shares.
    """

    # tensorboardX's SummaryWriter writes from a thread of its own: where the disk is full that ends, and training
    # waits for ever. Its EventsWriter, which is called here, writes at once.

    def __init__(self, folder: Union[str, os.PathLike[str]], *, every: int = 10, ledger: Any = None) -> None:
        super().__init__(every, ledger)
        if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
            raise CheckpointError(f"TensorBoardLogger: folder is {folder!r}; expected the folder of the event files.")
        writer, self._events = _import_tensorboard()
        self._folder = os.fspath(folder)
        unique = f".{os.getpid()}.{secrets.token_hex(4)}"  # its own names are the same for a whole second
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._writer = writer(os.path.join(self._folder, "events"), unique)
            self._flush_events()
        except OSError as e:
            raise self._unwritten(e) from e

    def _write(self, record: StepRecord) -> None:
        named = {tag: getattr(record, field) for field, tag in _TAGS.items()}
        found = {tag: value for tag, value in named.items() if value is not None and math.isfinite(value)}
        event = self._events.Event(wall_time=time.time(), step=record.step)
        for tag, value in {_SKIPPED: self._skipped, **found}.items():
            event.summary.value.add(tag=tag, simple_value=value)
        try:
            self._writer.write_event(event)
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush_events()
        except OSError as e:
            raise self._unwritten(e) from e

    def _flush_events(self) -> None:
        self._writer.flush()
        self._flushed = time.monotonic()

    def _end(self) -> None:
        try:
            self._writer.close()
        except OSError as e:
            raise self._unwritten(e) from e

    def _unwritten(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self._folder}: its event file cannot be written: {error.strerror or error}.")


def _import_tensorboard() -> Any:
    """Return tensorboardX's writer of event files and its messages."""
    try:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
    except (ImportError, TypeError) as e:  # a TypeError is protobuf's, for messages made by another version of it
        reason = str(e).strip().split("\n")[0]
        raise DependencyError(f"tensorboardX cannot be imported ({reason}); pip install 'mxmp[tensorboard]'.") from e
    return EventsWriter, event_pb2
