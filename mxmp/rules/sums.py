"""Conditions on the length of sums that MXNet's kernels accumulate in low precision, forward or backward.

What follows is of float16 on a GPU (CUDA sources of tag 1.9.1). In bfloat16 none of these has a kernel that rounds.

- ``batch_dot`` and numpy's matmul call cublasHgemmStridedBatched, which accumulates in float16; so do their
  gradients, which are such products (3rdparty/mshadow/mshadow/dot_engine-inl.h). FullyConnected, ``dot``, tensordot,
  einsum, the interleaved products of attention, convolutions and RNNs accumulate in float32.
- Gradients of what was broadcast are sums by ``reduce_kernel<red::sum, half_t>``. Bias gradients of FullyConnected
  and convolutions are summed in float32, that of Convolution_v1 in float16 (mshadow's MapReduceKeepDim1Kernel).
- Gradients of rows that are read by index are plain running sums.

A gradient of unknown length is no reason to forbid a call: where a network is trained, its shapes are known.
A value of unknown length is.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence, Tuple

from .core import Call, known_shape, value_of

MAX_PRODUCT = 1024
"""Longest sum of a product that is accumulated in float16.

Tensor cores round the accumulator once every 4 terms (V100) or more (Fasi et al., "Numerical behavior of NVIDIA
tensor cores", 2021). Products of random values, so accumulated, are off by 0.06%, 0.14%, 0.24% and 0.5% for 64, 512,
1024 and 4096 terms, where one rounding to float16 is 0.02%; averages of positive values lose 2% at 8192 and
13% at 16,384 terms, because the accumulator stops growing. Without tensor cores it is rounded at every term: averages
lose 0.3%, 1.3%, 4% and 11% at 512, 1024, 2048 and 4096 terms. At 1024 the error is about float16's eps of 0.1%,
and attention over up to 1024 positions keeps its tensor cores.
"""

MAX_GRADIENT = 4096
"""Longest sum of a broadcast's gradient.

red::sum carries the rounding error along, in threads of at most 64 terms, so that length costs no
accuracy (0.05% to 0.07% from 64 to 131,072 random terms, where one rounding is 0.02%). But like terms add up to a
sum that overflows first and holds the loss scale down for the whole network: of 4096 where each is above 16, and
each further factor of two costs all gradients a bit of float16's range.
"""

MAX_RUNNING_SUM = 1024
"""Longest plain running sum in float16, which the gradients of rows read by index and of UpSampling are.

Like terms lose 0.3%, 1.3%, 4% and 11% at 512, 1024, 2048 and 4096 of them, as in products without tensor cores. Most
tokens of a batch may read one row: that of padding, or of a token type.
"""


_THREADS = 256  # of MapReduceKeepDim1Kernel: so many running sums for one channel, added up in pairs at the end


def short_products(call: Call) -> Optional[str]:
    """Forbid batched products that sum more than ``MAX_PRODUCT`` terms, or unknown many, forward or backward."""
    a, b = known_shape(call, 0), known_shape(call, 1)
    if a is None or b is None:
        return "the length of the product is unknown"
    transposed = (bool(value_of(call.attrs, key)) for key in ("transpose_a", "transpose_b"))
    length = max(_product_lengths(a, b, *transposed))
    text = f"it or its gradient sums {length} products in {call.dtype}, more than {MAX_PRODUCT}"
    return text if length > MAX_PRODUCT else None


def short_gradients(call: Call) -> Optional[str]:
    """Forbid arithmetic with broadcasting, if an input's gradient sums too many terms."""
    shapes = [known_shape(call, port) for port in range(len(call.shapes))]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    size = math.prod(_broadcast(known))
    return _gradient_of(call, max(size // math.prod(shape) for shape in known))


def short_copies(call: Call) -> Optional[str]:
    """Forbid copies whose number an attribute tells, if the gradient sums too many."""
    copies = [value_of(call.attrs, key) for key in ("reps", "repeats", "size")]
    return _gradient_of(call, math.prod(math.prod(n if isinstance(n, (tuple, list)) else (n or 1,)) for n in copies))


def short_broadcast_to(call: Call) -> Optional[str]:
    """Forbid broadcasting to a shape, if the gradient sums too many terms."""
    source, target = known_shape(call, 0), value_of(call.attrs, "shape")
    target = (target,) if isinstance(target, int) else target
    if source is None or not isinstance(target, (tuple, list)):
        return None
    padded = (1,) * (len(target) - len(source)) + source
    return _gradient_of(call, math.prod(t // s for t, s in zip(target, padded) if t > 0))


def short_broadcast_like(call: Call) -> Optional[str]:
    """Forbid broadcasting to another input's shape, if the gradient sums too many terms."""
    source, like = known_shape(call, 0), known_shape(call, 1)
    if source is None or like is None:
        return None
    own, others = (_axes(call, key, len(s)) for key, s in (("lhs_axes", source), ("rhs_axes", like)))
    return _gradient_of(call, math.prod(like[other] // source[axis] for axis, other in zip(own, others)))


def short_slopes(call: Call) -> Optional[str]:
    """Forbid a PReLU whose slope has a gradient that sums too many terms."""
    data, slope = known_shape(call, 0), known_shape(call, 1)
    return None if data is None or slope is None else _gradient_of(call, math.prod(data) // math.prod(slope))


def short_bias(call: Call) -> Optional[str]:
    """Forbid a Convolution_v1 whose bias has a gradient that sums too many terms in a thread."""
    shape, stride = known_shape(call, 0), value_of(call.attrs, "stride")
    if shape is None or value_of(call.attrs, "no_bias"):
        return None
    strides = stride if isinstance(stride, (tuple, list)) and all(stride) else (1,) * len(shape[2:])
    terms = shape[0] * math.prod(math.ceil(size / step) for size, step in zip(shape[2:], strides))
    return _running_sum(call, math.ceil(terms / _THREADS))


def short_upsampling(call: Call) -> Optional[str]:
    """Forbid UpSampling by a factor at which a pixel's gradient sums too many terms."""
    shapes = [known_shape(call, port) for port in range(len(call.shapes))]
    heights = [shape[2] for shape in shapes if shape is not None] if None not in shapes else []
    scales = [value_of(call.attrs, "scale") * heights[0] // height for height in heights]
    return _running_sum(call, max(scales, default=value_of(call.attrs, "scale")) ** 2)


def few_rows(call: Call) -> Optional[str]:
    """Forbid reading so many rows by index that the gradient of one may sum too many terms."""
    index = known_shape(call, 0 if "input_dim" in call.attrs else 1)  # Embedding takes the index first
    return None if index is None else _running_sum(call, math.prod(index))


def few_points(call: Call) -> Optional[str]:
    """Forbid reading so many points by their coordinates that the gradient of one may sum too many terms."""
    index = known_shape(call, 1)  # (coordinates, ...)
    return None if index is None else _running_sum(call, math.prod(index[1:]))


def _gradient_of(call: Call, length: int) -> Optional[str]:
    text = f"its gradient sums {length} terms in {call.dtype}, more than {MAX_GRADIENT}"
    return text if length > MAX_GRADIENT else None


def _running_sum(call: Call, length: int) -> Optional[str]:
    text = f"its gradient sums up to {length} terms in {call.dtype}, more than {MAX_RUNNING_SUM}"
    return text if length > MAX_RUNNING_SUM else None


def _product_lengths(a: Sequence[int], b: Sequence[int], transpose_a: bool, transpose_b: bool) -> Tuple[int, int, int]:
    """Return the lengths of the sums of a product and of the gradients of its inputs.

    An input that is broadcast over the batch gets the sum of a product's gradients over the batch.
    """
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    rows, inner = (a[-1], a[-2]) if transpose_a else (a[-2], a[-1])
    columns = b[-2] if transpose_b else b[-1]
    batch = math.prod(_broadcast((a[:-2], b[:-2])))
    return inner, columns * (batch // math.prod(a[:-2])), rows * (batch // math.prod(b[:-2]))


def _broadcast(shapes: Sequence[Sequence[int]]) -> Tuple[int, ...]:
    """Return the shape that shapes are broadcast to, aligned at the end."""
    ndim = max(len(shape) for shape in shapes)
    padded = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded))


def _axes(call: Call, key: str, ndim: int) -> Sequence[int]:
    axes = value_of(call.attrs, key)
    return [axis % ndim for axis in axes] if isinstance(axes, (tuple, list)) else range(ndim)
