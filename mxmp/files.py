"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from typing import Iterator, List, Sequence, Tuple


@contextlib.contextmanager
def replacing(*paths: str) -> Iterator[Tuple[str, ...]]:
    """Yield a temporary name beside each path; the files take their places, all of them, when the block ends well.

    If the block raises, or one file cannot take its place, nothing is left behind and what stood at
    the paths is as it was.

    Args:
        *paths: Where the files are to stand, all in folders that exist.
    """
    paths = tuple(os.path.realpath(path) for path in paths)  # what a link leads to is replaced, not the link
    names = tuple(f"{path}.{os.getpid()}.tmp" for path in paths)
    kept = tuple(f"{path}.{os.getpid()}.old" for path in paths)
    for path in paths:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first", folder)
    try:
        yield names
        _flush(names)
        with _restoring(paths, kept):
            for name, path in zip(names, paths):
                os.replace(name, path)
    finally:
        for name in (*names, *kept):
            with contextlib.suppress(OSError):
                os.remove(name)


@contextlib.contextmanager
def _restoring(paths: Sequence[str], kept: Sequence[str]) -> Iterator[None]:
    """Put back what stands at some paths now, if the block raises."""
    before: List[bool] = []
    for path, name in zip(paths, kept):
        before.append(os.path.lexists(path))
        if before[-1]:
            _link(path, name)
    try:
        yield
    except BaseException:
        for path, name, existed in zip(paths, kept, before):
            if existed:
                os.replace(name, path)
            elif os.path.lexists(path):
                os.remove(path)
        raise


def _link(path: str, name: str) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    if os.path.isdir(path):
        raise IsADirectoryError(21, "is a folder", path)
    try:
        os.link(path, name, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, name, follow_symlinks=False)


def _flush(names: Sequence[str]) -> None:
    for name in names:
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
