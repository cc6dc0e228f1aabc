"""Both training scripts and the picture of gradients, run small."""

from __future__ import annotations

import itertools

import mxnet as mx
import numpy as np
import pytest
from PIL import Image

from examples.ssd import plot_gradients, train_symbol
from examples.ssd.batches import Batch, make_batch
from examples.ssd.digits import DigitScenes
from examples.ssd.networks import SMALL, SMALL_SYMBOL
from examples.ssd.score import Detections, Score
from examples.ssd.train_symbol import losses, to_inputs
from tests.examples.common.small import float32
from tests.examples.scripts import SCRIPTS, call, train
from tests.examples.ssd.files import write_det_records, write_voc

NETWORKS = {"ssd gluon": SMALL, "ssd symbol": SMALL_SYMBOL}
KINDS = list(NETWORKS)


def size_of(picture):
    with Image.open(picture) as image:
        return image.size


def detect_plainly(kind, output, images):
    """Return what plain MXNet finds with the network that a run left."""
    symbol, arg_params, aux_params = mx.model.load_checkpoint(str(output / "net"), 0)
    executor = symbol.simple_bind(mx.cpu(), data=images.shape, grad_req="null")
    executor.copy_params_from(arg_params, aux_params)
    found = executor.forward(data=images)
    if kind == "ssd symbol":
        return Detections(found[0][..., 0], found[0][..., 1], found[0][..., 2:] * images.shape[2])
    return Detections(found[0][..., 0], found[1][..., 0], found[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["O0", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_leaves_table_plot_detections_and_a_network_for_plain_mxnet(kind, policy, tmp_path):
    record, text = train(kind, tmp_path, "--policy", policy)
    assert "epoch loss/class loss/box test mAP loss scale ms/step" in text
    assert "detections" in text
    assert size_of(tmp_path / "detections.png") == (1440, 720)
    assert (tmp_path / "run.png").exists()
    assert len(record["history"]["steps"]["loss/box"]) == 4
    assert all(np.isfinite(record["history"]["steps"]["loss/class"]))
    score = Score(DigitScenes.names, 64)
    for batch in itertools.islice(DigitScenes(64).test(4), 2):
        score.add(detect_plainly(kind, tmp_path, batch.images), batch)
    if policy == "O0":  # in others rounding moves detections
        assert score.figures()["mAP"] == pytest.approx(record["history"]["epochs"][-1]["mAP"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_learns(kind, tmp_path):
    args = ("--image-size", 96, "--batch-size", 16, "--batches", 40, "--epochs", 1, "--loss-scale", 128)
    record, _ = train(kind, tmp_path, *args, "--policy", "O1")
    for name in ("loss/class", "loss/box"):
        values = record["history"]["steps"][name]
        assert np.mean(values[-10:]) < 0.7 * np.mean(values[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_two_contexts_learn_from_the_same_images_what_one_does(kind, tmp_path, monkeypatch):
    """Each normalizes its part of a batch, so that of the same images twice each has the whole."""
    monkeypatch.setattr(SCRIPTS[kind].module, "OPTIMIZER", "sgd")  # Adam does not see the size of gradients
    scenes = DigitScenes(64)
    once = next(scenes.train(4, 0, 0))
    twice = Batch(*(mx.nd.concat(each, each, dim=0) for each in once))
    one, two = (
        SCRIPTS[kind].learner(NETWORKS[kind], scenes, float32(tmp_path, ctx=ctx, batch_size=size, batches=3), 0.01)
        for ctx, size in (((mx.cpu(),), 4), ((mx.cpu(0), mx.cpu(1)), 8))
    )
    for _ in range(3):
        assert one.step(once) == pytest.approx(two.step(twice), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_batch_may_be_smaller_than_the_contexts_are_many(kind, tmp_path):
    write_voc(tmp_path, [[("dog", 0, 9, 13, 33, 37)]] * 5)
    args = ("--data", "voc", "--data-dir", tmp_path, "--batch-size", 2, "--batches", 9, "--ctx", "cpu:0,cpu:1")
    record, _ = train(kind, tmp_path / "run", *args, "--epochs", 1, "--policy", "O0")
    assert 0 <= record["history"]["epochs"][0]["mAP"] <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.bfloat16
def test_outputs_in_bfloat16_are_read_as_numbers(kind, tmp_path):
    one, two = (
        train(kind, tmp_path / policy, "--epochs", 1, "--policy", policy)[0]["history"]["steps"]["loss/class"]
        for policy in ("O0", "bfloat16")
    )
    assert one[0] == pytest.approx(two[0], rel=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_voc_and_records_are_read_by_the_options(kind, tmp_path):
    write_voc(tmp_path / "voc", [[("dog", 0, 9, 13, 33, 37)], [("cat", 0, 1, 1, 17, 17)]] * 2)
    args = ("--batch-size", 2, "--epochs", 1, "--policy", "O1")
    record, _ = train(kind, tmp_path / "one", "--data", "voc", "--data-dir", tmp_path / "voc", *args)
    assert len(record["settings"]["classes"]) == 20
    write_det_records(tmp_path / "train.rec", [[(number % 2, 0.1, 0.1, 0.6, 0.6)] * 12 for number in range(4)])
    write_det_records(tmp_path / "val.rec", [[(0, 0.1, 0.1, 0.6, 0.6)]])
    args = (*args, "--data", "records", "--data-dir", tmp_path, "--class-names", "ant, bee")
    record, _ = train(kind, tmp_path / "two", *args)
    assert record["settings"]["classes"] == ["ant", "bee"]


def test_losses_are_means_over_matched_boxes():
    probabilities = np.array([[[0.5, 0.25, 0.9, 0.1], [0.5, 0.75, 0.1, 0.9]]])  # (1, 2 classes, 4 boxes)
    targets = np.array([[1, 0, -1, 1]])
    found = losses(probabilities, targets, np.array([[1.0, 2.0, 3.0]]))
    assert found["loss/class"] == pytest.approx(-(np.log(0.5) + np.log(0.25) + np.log(0.9)) / 2)
    assert found["loss/box"] == 3.0


def test_labels_are_classes_with_corners_in_parts_of_the_image():
    batch = make_batch([np.zeros((3, 64, 64), np.float32)] * 2, [np.float32([[16, 0, 32, 64, 7]]), np.zeros((0, 5))])
    label = to_inputs(batch, 64)["label"].asnumpy()
    np.testing.assert_array_equal(label, [[[7, 0.25, 0, 0.5, 1]], [[-1] * 5]])


def test_the_picture_of_gradients_comes_with_a_table(tmp_path):
    args = ("--steps", 2, "--every", 2, "--batch-size", 4, "--image-size", 64, "--output", tmp_path)
    code, text = call(plot_gradients.main, *args)
    assert code == 0, text
    assert "loss scale become 0 in float16 the largest" in text
    assert size_of(tmp_path / "gradients.png") == (1080, 600)


def test_the_learning_rate_of_the_picture_falls_over_all_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(DigitScenes, "count", 8)  # two batches an epoch
    step, rates = train_symbol.SymbolLearner.step, []

    def spied(self, batch):
        figures = step(self, batch)
        rates.append(self.module._optimizer.learning_rate)
        return figures

    monkeypatch.setattr(train_symbol.SymbolLearner, "step", spied)
    args = ("--steps", 5, "--every", 9, "--batch-size", 4, "--image-size", 64, "--output", tmp_path)
    assert call(plot_gradients.main, *args)[0] == 0
    assert all(rate > 0 for rate in rates[:-1]) and len(rates) == 5
