"""Casts of NDArrays to and from bfloat16, whatever layout oneDNN has left them in.

After inference in float32 MXNet keeps a convolution's weight in the layout that oneDNN likes best; that of a
grouped one has an axis more than the weight (g, o, i, h, w). In MXNet 1.9.1 amp_cast (AMPCastExCPU in
src/operator/tensor/amp_cast.cc) asks oneDNN for a cast between the two, which there is not: "could not create a
primitive descriptor for a reorder primitive". A view it takes to the default layout first.
"""

from __future__ import annotations

from typing import Any, Optional

import mxnet as mx
from mxnet import autograd


def amp_cast(array: mx.nd.NDArray, dtype: Any, out: Optional[mx.nd.NDArray] = None) -> mx.nd.NDArray:
    """Return a dense array in another floating point dtype, rounded to nearest even and in the default layout.

    Args:
        array: Any shape; float16, bfloat16 or float32.
        dtype: The dtype, as MXNet's ``amp_cast`` takes it.
        out: Where to write the result, of the same shape; a new array unless given.
    """
    if out is None:
        out = mx.nd.empty(array.shape, ctx=array.ctx, dtype=dtype)
    with autograd.pause():
        mx.nd.amp_cast(flat(array), dtype=dtype, out=flat(out))
    return out


def flat(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a one-dimensional view of a dense array."""
    return array.as_nd_ndarray().reshape((array.size,))
