"""Loss and accuracy of predictions."""

from __future__ import annotations

from typing import Dict

import mxnet as mx
import numpy as np


class Tally:
    """Sums over batches.

    Attributes:
        count: Examples so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._loss = 0.0
        self._right = 0

    def add(self, outputs: mx.nd.NDArray, labels: mx.nd.NDArray, logits: bool) -> None:
        """Add a batch; waits for the outputs.

        Args:
            outputs: (N, classes), of any floating point dtype.
            labels: (N,).
            logits: Whether the outputs are logits; else they are probabilities.
        """
        values = outputs.astype("float32", copy=False).asnumpy().astype(np.float64)
        chosen = labels.asnumpy().astype(int)
        rows = np.arange(len(chosen))
        if logits:
            largest = values.max(axis=1)
            losses = np.log(np.exp(values - largest[:, None]).sum(axis=1)) + largest - values[rows, chosen]
        else:
            losses = -np.log(np.maximum(values[rows, chosen], np.finfo(np.float32).tiny))
        self.count += len(chosen)
        self._loss += float(losses.sum())
        self._right += int((values.argmax(axis=1) == chosen).sum())

    def figures(self) -> Dict[str, float]:
        """Return 'loss', the mean cross-entropy, and 'accuracy', from 0 to 1."""
        return {"loss": self._loss / max(self.count, 1), "accuracy": self._right / max(self.count, 1)}
