"""Loss, perplexity and accuracy over words."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from examples.word_lm.tally import Tally

LOGITS = np.random.RandomState(0).uniform(-3, 3, (2, 4, 7)).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 7, (2, 4))
PROBABILITIES = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(axis=2, keepdims=True)
CHOSEN = np.take_along_axis(PROBABILITIES, LABELS[..., None], 2)


def tallied(outputs, logits):
    tally = Tally()
    for row, labels in zip(outputs, LABELS):  # two parts
        tally.add(mx.nd.array(row), mx.nd.array(labels), logits)
    return tally


@pytest.mark.parametrize("logits", [True, False], ids=["logits", "probabilities"])
def test_figures_are_those_of_numpy(logits):
    tally = tallied(LOGITS if logits else PROBABILITIES, logits)
    loss, accuracy = -np.log(CHOSEN).mean(), (LOGITS.argmax(axis=2) == LABELS).mean()
    assert tally.trained() == pytest.approx({"loss": loss, "accuracy": accuracy}, rel=1e-6)
    assert tally.held_out() == pytest.approx({"perplexity": np.exp(loss), "accuracy": accuracy}, rel=1e-5)


def test_labels_may_have_another_shape_than_outputs():
    tally = Tally()
    tally.add(mx.nd.array(PROBABILITIES.reshape(8, 7)), mx.nd.array(LABELS), logits=False)
    assert tally.loss == pytest.approx(-np.log(CHOSEN).mean(), rel=1e-6)


def test_a_probability_of_zero_gives_a_large_loss():
    tally = Tally()
    tally.add(mx.nd.array([[0.0, 1.0]]), mx.nd.array([0]), logits=False)
    assert tally.loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), rel=1e-6)
