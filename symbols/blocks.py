"""Layers that the convolutional networks share: named convolutions, normalizations, the classifier.

Every node gets a name, so that a network is the same however many were built before it, and so
that patterns of names can address its layers: a convolution ``x`` is followed by ``x_bn`` and
``x_relu``.
"""

from __future__ import annotations

import numbers
from typing import Any, Mapping, Optional, Tuple, TypeVar, Union

import mxnet as mx

Size = Union[int, Tuple[int, int]]
Key = TypeVar("Key")
Value = TypeVar("Value")

BN_EPS = 1e-5  # the least that cuDNN takes (CUDNN_BN_MIN_EPSILON), Gluon's default
BN_MOMENTUM = 0.9


def conv(
    data: Any, name: str, num_filter: int, kernel: Size = 3, stride: Size = 1, pad: Optional[Size] = None, **kwargs: Any
) -> Any:
    """Return a convolution; without ``pad``, the padding that keeps the size at stride 1.

    Args:
        data: Symbol of shape (N, C, H, W).
        name: The node's name.
        num_filter: Output channels.
        kernel: Height and width, or one number for both; likewise ``stride`` and ``pad``.
        stride: Step between windows.
        pad: Zeros added on each side.
        **kwargs: ``no_bias`` and ``num_group`` of MXNet's Convolution.
    """
    height, width = _pair(kernel)
    padding = (height // 2, width // 2) if pad is None else _pair(pad)
    return mx.sym.Convolution(
        data, num_filter=num_filter, kernel=(height, width), stride=_pair(stride), pad=padding, name=name, **kwargs
    )


def batch_norm(data: Any, name: str, eps: float = BN_EPS, fix_gamma: bool = False) -> Any:
    """Return a batch normalization over channels."""
    return mx.sym.BatchNorm(data, eps=eps, momentum=BN_MOMENTUM, fix_gamma=fix_gamma, name=name)


def relu(data: Any, name: str) -> Any:
    """Return max(data, 0)."""
    return mx.sym.Activation(data, act_type="relu", name=name)


def conv_relu(data: Any, name: str, num_filter: int, kernel: Size = 3, stride: Size = 1, **kwargs: Any) -> Any:
    """Return a convolution with a bias, and ReLU."""
    return relu(conv(data, name, num_filter, kernel, stride, **kwargs), f"{name}_relu")


def conv_bn(
    data: Any, name: str, num_filter: int, kernel: Size = 3, stride: Size = 1, eps: float = BN_EPS, **kwargs: Any
) -> Any:
    """Return a convolution without a bias, and batch normalization."""
    kwargs.setdefault("no_bias", True)
    return batch_norm(conv(data, name, num_filter, kernel, stride, **kwargs), f"{name}_bn", eps)


def conv_bn_relu(data: Any, name: str, num_filter: int, kernel: Size = 3, stride: Size = 1, **kwargs: Any) -> Any:
    """Return a convolution, batch normalization and ReLU."""
    return relu(conv_bn(data, name, num_filter, kernel, stride, **kwargs), f"{name}_relu")


def pool(data: Any, name: str, kernel: Size = 3, stride: Size = 2, kind: str = "max", **kwargs: Any) -> Any:
    """Return a pooling of kind ``max`` or ``avg``; an average counts the padding.

    Args:
        data: Symbol of shape (N, C, H, W).
        name: The node's name.
        kernel: Height and width of the window, or one number for both.
        stride: Step between windows.
        kind: ``max`` or ``avg``.
        **kwargs: ``pad``, and ``pooling_convention``: ``valid`` drops a window that does not fit
            (MXNet's default), ``full`` keeps it (Caffe's).
    """
    pad = _pair(kwargs.pop("pad", 0))
    return mx.sym.Pooling(
        data, kernel=_pair(kernel), stride=_pair(stride), pad=pad, pool_type=kind, name=name, **kwargs
    )


def global_pool(data: Any, name: str = "global_pool") -> Any:
    """Return the mean over height and width: (N, C, 1, 1)."""
    # MXNet wants a kernel even where global_pool makes it unused.
    return mx.sym.Pooling(data, kernel=(1, 1), global_pool=True, pool_type="avg", name=name)


def classifier(data: Any, num_classes: object, name: str = "fc") -> Any:
    """Return the last layer and its loss head: ``softmax``, with the label ``softmax_label`` (N,).

    Raises:
        ValueError: If ``num_classes`` is not a positive integer.
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, numbers.Integral) or num_classes < 1:
        raise ValueError(f"num_classes={num_classes!r}: expected a positive integer.")
    logits = mx.sym.FullyConnected(data, num_hidden=int(num_classes), name=name)
    return mx.sym.SoftmaxOutput(logits, name="softmax")


def choose(argument: str, value: Key, table: Mapping[Key, Value]) -> Value:
    """Return what a table has for the value of an argument.

    Raises:
        ValueError: If it has nothing; the message lists what it has.
    """
    try:
        return table[value]
    except (KeyError, TypeError):
        raise ValueError(f"{argument}={value!r}: expected one of {', '.join(map(repr, table))}.") from None


def _pair(size: Size) -> Tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
