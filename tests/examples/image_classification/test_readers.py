"""Files of MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import click
import numpy as np
import pytest

from examples.image_classification.readers import read_cifar10_split, read_idx_split
from tests.examples.image_classification.files import idx, write_cifar, write_idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
def test_idx_files_give_images_and_labels(tmp_path, packed):
    images, labels = write_idx(tmp_path, packed=packed)
    found = read_idx_split(tmp_path, "train", "")
    assert (found.images == images[:, None]).all()
    assert (found.labels == labels).all()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (LABELS, idx(np.arange(3, dtype=np.uint8)), " 3 labels"),
        (LABELS, idx(np.full(24, 10, np.uint8)), "a label is 10; expected 0 to 9"),
        (IMAGES, idx(np.zeros((24, 4), np.uint8)), "no idx file of bytes in 3 dimensions"),
        (IMAGES, b"\0\0", "no idx file of bytes"),
        (IMAGES, idx(np.zeros((24, 4, 4), np.uint8))[:-1], r"truncated: 383 bytes for an array of shape \(24, 4, 4\)"),
    ],
    ids=["counts", "label", "dimensions", "short", "truncated"],
)
def test_a_damaged_idx_file_is_refused_by_name(tmp_path, name, content, message):
    write_idx(tmp_path, packed=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(click.ClickException, match=f"{name}.*{message}"):
        read_idx_split(tmp_path, "train", "")


def test_a_damaged_gz_file_is_refused_by_name(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / f"{IMAGES}.gz"
    for content in (path.read_bytes()[:-20], b"no gzip", path.read_bytes()[:30] + b"?" * 40):
        path.write_bytes(content)
        with pytest.raises(click.ClickException, match=f"{IMAGES}.gz: it cannot be unpacked"):
            read_idx_split(tmp_path, "train", "")


def test_a_missing_file_says_what_was_looked_for_and_how_to_get_it(tmp_path):
    with pytest.raises(click.ClickException) as caught:
        read_idx_split(tmp_path, "train", "Install it.")
    assert caught.value.message == f"{tmp_path / IMAGES}: there is no such file, nor {IMAGES}.gz. Install it."


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-bin"])
def test_cifar_batches_give_images_and_labels(tmp_path, inner):
    images, labels = write_cifar(tmp_path / inner)
    found = read_cifar10_split(tmp_path, BATCHES, "")
    assert (found.images == images).all()
    assert (found.labels == labels).all()


def test_a_damaged_cifar_batch_is_refused_by_name(tmp_path):
    write_cifar(tmp_path)
    (tmp_path / BATCHES[3]).write_bytes(b"\0" * 3074)
    with pytest.raises(click.ClickException, match="data_batch_4.bin: 3074 bytes are no whole number of images"):
        read_cifar10_split(tmp_path, BATCHES, "")
    (tmp_path / BATCHES[3]).write_bytes(b"\xff" * 3073)
    with pytest.raises(click.ClickException, match="data_batch_4.bin: a label is 255"):
        read_cifar10_split(tmp_path, BATCHES, "")
