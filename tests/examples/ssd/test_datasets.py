"""PASCAL VOC's folders and ImageDetRecord files."""

from __future__ import annotations

import random

import click
import numpy as np
import pytest

from examples.ssd.batches import to_pixels
from examples.ssd.datasets import read_records, read_voc
from tests.examples.ssd.files import write_det_records, write_voc

VOC = [
    [("dog", 0, 9, 13, 33, 37), ("cat", 1, 1, 1, 17, 17)],
    [("person", 0, 17, 1, 49, 25)],
    [],
    [("unicorn", 0, 1, 1, 9, 9), ("car", 0, 33, 25, 63, 47)],
]
RECORDS = [[(0, 0.25, 0.25, 0.5, 0.75)], [(2, 0.0, 0.0, 0.5, 0.5), (1, 0.5, 0.5, 1.0, 1.0)], [(1, 0.1, 0.2, 0.3, 0.4)]]


@pytest.fixture
def voc(tmp_path):
    write_voc(tmp_path, VOC)
    return tmp_path


@pytest.fixture
def records(tmp_path):
    write_det_records(tmp_path / "train.rec", RECORDS)
    write_det_records(tmp_path / "val.rec", RECORDS[:2])
    return tmp_path


def flat(batch):
    return np.concatenate([part.asnumpy().ravel() for part in batch])


def test_voc_gives_boxes_in_pixels_of_the_scaled_image(voc):
    scenes = read_voc(voc, 96)
    first, second = scenes.test(3)
    # From 64 x 48 pixels that count from 1: 1.5 times as wide, twice as high.
    np.testing.assert_allclose(first.boxes[0].asnumpy(), [[12, 24, 48, 72], [0, 0, 24, 32]])
    assert [scenes.names[int(each)] for each in first.classes[0].asnumpy()] == ["dog", "cat"]
    assert first.difficult.asnumpy().tolist() == [[0, 1], [0, 0], [0, 0]]
    assert (first.classes[2].asnumpy() == -1).all()
    assert [scenes.names[int(each)] for each in second.classes[0].asnumpy()] == ["car"]  # there is no class 'unicorn'


def test_a_scaled_image_shows_what_the_file_does(voc):
    pixels = to_pixels(next(read_voc(voc, 96).test(2)).images)
    assert pixels.shape == (2, 96, 96, 3)
    assert abs(int(pixels[1, 48, 48, 0]) - 40) <= 6  # red says which image
    assert abs(int(pixels[1, 48, 48, 1]) - 24) <= 4  # green how far down
    assert abs(int(pixels[1, 48, 48, 2]) - 32) <= 4  # blue how far right


def test_classes_of_ones_own_are_taken_by_name(voc):
    scenes = read_voc(voc, 64, ("unicorn", "car"))
    assert next(scenes.test(4)).classes[3].asnumpy().tolist() == [0, 1]


def test_classes_may_be_numbers_and_written_large(tmp_path):
    write_voc(tmp_path, [[("7", 0, 1, 1, 9, 9), ("Cat", 0, 1, 1, 9, 9)]])
    assert next(read_voc(tmp_path, 64, ("CAT", "7")).test(1)).classes.asnumpy().tolist() == [[1, 0]]


def test_classes_that_there_are_none_of_are_refused(voc):
    with pytest.raises(
        click.ClickException,
        match="no object of a class of ant, bee; it has objects of car, cat, dog, person, unicorn: name",
    ):
        read_voc(voc, 64, ("ant", "bee"))


def test_the_folder_of_a_year_is_not_taken_for_that_of_all(voc):
    with pytest.raises(click.ClickException, match=f"VOC2007: give the folder that VOC2007 lies in: --data-dir {voc}"):
        read_voc(voc / "VOC2007", 64)


def test_every_year_is_trained_on_and_tests_are_held_out(voc):
    write_voc(voc, VOC[:2], year=2012, kinds=("trainval",))
    scenes = read_voc(voc, 64)
    assert scenes.steps(2) == 3
    assert sum(len(batch.images) for batch in scenes.test(4)) == 4


