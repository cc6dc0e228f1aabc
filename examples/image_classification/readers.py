"""Readers of the files that MNIST, Fashion-MNIST and CIFAR-10 come in.

References:
    The idx format: LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
    The binary batches: Krizhevsky, "The CIFAR-10 dataset", https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import click
import numpy as np

from examples.image_classification.arrays import Split

_UINT8 = 8  # the idx format's code of the element type
_CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: label, then red, green and blue


def read_idx_split(folder: Path, kind: str, hint: str) -> Split:
    """Return images (N, 1, H, W) and labels of a pair of idx files, packed by gzip or not.

    Args:
        folder: Where they are.
        kind: What their names begin with: 'train' or 't10k'.
        hint: How to get them.
    """
    images_file = _find(folder, f"{kind}-images-idx3-ubyte", hint)
    labels_file = _find(folder, f"{kind}-labels-idx1-ubyte", hint)
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if len(images) != len(labels):
        raise click.ClickException(f"{images_file} has {len(images)} images, but {labels_file} {len(labels)} labels.")
    return Split(images[:, None], _checked(labels, labels_file))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the bytes in an idx file, an array of uint8.

    Args:
        path: The file; its name ends in '.gz' if it is packed.
        dimensions: How many it is to have.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as e:
        raise click.ClickException(f"{path}: it cannot be unpacked: {e}") from e
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, _UINT8, dimensions)):
        raise click.ClickException(f"{path}: no idx file of bytes in {dimensions} dimensions.")
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if len(content) - start != np.prod(shape):
        raise click.ClickException(f"{path}: truncated: {len(content) - start} bytes for an array of shape {shape}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_cifar10_split(folder: Path, names: tuple, hint: str) -> Split:
    """Return images (N, 3, 32, 32) and labels of binary batches.

    Args:
        folder: Where they are, or what holds their folder ``cifar-10-batches-bin``.
        names: Of the files.
        hint: How to get them.
    """
    inner = folder / "cifar-10-batches-bin"
    records = [_read_cifar_batch(_find(inner if inner.is_dir() else folder, name, hint)) for name in names]
    joined = np.concatenate(records)
    return Split(joined[:, 1:].reshape(-1, 3, 32, 32), joined[:, 0])


def _read_cifar_batch(path: Path) -> np.ndarray:
    content = np.fromfile(path, np.uint8)
    if not content.size or content.size % _CIFAR_RECORD:
        raise click.ClickException(
            f"{path}: {content.size} bytes are no whole number of images of {_CIFAR_RECORD} bytes; damaged, or not the "
            "binary version."
        )
    records = content.reshape(-1, _CIFAR_RECORD)
    _checked(records[:, 0], path)
    return records


def _checked(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.size and labels.max() > 9:
        raise click.ClickException(f"{path}: a label is {labels.max()}; expected 0 to 9.")
    return labels


def _find(folder: Path, name: str, hint: str) -> Path:
    """Return a file, packed or not."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise click.ClickException(f"{folder / name}: there is no such file, nor {name}.gz. {hint}")
