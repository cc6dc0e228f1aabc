"""ImageRecord files."""

from __future__ import annotations

import click
import numpy as np
import pytest

from examples.image_classification.records import RecordImages, Scanned, scan
from tests.examples.image_classification.files import write_records

LABELS = [0, 1, 2, 1, 0, 2, 3, 1, 2, 0]


@pytest.fixture
def folder(tmp_path):
    write_records(tmp_path / "train.rec", LABELS)
    write_records(tmp_path / "val.rec", [3, 2, 1, 0, 1])
    return tmp_path


def labels_of(batches):
    return [batch.labels.asnumpy().astype(int).tolist() for batch in batches]


def test_scan_counts_records_and_classes(folder):
    assert scan(folder / "train.rec") == Scanned(10, 4)


def test_an_epoch_has_whole_batches_of_the_records(folder):
    images = RecordImages(folder, 8)
    assert (images.shape, images.classes, images.steps(4)) == ((3, 8, 8), 4, 2)
    assert list(map(len, labels_of(images.train(4, 0, 0)))) == [4, 4]
    assert sorted(sum(labels_of(images.train(5, 0, 0)), [])) == sorted(LABELS)


def test_records_held_out_come_in_order_and_to_the_last(folder):
    assert labels_of(RecordImages(folder, 8).test(3)) == [[3, 2, 1], [0, 1]]


def test_missing_files_say_what_was_looked_for_and_how_to_get_it(folder):
    (folder / "val.rec").unlink()
    with pytest.raises(click.ClickException, match=r"there is no test\.rec or val\.rec in it.*im2rec\.py writes"):
        RecordImages(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-8], "truncated in record 10"),
        (lambda content: content[:12], "truncated after 0 records"),
        (lambda content: b"????" + content[4:], "no ImageRecord file, or damaged after 0 records"),
        (lambda content: b"", "empty"),
    ],
    ids=["end", "head", "magic", "empty"],
)
def test_a_damaged_file_is_refused_by_name(folder, change, message):
    path = folder / "train.rec"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(click.ClickException, match=f"train.rec: {message}"):
        RecordImages(folder)


@pytest.mark.parametrize("label", [-1, 0.5])
def test_labels_that_are_no_classes_are_refused(tmp_path, label):
    write_records(tmp_path / "train.rec", [0])
    content = bytearray((tmp_path / "train.rec").read_bytes())
    content[12:16] = np.float32(label).tobytes()  # after magic, length and flag
    (tmp_path / "train.rec").write_bytes(content)
    with pytest.raises(click.ClickException, match=f"record 0 has the label {label}; expected 0, 1, 2"):
        scan(tmp_path / "train.rec")


def test_records_with_several_labels_are_refused(tmp_path):
    write_records(tmp_path / "train.rec", [0])
    content = bytearray((tmp_path / "train.rec").read_bytes())
    content[8] = 2  # the flag, after magic and length
    (tmp_path / "train.rec").write_bytes(content)
    with pytest.raises(click.ClickException, match="record 0 has 2 labels; expected one number"):
        scan(tmp_path / "train.rec")
