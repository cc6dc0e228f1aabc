"""A convolution and a BatchNorm in numpy, with their gradients, in float64."""

from __future__ import annotations

from itertools import product
from typing import Optional, Tuple

import numpy as np


def convolution(
    data: np.ndarray,
    weight: np.ndarray,
    stride: Tuple[int, int] = (1, 1),
    pad: Tuple[int, int] = (0, 0),
    dilate: Tuple[int, int] = (1, 1),
    groups: int = 1,
    head_grad: Optional[np.ndarray] = None,
) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a convolution (N, C, H, W) and its gradients by data and weight, in float64.

    Without ``head_grad`` the gradients are those of the sum.
    """
    padded = np.pad(data, ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    kernel = weight.shape[2:]
    rows, columns = (
        (padded.shape[2 + axis] - dilate[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1 for axis in (0, 1)
    )
    out = np.zeros((len(data), len(weight), rows, columns))
    grad = np.ones_like(out) if head_grad is None else head_grad
    by_data, by_weight = np.zeros_like(padded), np.zeros(weight.shape)
    width, height = weight.shape[1], len(weight) // groups
    for group, i, j in product(range(groups), range(kernel[0]), range(kernel[1])):
        ins, outs = slice(group * width, (group + 1) * width), slice(group * height, (group + 1) * height)
        window = (
            slice(None), ins,
            slice(i * dilate[0], i * dilate[0] + rows * stride[0], stride[0]),
            slice(j * dilate[1], j * dilate[1] + columns * stride[1], stride[1]),
        )  # fmt: skip
        tap = weight[outs, :, i, j]
        out[:, outs] += np.einsum("nchw,oc->nohw", padded[window], tap)
        by_data[window] += np.einsum("nohw,oc->nchw", grad[:, outs], tap)
        by_weight[outs, :, i, j] = np.einsum("nohw,nchw->oc", grad[:, outs], padded[window])
    inner = (slice(None), slice(None), slice(pad[0], pad[0] + data.shape[2]), slice(pad[1], pad[1] + data.shape[3]))
    return out, by_data[inner], by_weight


def batch_norm(
    data: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float, head_grad: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
    """Return BatchNorm over (N, C, H, W) in training and its gradient by data, in float64."""
    axes, column = (0, 2, 3), (None, slice(None), None, None)
    mean, var = data.mean(axes), data.var(axes)
    scale = 1 / np.sqrt(var + eps)
    normal = (data - mean[column]) * scale[column]
    grad = head_grad * gamma[column]
    centred = grad - grad.mean(axes)[column] - normal * (grad * normal).mean(axes)[column]
    return normal * gamma[column] + beta[column], centred * scale[column]
