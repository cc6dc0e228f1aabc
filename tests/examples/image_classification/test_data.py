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


def write_both(folder):
    for name in ("train", "test"):
        write_records(folder / f"{name}.rec", LABELS)


LABELS = [0, 1, 2, 1, 0, 2, 3, 1, 2, 0]
KINDS = {
    "fashion-mnist": (write_idx, (1, 28, 28), 10, 24),
    "mnist": (write_idx, (1, 28, 28), 10, 24),
    "cifar10": (write_cifar, (3, 32, 32), 10, 20),
    "folder": (write_folder, (3, 224, 224), 3, 12),
    "records": (write_both, (3, 224, 224), 4, 10),
}


@pytest.mark.parametrize("name", KINDS)
def test_data_in_a_folder_is_read_by_name(tmp_path, name):
    write, *expected = KINDS[name]
    write(tmp_path)
    images = data.load(name, tmp_path)
    assert [images.shape, images.classes, images.steps(1)] == expected
    assert len(next(images.test(1)).images) == 1


@pytest.mark.parametrize("name", KINDS)
def test_training_depends_on_seed_and_epoch_alone_and_has_whole_batches(tmp_path, name):
    KINDS[name][0](tmp_path)
    images = data.load(name, tmp_path, image_size=8)
    read = [list(images.train(5, epoch, seed)) for epoch, seed in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert [len(batch.images) for batch in read[0]] == [5] * images.steps(5)
    first, again, *others = (np.concatenate([batch.images.asnumpy() for batch in batches]) for batches in read)
    np.testing.assert_array_equal(first, again)
    assert all((first != other).any() for other in others)


@pytest.mark.parametrize("name", ["folder", "records"])
def test_images_are_those_of_their_labels(tmp_path, name):
    KINDS[name][0](tmp_path)
    for batch in data.load(name, tmp_path, image_size=8).train(4, 0, 0):
        reds = (batch.images[:, 0].asnumpy() + 1) * 127.5
        np.testing.assert_allclose(reds, 40 * batch.labels.asnumpy()[:, None, None] * np.ones((1, 8, 8)), atol=1e-3)


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
