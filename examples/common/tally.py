"""Loss and accuracy of predictions."""

from __future__ import annotations

import math
from typing import Dict

import mxnet as mx
import numpy as np


class Tally:
    """Sums over examples: images, or words.

    Args:
        logits: Whether outputs are logits; else they are probabilities.
    """

    def __init__(self, logits: bool) -> None:
        self._logits, self._loss, self._right, self._count = logits, 0.0, 0.0, 0

    def add(self, outputs: mx.nd.NDArray, labels: mx.nd.NDArray) -> None:
        """Add examples; waits for the outputs.

        Args:
            outputs: (..., classes), of any floating point dtype.
            labels: The classes that are right, in the same order; the shape may be another.
        """
        outputs = outputs.astype("float32", copy=False)
        labels = labels.as_in_context(outputs.context).reshape(outputs.shape[:-1])
        if self._logits:
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
        """The mean cross-entropy of an example, in nats."""
        return self._loss / max(self._count, 1)

    @property
    def accuracy(self) -> float:
        """The fraction of examples whose class had the largest output, from 0 to 1."""
        return self._right / max(self._count, 1)

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(min(self.loss, 700.0))

    def figures(self) -> Dict[str, float]:
        """Return 'loss' and 'accuracy'."""
        return {"loss": self.loss, "accuracy": self.accuracy}
