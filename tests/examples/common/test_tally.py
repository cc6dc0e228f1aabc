"""Loss, perplexity and accuracy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from examples.common.tally import Tally

LOGITS = np.random.RandomState(0).uniform(-3, 3, (2, 4, 7)).astype(np.float32)
LOGITS[0, 0] = [80, -80, 0, 0, 0, 0, 0]
LABELS = np.random.RandomState(1).randint(0, 7, (2, 4))
LABELS[0, 0] = 0
PROBABILITIES = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum(axis=2, keepdims=True)
CHOSEN = np.take_along_axis(PROBABILITIES, LABELS[..., None], 2)
LOSS, ACCURACY = -np.log(CHOSEN).mean(), (LOGITS.argmax(axis=2) == LABELS).mean()


def tallied(outputs, labels, logits):
    """Return the tally of two parts."""
    tally = Tally(logits)
    for part, each in zip(outputs, labels):
        tally.add(mx.nd.array(part, dtype=part.dtype), mx.nd.array(each))
    return tally


@pytest.mark.parametrize("logits", [True, False], ids=["logits", "probabilities"])
def test_figures_are_those_of_numpy(logits):
    tally = tallied(LOGITS if logits else PROBABILITIES, LABELS, logits)
    assert tally.figures() == pytest.approx({"loss": LOSS, "accuracy": ACCURACY}, rel=1e-6)
    assert tally.perplexity == pytest.approx(np.exp(LOSS), rel=1e-5)


def test_labels_may_have_another_shape_than_outputs():
    assert tallied([PROBABILITIES.reshape(8, 7)], [LABELS], False).loss == pytest.approx(LOSS, rel=1e-6)


def test_a_probability_of_zero_gives_a_large_loss():
    loss = tallied([np.float32([[0.0, 1.0]])], [[0]], False).loss
    assert loss == pytest.approx(-np.log(np.finfo(np.float32).tiny), rel=1e-6)


def test_low_precision_outputs_are_taken():
    assert tallied(LOGITS.astype(np.float16), LABELS, True).accuracy == pytest.approx(ACCURACY)
