"""The labels in ImageRecord files, without the images."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, Iterator, Sequence

import click
import numpy as np

_MAGIC = 0xCED7230A  # kMagic of dmlc-core's recordio.h
_LENGTH_BITS = 29
_HEADER = struct.Struct("<II")  # the magic number; what part of a record this is, and its length
_LABEL = struct.Struct("<IfQQ")  # mx.recordio.IRHeader: how many labels follow, or none and the label; two indices


def read_labels(path: Path) -> Iterator[np.ndarray]:
    """Yield the label of each record, one number or several: (n,), float32.

    Args:
        path: The file, as MXNet's ``im2rec`` writes it.
    """
    count, position, size = 0, 0, path.stat().st_size
    with path.open("rb") as file:
        while position < size:
            magic, word = _HEADER.unpack(_read(file, _HEADER.size, path, count))
            if magic != _MAGIC:
                raise click.ClickException(f"{path}: no ImageRecord file, or damaged after {count} records.")
            if word >> _LENGTH_BITS in (0, 1):  # a whole record, or the first part of one
                several, label, _, _ = _LABEL.unpack(_read(file, _LABEL.size, path, count))
                count += 1
                yield np.frombuffer(_read(file, 4 * several, path, count), "<f4") if several else np.float32([label])
            position += _HEADER.size + ((word & ((1 << _LENGTH_BITS) - 1)) + 3) // 4 * 4
            file.seek(position)
    if not count or position > size:
        raise click.ClickException(f"{path}: {'empty' if not count else f'truncated in record {count}'}.")


def find_record_file(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of some files that there is: ``NAME.rec``."""
    for name in names:
        path = folder / f"{name}.rec"
        if path.is_file():
            return path
    raise click.ClickException(
        f"{folder}: there is no {' or '.join(f'{name}.rec' for name in names)} in it. MXNet's tools/im2rec.py writes "
        "such files from images."
    )


def _read(file: BinaryIO, size: int, path: Path, count: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise click.ClickException(f"{path}: truncated after {count} records.")
    return content
