"""The layers of a ledger, into which samples and skipped steps are written."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import mxnet as mx

from . import lost
from .exponents import Read, count_exponents, largest
from .layer import Layer
from .sample import Sample, Skipped


class Book:
    """What is known of each layer.

    Attributes:
        layers: By name, in the order of the steps' weights.
    """

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        self.layers: Dict[str, Layer] = {layer.name: layer for layer in layers}
        self._weights: Mapping[str, mx.nd.NDArray] = {}
        self._before: Optional[Tuple[List[str], Read]] = None  # names of weights, and their counts

    def add(self, sample: Sample) -> Any:
        """Write down a sample, and return its counts, which it waits for."""
        table = sample.read()
        for (name, elements), row in zip(sample.layers, table):
            layer = self._layer(name, elements)
            layer.add(row, sample.scale)
            if sample.before is not None:
                layer.grad_before = layer.grad
        for name, counts in sample.updates:
            layer, (gone, moved) = self._layer(name), lost.read(counts)
            layer.lost, layer.moved = layer.lost + gone, layer.moved + moved
        return table

    def skip(self, skipped: Skipped, scale: float) -> None:
        """Write down a step that was skipped."""
        for (name, elements), row in zip(skipped.layers, skipped.table):
            self._layer(name, elements).grow(row, scale)
        for name in skipped.shares:
            self.layers[name].skip(scale, name in skipped.first)

    def keep_weights(self, sample: Sample) -> None:
        """Keep hold of the weights of a sample, and of counts of what they were, which are read when it is asked."""
        self._weights = sample.weights
        if sample.before is not None:
            self._before = list(sample.weights), sample.before

    def forget_weights(self) -> None:
        """Keep no hold of weights."""
        self.read_weights()
        self._weights = {}

    def read_weights(self) -> None:
        """Write down what the weights were when they were last counted; waits for that."""
        before, self._before = self._before, None
        if before is not None:
            names, counts = before
            for name, row in zip(names, counts()):
                self._layer(name).weight_before = float(largest(row))

    def look_at_weights(self) -> None:
        """Write down how large the weights are now; slow."""
        self.read_weights()
        for name, row in zip(self._weights, count_exponents(list(self._weights.values()))()):
            self._layer(name).weight = float(largest(row))

    def _layer(self, name: str, elements: int = 0) -> Layer:
        layer = self.layers.setdefault(name, Layer(name))
        layer.elements = elements or layer.elements
        return layer
