"""Loss and accuracy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from examples.image_classification.tally import Tally

LOGITS = mx.nd.array([[1.0, 3.0, -2.0], [80.0, -80.0, 0.0], [0.5, 0.25, 0.0]])
LABELS = mx.nd.array([1, 1, 0])


def test_loss_and_accuracy_are_means_over_all_batches():
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(LOGITS, LABELS)
    tally = Tally()
    tally.add(LOGITS[:2], LABELS[:2], logits=True)
    tally.add(LOGITS[2:], LABELS[2:], logits=True)
    assert tally.figures()["loss"] == pytest.approx(loss.mean().asscalar(), rel=1e-6)
    assert tally.figures()["accuracy"] == pytest.approx(2 / 3)
    assert tally.count == 3


def test_probabilities_give_what_logits_give():
    first, second = Tally(), Tally()
    first.add(LOGITS[::2], LABELS[::2], logits=True)
    second.add(mx.nd.softmax(LOGITS[::2]), LABELS[::2], logits=False)
    assert second.figures() == pytest.approx(first.figures(), rel=1e-6)


def test_a_probability_of_zero_has_a_finite_loss():
    tally = Tally()
    tally.add(mx.nd.array([[1.0, 0.0]]), mx.nd.array([1]), logits=False)
    assert tally.figures()["loss"] == pytest.approx(-np.log(np.finfo(np.float32).tiny))


def test_low_precision_outputs_are_taken():
    tally = Tally()
    tally.add(LOGITS.astype("float16"), LABELS, logits=True)
    assert tally.figures()["accuracy"] == pytest.approx(2 / 3)
