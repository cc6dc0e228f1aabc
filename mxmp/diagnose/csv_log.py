"""Steps of a training as a table: a line per step in a file of comma separated values."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from typing import Any, BinaryIO, Union

from ..errors import CheckpointError
from ..files import require_folder
from .step_log import StepLogger, StepRecord

FILE = "steps.csv"
"""The name of the file in the folder of a run."""

_HEADER = ",".join(StepRecord._fields)
_OTHER = f"its columns are {{!r}}; expected {_HEADER!r}. Give another path."


class CSVLogger(StepLogger):
    """Writes a line per training step: number, seconds, scale, gradient norm, loss, shares of the ledger, errors.

    The columns are the fields of `StepRecord`; an empty cell is what was not measured, ``taken`` is 0 or 1. Each line
    is written whole, so that a process that is killed leaves whole lines. A file that is there already goes on: steps
    that a resumed run makes again stand in it twice, the later ones below.

    Args:
        path: A file that ends in ``.csv``; else the folder of a run, which is made if it is missing and gets a
            ``steps.csv``.
        every: In which steps the gradient norm is computed: the first, and then one in so many.
        ledger: A ledger on the same trainer, whose shares are recorded.

    Raises:
        CheckpointError: If the file cannot be written, has other columns, or another log is writing it.
        TrainerError: If ``every`` is no positive whole number, or ``ledger`` has no shares.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run, CSVLogger(run) as log:  # CSVLogger(run).attach(trainer)
        ...     print(os.path.basename(log.path))
        steps.csv
    """

    def __init__(self, path: Union[str, os.PathLike[str]], *, every: int = 10, ledger: Any = None) -> None:
        super().__init__(every, ledger)
        self.path = _file_of(path)
        try:
            self._file = _open(self.path)
        except OSError as e:
            if isinstance(e, CheckpointError):
                raise
            raise CheckpointError(f"{self.path} cannot be written: {e.strerror or e}.") from e
        self._seconds = _seconds_of(self._file)

    def _write(self, record: StepRecord) -> None:
        record = record._replace(seconds=round(record.seconds, 3))
        cells = [int(cell) if isinstance(cell, bool) else cell for cell in record]
        try:
            _append(self._file, cells)
        except OSError as e:
            raise CheckpointError(f"{self.path} cannot be written: {e.strerror or e}.") from e

    def _end(self) -> None:
        self._file.close()


def _file_of(path: Union[str, os.PathLike[str]]) -> str:
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


def _open(path: str) -> BinaryIO:
    """Open a file to be gone on with: with our header, whole lines, and no other that writes it."""
    file = open(path, "ab+", buffering=0)
    try:
        _lock(file, path)
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            found = whole.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
            if found != _HEADER:
                raise CheckpointError(f"{path}: {_OTHER.format(found[:200])}")
        elif not _HEADER.encode().startswith(content):
            raise CheckpointError(f"{path}: {_OTHER.format(content[:200].decode('utf-8', 'replace'))}")
        file.truncate(len(whole))  # a line that was never finished
        if not whole:
            _append(file, StepRecord._fields)
        return file
    except BaseException:
        file.close()
        raise


def _lock(file: BinaryIO, path: str) -> None:
    """Hold a file for ourselves, where the file system has locks."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(f"{path}: another log is writing it; give each its own path.") from None
    except OSError:
        pass


def _append(file: BinaryIO, cells: Any) -> None:
    """Append a line, or nothing if the disk is full."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    line = text.getvalue().encode("utf-8", "replace")
    size = os.fstat(file.fileno()).st_size
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:]) or 0
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


def _seconds_of(file: BinaryIO) -> float:
    """Return the seconds of the last line, 0 if there is none."""
    file.seek(0)
    lines = file.read().decode("utf-8", "replace").splitlines()
    rows = list(csv.DictReader(lines))
    try:
        return float(rows[-1]["seconds"]) if rows else 0.0
    except (TypeError, ValueError):
        return 0.0
