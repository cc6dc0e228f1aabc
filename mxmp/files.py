"""Files that are written whole or not at all, several of them as one.

Each file is written under a temporary name in its folder, ``<name>.<16 hex digits>.tmp``, and takes its
place when all are complete and on the disk. A process that was killed leaves such files; the next one
that writes a file of that name removes them. It knows those in use by their lock (flock), so that
processes and threads that write the same file do not disturb each other: the last one wins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from typing import Iterator, List, Optional, Sequence, Set, Tuple

from .errors import CheckpointError

_TRIES = 100  # of a temporary name; the first one is free but for a race with a process that cleans
_WRITING: Set[str] = set()  # temporary names of this process, locked; a save within another writes to one as it is


@contextlib.contextmanager
def replacing(*paths: str) -> Iterator[Tuple[str, ...]]:
    """Yield a temporary name beside each path; the files take their places, all of them, when the block ends well.

    If the block raises, or one file cannot take its place, nothing is left behind and what stood at
    the paths is as it was. What a link leads to is replaced, not the link. A file that existed keeps
    its permissions, a new one gets those of the process's umask. When this returns, files and names are
    on the disk, as far as the file system says so. An OSError says that a path is no file that can be
    written, or that nothing was written to one; a missing folder is a CheckpointError.
    """
    targets = tuple(os.path.realpath(path) for path in paths)
    for target in targets:
        _require_writable(target)
    with contextlib.ExitStack() as stack:
        for target in targets:
            _remove_abandoned(target)
        modes = [stat.S_IMODE(os.stat(each).st_mode) if os.path.lexists(each) else None for each in targets]
        names = tuple(
            target if target in _WRITING else stack.enter_context(_temporary(target, mode))
            for target, mode in zip(targets, modes)
        )
        yield names
        for name, mode in zip(names, modes):
            _finish(name, mode)
        finished = [(name, target) for name, target in zip(names, targets) if name != target]
        with _restoring([target for _, target in finished]):
            for name, target in finished:
                os.replace(name, target)
        _flush_folders(targets)


@contextlib.contextmanager
def saving(what: str, *paths: str) -> Iterator[Tuple[str, ...]]:
    """Do what `replacing` does, with one CheckpointError that says what could not be written, and why.

    A file that is saved within the block, under one of the temporary names, fails as part of this one.
    """
    try:
        with replacing(*paths) as names:
            yield names
    except (CheckpointError, OSError) as e:
        cause = e.__cause__ if isinstance(e, CheckpointError) else e
        if not isinstance(cause, OSError):
            raise
        raise CheckpointError(f"{what} cannot be written: {cause.strerror or cause}") from cause


def cache_folder() -> Optional[str]:
    """Return mxmp's part of the user's cache folder, ``$XDG_CACHE_HOME`` or ``~/.cache``; None if there is none."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG Base Directory Specification: ignore it
        folder = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(folder, "mxmp") if os.path.isabs(folder) else None


def is_local(path: str) -> bool:
    """Return whether a path that MXNet is given is one of this machine's, not a URI such as ``s3://...``."""
    return "://" not in os.fspath(path)


def require_file(path: str) -> None:
    """Raise a CheckpointError unless a path is a file to read: a pipe may never give anything."""
    if not os.path.isfile(path):
        found = "a folder" if os.path.isdir(path) else "a pipe or a device" if os.path.exists(path) else None
        raise CheckpointError(f"{path}: {f'it is {found}, not a file' if found else 'there is no such file'}.")


