"""Folders of images."""

from __future__ import annotations

import click
import numpy as np
import pytest
from PIL import Image

from examples.image_classification.folders import FolderImages, read
from tests.examples.image_classification.files import color, write_folder


def labels_of(batches):
    return np.concatenate([batch.labels.asnumpy() for batch in batches])


def test_every_fifth_image_is_held_out_where_there_is_no_test_folder(tmp_path):
    write_folder(tmp_path)
    images = FolderImages(tmp_path, 8)
    assert (images.shape, images.classes, images.steps(4)) == ((3, 8, 8), 3, 3)
    assert sorted(labels_of(images.train(4, 0, 0))) == [0] * 4 + [1] * 4 + [2] * 4
    assert labels_of(images.test(2)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_test_folder_is_what_is_held_out(tmp_path, held_out):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / held_out, count=2)
    images = FolderImages(tmp_path, 8)
    assert images.steps(1) == 15
    assert labels_of(images.test(4)).tolist() == [0, 0, 1, 1, 2, 2]


def test_read_cuts_out_the_middle_and_mirrors(tmp_path):
    Image.fromarray(color(1, side=16, width=32)).save(tmp_path / "wide.png")
    # 14 pixels for a margin of 16: the image keeps its scale.
    middle = read(tmp_path / "wide.png", 14, np.array([0.5, 0.5, 0.5]))
    assert middle.shape == (3, 14, 14)
    assert middle[1, :, 0].tolist() == list(range(1, 15))
    assert middle[2, 0].tolist() == list(range(9, 23))
    mirrored = read(tmp_path / "wide.png", 14, np.array([0.5, 0.5, 0.4]))
    assert (mirrored == middle[:, :, ::-1]).all()
    corner = read(tmp_path / "wide.png", 14, np.array([0.0, 0.999, 0.5]))
    assert (corner[1, 0, 0], corner[2, 0, 0]) == (0, 18)


def test_gray_and_transparent_images_have_three_channels(tmp_path):
    for mode in ("L", "RGBA", "P"):
        Image.new(mode, (9, 9)).save(tmp_path / "image.png")
        assert read(tmp_path / "image.png", 4, np.full(3, 0.5)).shape == (3, 4, 4)


def test_a_file_that_is_no_image_is_refused_by_name(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "bee" / "0.png").write_text("no image")
    with pytest.raises(click.ClickException, match=r"bee.0\.png: no image that can be read"):
        list(FolderImages(tmp_path, 8).train(12, 0, 0))


def test_missing_folders_say_what_was_looked_for(tmp_path):
    with pytest.raises(click.ClickException, match=r"nowhere: there is no such folder. Expected folders train/CLASS"):
        FolderImages(tmp_path / "nowhere")
    with pytest.raises(click.ClickException, match="there are no folders in it. Expected"):
        FolderImages(tmp_path)
    (tmp_path / "ant").mkdir()
    with pytest.raises(click.ClickException, match=r"ant: there is no image in it \(\.png"):
        FolderImages(tmp_path)


def test_other_classes_held_out_are_refused(tmp_path):
    write_folder(tmp_path / "train")
    write_folder(tmp_path / "test", classes=("ant", "bee"))
    with pytest.raises(click.ClickException, match="test: its classes are not those of"):
        FolderImages(tmp_path)
