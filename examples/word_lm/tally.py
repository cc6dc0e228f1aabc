"""Loss and accuracy over words."""

from __future__ import annotations

import math
from typing import Dict

import mxnet as mx
import numpy as np


class Tally:
    """Sums over words."""

    def __init__(self) -> None:
        self._loss, self._right, self._count = 0.0, 0.0, 0

    def add(self, outputs: mx.nd.NDArray, labels: mx.nd.NDArray, logits: bool) -> None:
        """Add words; waits for the outputs.

        Args:
            outputs: (..., vocabulary), of any floating point dtype.
            labels: The words that are right, in the same order; the shape may be another.
            logits: Whether the outputs are logits; else they are probabilities.
        """
        outputs = outputs.astype("float32", copy=False)
        labels = labels.as_in_context(outputs.context).reshape(outputs.shape[:-1])
        if logits:
            logs = mx.nd.pick(mx.nd.log_softmax(outputs), labels)
        else:
            logs = mx.nd.log(mx.nd.maximum(mx.nd.pick(outputs, labels), np.finfo(np.float32).tiny))
        right = outputs.argmax(axis=-1) == labels
        loss, right = mx.nd.stack(-logs.sum(), right.sum()).asnumpy().ravel()
        self._loss += float(loss)
        self._right += float(right)
        self._count += labels.size

    @property
    def loss(self) -> float:
        """The mean cross-entropy of a word, in nats."""
        return self._loss / self._count

    @property
    def accuracy(self) -> float:
        """The fraction of words that had the largest output, from 0 to 1."""
        return self._right / self._count

    def trained(self) -> Dict[str, float]:
        """Return what a step gives: 'loss' and 'accuracy'."""
        return {"loss": self.loss, "accuracy": self.accuracy}

    def held_out(self) -> Dict[str, float]:
        """Return what an evaluation gives: 'perplexity' and 'accuracy'."""
        return {"perplexity": math.exp(min(self.loss, 700.0)), "accuracy": self.accuracy}
