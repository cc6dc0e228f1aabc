"""A convolution and a BatchNorm in numpy, with their gradients, in float64."""

from itertools import product

import numpy as np


def convolution(data, weight, stride=None, pad=None, dilate=None, groups=1, head_grad=None):
    """Return a convolution (N, C, ...) and its gradients by data and weight, in float64.

    Without ``head_grad`` the gradients are those of the sum.
    """
    rank, kernel = data.ndim - 2, weight.shape[2:]
    stride, pad, dilate = stride or (1,) * rank, pad or (0,) * rank, dilate or (1,) * rank
    padded = np.pad(data, ((0, 0), (0, 0), *((p, p) for p in pad)))
    places = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(padded.shape[2:], kernel, dilate, stride)]
    out = np.zeros((len(data), len(weight), *places))
    grad = np.ones_like(out) if head_grad is None else head_grad
    by_data, by_weight = np.zeros_like(padded), np.zeros(weight.shape)
    width, height, every = weight.shape[1], len(weight) // groups, (0, *range(2, rank + 2))
    for group, *tap in product(range(groups), *map(range, kernel)):
        ins, outs = slice(group * width, (group + 1) * width), slice(group * height, (group + 1) * height)
        spots = (slice(t * d, t * d + n * s, s) for t, d, n, s in zip(tap, dilate, places, stride))
        window, at = (slice(None), ins, *spots), (outs, slice(None), *tap)
        out[:, outs] += np.einsum("nc...,oc->no...", padded[window], weight[at])
        by_data[window] += np.einsum("no...,oc->nc...", grad[:, outs], weight[at])
        by_weight[at] = np.tensordot(grad[:, outs], padded[window], (every, every))
    return out, by_data[(..., *(slice(p, p + n) for p, n in zip(pad, data.shape[2:])))], by_weight


def batch_norm(data, gamma, beta, eps, head_grad):
    """Return BatchNorm over (N, C, H, W) in training and its gradient by data, in float64."""
    axes, column = (0, 2, 3), (None, slice(None), None, None)
    mean, var = data.mean(axes), data.var(axes)
    scale = 1 / np.sqrt(var + eps)
    normal = (data - mean[column]) * scale[column]
    grad = head_grad * gamma[column]
    centred = grad - grad.mean(axes)[column] - normal * (grad * normal).mean(axes)[column]
    return normal * gamma[column] + beta[column], centred * scale[column]
