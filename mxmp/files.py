"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Sequence, Tuple


@contextlib.contextmanager
def replacing(*paths: str) -> Iterator[Tuple[str, ...]]:
    """Yield a temporary name beside each path; the files take their places when the block ends well.

    If the block raises, nothing is left behind and what stood at the paths is as it was.

    Args:
        *paths: Where the files are to stand, all in folders that exist.
    """
    names = tuple(f"{path}.{os.getpid()}.tmp" for path in paths)
    try:
        yield names
        _flush(names)
        for name, path in zip(names, paths):
            os.replace(name, path)
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                os.remove(name)


def _flush(names: Sequence[str]) -> None:
    for name in names:
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
