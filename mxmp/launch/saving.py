"""Tells which workers of a job are saving when Ctrl-C is pressed, so that the launcher waits for them.

A worker that is blocked in MXNet, for another that has ended, never learns of Ctrl-C, so that not every
worker can be waited for. A worker is saving if it says so (`saves_on_interrupt`), or if it writes to a file.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

FOLDER = "MXMP_SAVING"
"""The environment variable that names a worker's folder; while there is a file in it, the worker is saving."""

_PROC = Path("/proc")

_Files = Dict[Tuple[int, int], Tuple[int, int]]
"""Size and time of the last change of files, by device and inode."""


@contextlib.contextmanager
def saves_on_interrupt() -> Iterator[None]:
    """Let the launcher wait for this worker after Ctrl-C, for half a minute, while it is in the block.

    It is for a worker that ends its present step and saves then, where that takes more than two
    seconds. Writing itself is seen without it. In a process that ``mxmp launch`` did not start it does nothing.

    Example:
        >>> with saves_on_interrupt():
        ...     pass  # train, and save at KeyboardInterrupt
    """
    folder = os.environ.get(FOLDER)
    if folder is None or not os.path.isdir(folder):
        yield
        return
    number, name = tempfile.mkstemp(dir=folder)
    os.close(number)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(name)


class SavingWorkers:
    """Finds the workers that are saving, by process groups and the folders in which they say that they save."""

    def __init__(self, groups: Mapping[str, int], folders: Mapping[str, str]) -> None:
        self._groups, self._folders = groups, folders
        self._before = {name: _open_files(group) for name, group in groups.items()}

    def find(self) -> List[str]:
        """Return the names of the workers that say so, or that write to a file.

        A file is being written if it was opened or has changed since this was last called. Where there is no
        ``/proc``, as on macOS, only what workers say counts.
        """
        return [name for name in self._groups if self._writes(name) or os.listdir(self._folders[name])]

    def _writes(self, name: str) -> bool:
        before, now = self._before[name], _open_files(self._groups[name])
        self._before[name] = {file: now.get(file, state) for file, state in before.items()}
        return any(before.get(file) != state for file, state in now.items())


def _open_files(group: int) -> _Files:
    """Return the regular files that the processes of a group have open for writing."""
    found: _Files = {}
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end meanwhile
            if int((process / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                for number in os.listdir(process / "fd"):
                    with contextlib.suppress(OSError):
                        found.update(_if_writable(process, number))
    return found


def _if_writable(process: Path, number: str) -> _Files:
    path = process / "fd" / number
    state = path.stat()
    if not stat.S_ISREG(state.st_mode) or not state.st_nlink or os.readlink(path).startswith("/dev/"):
        return {}  # a pipe, a temporary file, shared memory
    flags = next(line for line in (process / "fdinfo" / number).read_text().splitlines() if line.startswith("flags:"))
    if int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY:
        return {}
    return {(state.st_dev, state.st_ino): (state.st_size, state.st_mtime_ns)}