@pytest.mark.parametrize("kind", ["voc", "records"])
def test_training_depends_on_seed_and_epoch_alone_and_leaves_global_generators_alone(kind, request):
    folder = request.getfixturevalue(kind)
    scenes = (read_voc if kind == "voc" else read_records)(folder, 64)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, again, later, other = (
        flat(next(scenes.train(2, epoch, seed))) for epoch, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    np.testing.assert_array_equal(first, again)
    assert not any(np.array_equal(first, each) for each in (later, other))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_varied_boxes_stay_within_the_image(voc):
    scenes = read_voc(voc, 64)
    for epoch in range(5):
        for batch in scenes.train(4, epoch, 0):
            boxes = batch.boxes.asnumpy()[batch.classes.asnumpy() >= 0]
            assert boxes.min() >= 0 and boxes.max() <= 64
            assert (boxes[:, 2:] > boxes[:, :2]).all()


def test_records_give_boxes_in_pixels_and_count_classes(records):
    scenes = read_records(records, 96)
    assert scenes.names == ("0", "1", "2")
    (batch,) = scenes.test(2)
    np.testing.assert_allclose(batch.boxes.asnumpy()[0], [[24, 24, 48, 72], [-1, -1, -1, -1]], rtol=1e-6)
    assert batch.classes.asnumpy().tolist() == [[0, -1], [2, 1]]
    assert read_records(records, 96, ("ant", "bee", "cow")).names == ("ant", "bee", "cow")


def damage(path, text):
    path.write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "VOC2007/ImageSets/Main/test.txt").unlink(), r"no VOC\*/ImageSets/Main/test\.txt in it\. http"),
        (lambda f: damage(f / "VOC2007/Annotations/000001.xml", "<a"), "annotations of trainval cannot be read"),
        (lambda f: damage(f / "VOC2007/Annotations/000001.xml", "<a/>"), "annotations of trainval cannot be read"),
        (lambda f: write_voc(f, [[("dog", 0, "left", 1, 9, 9)]]), "cannot be read: could not convert string to float"),
        (lambda f: damage(f / "VOC2007/ImageSets/Main/test.txt", ""), r"Main/test\.txt names no image"),
    ],
)
def test_damaged_voc_is_refused(voc, spoil, message):
    spoil(voc)
    with pytest.raises(click.ClickException, match=message):
        read_voc(voc, 64)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "train.rec").unlink(), r"there is no train\.rec in it\. MXNet's tools/im2rec\.py"),
        (lambda f: (f / "val.idx").unlink(), r"val\.idx: missing; im2rec\.py writes it beside val\.rec"),
        (lambda f: damage(f / "train.rec", "something else"), r"train\.rec: no ImageRecord file"),
        (
            lambda f: write_det_records(f / "val.rec", [[(0, 10, 10, 20, 20)]]),
            r"record 0 has a box \[\[10.0, 10.0, 20.0, 20.0\]\]; expected left < right",
        ),
        (lambda f: write_det_records(f / "val.rec", [[(0, 0.5, 0.5, 0.1, 0.1)]]), "record 0 has a box"),
        (lambda f: write_det_records(f / "val.rec", [*RECORDS, []]), "record 3 has no boxes"),
        (lambda f: write_det_records(f / "val.rec", [[(-1, -1, -1, -1, -1)]]), "record 0 has the class -1; expected 0"),
        (lambda f: write_det_records(f / "val.rec", [[(0.5, 0.1, 0.1, 0.2, 0.2)]]), "has the class 0.5; expected 0"),
        (lambda f: write_det_records(f / "val.rec", [[(0, 0.1)]]), "record 0 has no boxes"),
    ],
)
def test_damaged_records_are_refused(records, spoil, message):
    spoil(records)
    with pytest.raises(click.ClickException, match=message):
        read_records(records, 64)


def test_fewer_names_than_classes_are_refused(records):
    with pytest.raises(click.ClickException, match="the files have 3 classes, but --class-names 2"):
        read_records(records, 64, ("ant", "bee"))
