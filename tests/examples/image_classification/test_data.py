"""Data by name."""

from __future__ import annotations

import click
import numpy as np
import pytest

from examples.image_classification import data
from tests.examples.image_classification.files import write_cifar, write_folder, write_idx, write_records


def test_digits_are_split_without_overlap():
    images = data.load("digits")
    assert (images.shape, images.classes, images.steps(1)) == ((1, 16, 16), 10, 1200)
    held_out = [batch.images.asnumpy() for batch in images.test(100)]
    assert sum(map(len, held_out)) == 597
    training = {image.tobytes() for image in images._training.images}
    assert not training & {image.tobytes() for image in images._held_out.images}
    assert (np.concatenate(held_out).min(), np.concatenate(held_out).max()) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "write", "shape", "classes", "count"),
    [
        ("fashion-mnist", write_idx, (1, 28, 28), 10, 24),
        ("mnist", write_idx, (1, 28, 28), 10, 24),
        ("cifar10", write_cifar, (3, 32, 32), 10, 20),
        ("folder", write_folder, (3, 224, 224), 3, 12),
    ],
)
def test_data_in_a_folder_is_read_by_name(tmp_path, name, write, shape, classes, count):
    write(tmp_path)
    images = data.load(name, tmp_path)
    assert (images.shape, images.classes, images.steps(1)) == (shape, classes, count)
    assert len(next(images.test(1)).images) == 1


def test_records_are_read_by_name(tmp_path):
    for name in ("train", "test"):
        write_records(tmp_path / f"{name}.rec", [0, 1, 2])
    images = data.load("records", tmp_path, image_size=8)
    assert (images.shape, images.classes, images.steps(1)) == ((3, 8, 8), 3, 3)


def test_fashion_mnist_is_looked_for_where_debian_puts_it(monkeypatch, tmp_path):
    assert str(data.FASHION_MNIST) == "/usr/share/datasets/fashion-mnist"
    monkeypatch.setattr(data, "FASHION_MNIST", tmp_path)
    with pytest.raises(click.ClickException, match="Install Debian's package dataset-fashion-mnist"):
        data.load("fashion-mnist")
    write_idx(tmp_path)
    assert data.load("fashion-mnist").steps(1) == 24


def test_cifar_says_where_it_comes_from(tmp_path):
    with pytest.raises(
        click.ClickException, match=r"data_batch_1.bin: there is no such file.*Get cifar-10-binary.tar.gz"
    ):
        data.load("cifar10", tmp_path)


def test_a_folder_is_asked_for_where_one_is_needed_and_refused_where_not(tmp_path):
    with pytest.raises(click.UsageError, match="--data mnist needs --data-dir"):
        data.load("mnist")
    with pytest.raises(click.UsageError, match="--data-dir: the digits come with scikit-learn"):
        data.load("digits", tmp_path)
