"""LeNet, in the form that MXNet and Caffe train on MNIST.

Reference: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document
Recognition", 1998.
Deviations: 20 and 50 filters with full connections in place of 6 and 16 with a partial table, max
pooling in place of trained subsampling, one hidden layer of 500 in place of 120 and 84, softmax in
place of radial basis functions. The tanh is the paper's, without its scale; Caffe has ReLU.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .blocks import classifier, conv, pool


def get_symbol(num_classes: int = 10) -> Any:
    """Return LeNet for gray or color images (N, C, 28, 28).

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    data = mx.sym.Variable("data")
    for number, num_filter in enumerate((20, 50), 1):
        data = conv(data, f"conv{number}", num_filter, kernel=5, pad=0)
        data = mx.sym.Activation(data, act_type="tanh", name=f"conv{number}_tanh")
        data = pool(data, f"pool{number}", kernel=2)
    data = mx.sym.FullyConnected(data, num_hidden=500, name="fc1")
    data = mx.sym.Activation(data, act_type="tanh", name="fc1_tanh")
    return classifier(data, num_classes, "fc2")