def require_folder(path: str) -> None:
    """Check, before any work, that the folder of a file or prefix exists."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise CheckpointError(f"{path}: there is no folder {folder}; make it first.")


def require_new(*paths: str, force: bool) -> None:
    """Check, before any work, that the files that ``-o`` names can be made: in a folder, and not there, or may go.

    Raises:
        CheckpointError: If not; it names the first that cannot.
    """
    for path in paths:
        require_folder(path)
        if os.path.isdir(path):
            raise CheckpointError(f"{path}: it is a folder; give another name to -o.")
        if os.path.lexists(path) and not force:
            raise CheckpointError(f"{path}: it exists; give another name to -o, or --force to overwrite it.")


def _require_writable(path: str) -> None:
    """Raise if a path is not one where a file may be written or replaced."""
    require_folder(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, f"{path} is a folder")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"{path} is no regular file, so none can take its place")
    if os.path.lexists(path) and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, f"{path} is write-protected")


@contextlib.contextmanager
def _temporary(path: str, mode: Optional[int]) -> Iterator[str]:
    """Make an empty file beside a path, locked, and remove it if it is there still at the end."""
    name, number = _create(path)
    _WRITING.add(name)
    try:
        if mode is not None:
            os.fchmod(number, mode | stat.S_IRUSR | stat.S_IWUSR)  # before there is anything to read in it
        yield name
    finally:
        _remove(name)
        _WRITING.discard(name)
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_UN)  # for processes that were forked meanwhile too
        os.close(number)


def _create(path: str) -> Tuple[str, int]:
    """Return the name of a new empty file beside a path, and its locked descriptor."""
    for _ in range(_TRIES):
        name = f"{path}.{secrets.token_hex(8)}.tmp"
        number = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        if _lock(number, fcntl.LOCK_EX) and os.path.lexists(name):
            return name, number
        os.close(number)  # one that cleans has come between
    raise OSError(errno.EAGAIN, f"temporary files beside {path} are removed as soon as they are made")


def _lock(number: int, kind: int) -> bool:
    """Lock an open file if no other has; return False if one has. True where the file system has no locks."""
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove_abandoned(path: str) -> None:
    """Remove what processes that were killed have left beside a path."""
    folder, base = os.path.split(path)
    pattern = re.compile(re.escape(base) + r"\.[0-9a-f]{16}\.(tmp|old)")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.path for entry in entries if pattern.fullmatch(entry.name)]:
            _remove_unless_locked(name)


def _remove_unless_locked(name: str) -> None:
    with contextlib.suppress(OSError):
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use, or cannot be known
            os.remove(name)
        finally:
            os.close(number)  # and with it the lock


def _finish(name: str, mode: Optional[int]) -> None:
    """Flush a file to the disk and set its permissions; raise if nothing was written to it."""
    with open(name, "rb+") as file:
        if not os.fstat(file.fileno()).st_size:
            raise OSError(errno.ENODATA, "nothing was written; is the disk full?")
        os.fsync(file.fileno())
        if mode is not None:
            os.fchmod(file.fileno(), mode)


def _flush_folders(paths: Sequence[str]) -> None:
    """Flush the folders of files to the disk, where the file system can."""
    for folder in dict.fromkeys(map(os.path.dirname, paths)):
        with contextlib.suppress(OSError):
            number = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


@contextlib.contextmanager
def _restoring(paths: Sequence[str]) -> Iterator[None]:
    """Put back what stands at some paths now, if the block raises."""
    kept: List[Tuple[str, Optional[str]]] = []
    with contextlib.ExitStack() as stack:
        for path in paths:
            kept.append((path, stack.enter_context(_second_name(path)) if os.path.lexists(path) else None))
        try:
            yield
        except BaseException:
            for path, name in kept:
                if name is not None:
                    os.replace(name, path)
                elif os.path.lexists(path):
                    os.remove(path)
            raise


@contextlib.contextmanager
def _second_name(path: str) -> Iterator[str]:
    """Give a file a second name, or copy it where the file system has no links; remove that at the end."""
    with contextlib.ExitStack() as stack:
        for _ in range(_TRIES):
            name = f"{path}.{secrets.token_hex(8)}.old"
            stack.callback(_remove, name)
            try:
                os.link(path, name)
            except OSError:
                shutil.copy2(path, name)
            if _lock_shared(name, stack):
                break
        yield name


def _lock_shared(name: str, stack: contextlib.ExitStack) -> bool:
    """Lock a second name, shared with others who write the same file; return False if it was removed before."""
    try:
        number = os.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # not to be read, so one that cleans cannot lock it either
    stack.callback(os.close, number)
    for _ in range(_TRIES):  # its last writer may hold it still
        if _lock(number, fcntl.LOCK_SH):
            break
        time.sleep(0.01)
    return os.path.lexists(name)


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.remove(name)
