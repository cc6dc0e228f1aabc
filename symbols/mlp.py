"""A multilayer perceptron, as MXNet's examples train it on MNIST: 784-128-64-10 with ReLU.

Reference: LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998,
section III.C.4 has fully connected networks of two and three layers on MNIST.
Deviation: ReLU in place of their scaled tanh, and other widths; ``hidden=(300, 100)`` gives theirs.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from .blocks import classifier, relu


def get_symbol(num_classes: int = 10, hidden: Sequence[int] = (128, 64)) -> Any:
    """Return the perceptron for images of any one size (N, C, H, W), or features (N, D).

    Args:
        num_classes: Number of classes.
        hidden: Units of each hidden layer.

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    data = mx.sym.Variable("data")
    for number, units in enumerate(hidden, 1):
        data = relu(mx.sym.FullyConnected(data, num_hidden=units, name=f"fc{number}"), f"fc{number}_relu")
    return classifier(data, num_classes, f"fc{len(hidden) + 1}")
