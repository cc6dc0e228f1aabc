"""Mean average precision and the picture of detections."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from PIL import Image

from examples.ssd.batches import make_batch
from examples.ssd.score import Detections, Score, draw_detections

NAMES = ("ant", "bee")
SIZE = 64
OBJECTS = [np.float32([[4, 4, 24, 24, 0], [30, 30, 60, 60, 1]]), np.float32([[10, 10, 40, 30, 0]])]
IMAGES = [np.zeros((3, SIZE, SIZE), np.float32)] * 2


def found(*detections):
    """Return detections (class, score, left, top, right, bottom) of each image, with one row of nothing."""
    rows = np.full((len(detections), 1 + max(map(len, detections)), 6), -1, np.float32)
    for row, each in zip(rows, detections):
        row[: len(each)] = np.reshape(each, (-1, 6))
    return Detections(*map(mx.nd.array, (rows[..., 0], rows[..., 1], rows[..., 2:])))


def score(detections, objects=OBJECTS):
    result = Score(NAMES, SIZE)
    result.add(detections, make_batch(IMAGES, objects))
    return result.figures()["mAP"]


def exact():
    return [[[each[4], 0.9, *each[:4]] for each in objects] for objects in OBJECTS]


def test_exact_boxes_score_one():
    assert score(found(*exact())) == 1.0


def test_boxes_are_cut_to_the_image():
    whole = [np.float32([[0, 0, SIZE, SIZE, 0]])]
    result = Score(NAMES, SIZE)
    result.add(found([[0, 0.9, -40, -40, SIZE + 40, SIZE + 40]]), make_batch(IMAGES[:1], whole))
    assert result.figures()["mAP"] == 1.0


def test_a_class_that_is_missed_scores_nothing():
    # Of 'ant' both are found, of 'bee' none.
    assert score(found([exact()[0][0]], exact()[1])) == pytest.approx(0.5)


def test_a_wrong_box_before_the_right_one_costs_precision():
    wrong = [0, 0.95, 50, 2, 62, 12]
    # Average precision of 'ant': 2/3 at both recalls, after the wrong one that scores best.
    assert score(found([wrong, *exact()[0]], exact()[1])) == pytest.approx((2 / 3 + 1) / 2)


def test_difficult_objects_do_not_count():
    hard = [np.hstack([OBJECTS[0], [[0], [1]]]).astype(np.float32), OBJECTS[1]]
    assert score(found([exact()[0][0]], exact()[1]), hard) == 1.0


def test_the_picture_shows_images_with_boxes(tmp_path):
    batch = make_batch(IMAGES, OBJECTS)
    draw_detections(batch, found(*exact()), NAMES, tmp_path / "with.png")
    draw_detections(batch, found([], []), NAMES, tmp_path / "without.png")
    with_boxes, without = (np.array(Image.open(tmp_path / name)) for name in ("with.png", "without.png"))
    assert with_boxes.shape == without.shape
    assert (with_boxes != without).any()


@pytest.mark.parametrize(
    ("detections", "says"),
    [([[], []], True), ([[[0, 0.4, 1, 1, 9, 9]], []], True), ([[[0, 0.6, 1, 1, 9, 9]], []], False)],
    ids=["none", "unsure", "one"],
)
def test_the_picture_says_when_nothing_was_found(detections, says, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr("examples.ssd.score.save", lambda figure, path: figures.append(figure))
    draw_detections(make_batch(IMAGES, OBJECTS), found(*detections), NAMES, tmp_path / "found.png")
    texts = [text.get_text() for text in figures[0].texts]
    assert any(text.startswith("Nothing was found on these images with a score of 0.5") for text in texts) is says
