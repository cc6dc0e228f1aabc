"""Conditions on attributes and shapes under which a call must stay in float32.

Each returns a function of a ``Call`` that gives the reason, or None. An unknown shape in a forward check keeps the call
in float32. A check of a gradient's sum ignores unknown shapes, because training always knows them.

How long a sum may be is said of float16 on a GPU (CUDA sources of tag 1.9.1); in bfloat16 no such kernel rounds.

- ``batch_dot`` and numpy's matmul call cublasHgemmStridedBatched, which accumulates in float16; so do their
  gradients, which are such products (3rdparty/mshadow/mshadow/dot_engine-inl.h). FullyConnected, ``dot``, tensordot,
  einsum, the interleaved products of attention, convolutions and RNNs accumulate in float32.
- Gradients of broadcast inputs are sums by ``reduce_kernel<red::sum, half_t>``. Bias gradients of FullyConnected and
  convolutions are summed in float32, that of Convolution_v1 in float16 (mshadow's MapReduceKeepDim1Kernel).
- Gradients of rows that are read by index are plain running sums.
"""

from __future__ import annotations

import functools
import math
from typing import Dict, FrozenSet, Mapping, Optional, Sequence, Tuple

from .. import dtypes
from .core import Call, Condition, known_shape
from .core import flag_of as flag_of
from .core import sizes_of as sizes_of
from .core import value_of as value_of

MAX_REDUCTION = 1024
"""Longest sum in low precision.

MXNet sums in the dtype of the data (src/operator/tensor/broadcast_reduce_op.h at tag 1.9.1), with
MXNET_SAFE_ACCUMULATION too: that is for softmax, LayerNorm and norm alone. ``sum`` and ``mean`` carry the rounding
error along (mshadow's red::sum), but overflow: the float16 mean of 70,000 ones is NaN. Of 1024 elements it is not where
they are below 64. The windows of AdaptiveAvgPooling2D are plain running sums: of ones they stop growing at 2048, and
random windows of 32x32, 56x56 and 112x112 are off by 0.5%, 1.6% and 67% (float16 on CPU).
"""

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

MAX_MAGNIFICATION = 8
"""Largest factor per side that BilinearResize2D magnifies by in low precision.

Its gradient is a running sum in the dtype of the data (src/operator/contrib/bilinear_resize.cc and
.cu at tag 1.9.1): off by 0.7%, 3% and 22% for factors of 8, 16 and 32 (float16 on CPU).
"""


def unsafe_scalar(call: Call, keys: Tuple[str, ...]) -> Optional[str]:
    """Return a reason if the low precision dtype turns a scalar into inf, 0, 1, -1 or its largest value.

    In float16 a mask of -1e9 becomes -inf, and an epsilon of 1e-9 vanishes. A bound of 0.9999 becomes 1, where ``log(1
    - x)``, arccos and arctanh have no finite gradient. A scalar that is such a value in float32 is fine.
    """
    limits = dtypes.limits(call.dtype)
    for key in keys:
        value = value_of(call.attrs, key)
        if not isinstance(value, (int, float)) or value == 0:
            continue
        if abs(value) > limits.max:
            return f"{key}={value:g} is beyond {call.dtype}'s largest value {limits.max:g}"
        if abs(value) < limits.tiny:
            return f"{key}={value:g} is below {call.dtype}'s smallest normal value {limits.tiny:.1e}"
        low = _rounded(value, call.dtype)
        if abs(low) in (1, limits.max) and low != _rounded(value, dtypes.FLOAT32):
            return f"{key}={value!r} becomes {low:g} in {call.dtype}"
    return None


def scalars_in_range(*keys: str) -> Condition:
    """Forbid calls with an unsafe scalar."""
    return functools.partial(unsafe_scalar, keys=keys)


def clamped_scalars(call: Call, keys: Tuple[str, ...]) -> Dict[str, str]:
    """Return the finite scalars beyond the low precision dtype's range, each as the largest value with its sign."""
    largest = dtypes.limits(call.dtype).max
    values = {key: value_of(call.attrs, key) for key in keys}
    beyond = {k: v for k, v in values.items() if isinstance(v, (int, float)) and largest < abs(v) < math.inf}
    return {key: repr(largest if value > 0 else -largest) for key, value in beyond.items()}


def scalars_representable(*keys: str) -> Condition:
    """Forbid calls with scalars out of range, or that bfloat16 cannot represent, which MXNet truncates."""
    in_range = scalars_in_range(*keys)

    def condition(call: Call) -> Optional[str]:
        reason = in_range(call)
        if reason or call.dtype != dtypes.BFLOAT16:
            return reason
        for key in keys:
            value = value_of(call.attrs, key)
            finite = isinstance(value, (int, float)) and math.isfinite(value)
            if finite and _rounded(value, call.dtype) != value:
                return f"{key}={value:g} is none of bfloat16's values, and MXNet truncates it"
        return None

    return condition


def reduced_elements(call: Call) -> Optional[int]:
    """Return how many elements a reduction makes one of, None if unknown."""
    shape = known_shape(call, 0)
    return None if shape is None else math.prod(shape[axis] for axis in _reduced_axes(call.attrs, len(shape)))


def share(call: Call) -> Optional[float]:
    """Return the mean of softmax's results as a part of their sum, which is 1; None if unknown.

    So a product of softmax with as many values is a mean, and no larger than these.
    """
    shape, axis = known_shape(call, 0), value_of(call.attrs, "axis")
    return None if shape is None else 1 / shape[-1 if axis is None else axis]


def pooled_elements(call: Call) -> Optional[int]:
    """Return how many elements a window of Pooling has, None if unknown."""
    shape, kernel = known_shape(call, 0), sizes_of(call.attrs, "kernel")
    if not flag_of(call.attrs, "global_pool", False):
        return math.prod(kernel)
    return None if shape is None else math.prod(shape[2:])


def multiplied_elements(call: Call) -> Optional[int]:
    """Return how many products each element of a matrix product sums, None if unknown."""
    shape = known_shape(call, 0)
    if shape is None:
        return None
    if "num_hidden" in call.attrs:  # FullyConnected
        return math.prod(shape[1:]) if flag_of(call.attrs, "flatten", True) else shape[-1]
    keys = "transpose_a", "transpose"  # the second is that of syrk
    is_transposed = len(shape) > 1 and any(flag_of(call.attrs, key, False) for key in keys)
    return shape[-2] if is_transposed else shape[-1]


def tensordot_elements(call: Call) -> Optional[int]:
    """Return how many products each element of numpy's tensordot sums, None if unknown."""
    shape = known_shape(call, 0)
    if shape is None:
        return None
    count = value_of(call.attrs, "axes")  # of the last axes of input 0; inner is tensordot over one
    axes = range(len(shape) - count, len(shape)) if isinstance(count, int) else sizes_of(call.attrs, "a_axes_summed")
    return math.prod(shape[axis] for axis in axes)


def einsum_elements(call: Call) -> Optional[int]:
    """Return how many products each element of numpy's einsum sums, None if unknown.

    'bij,bjk->bik' sums over j.
    """
    inputs, arrow, output = call.attrs.get("subscripts", "").replace(" ", "").partition("->")
    lengths: Dict[str, int] = {}
    for port, labels in enumerate(inputs.split(",")):
        shape = known_shape(call, port)
        if shape is None:
            return None
        before, _, after = labels.partition("...")  # which are never summed
        lengths.update(zip(before, shape))
        lengths.update(zip(reversed(after), reversed(shape)))
    summed = (label for label in lengths if (label not in output if arrow else inputs.count(label) > 1))
    return math.prod(lengths[label] for label in summed)


def short_reduction(call: Call) -> Optional[str]:
    """Forbid reductions over more than ``MAX_REDUCTION`` elements, or over unknown many."""
    return _reduction_of(reduced_elements(call))


def short_pooling(call: Call) -> Optional[str]:
    """Forbid windows of more than ``MAX_REDUCTION`` elements, or of unknown many."""
    return _reduction_of(pooled_elements(call))


def short_windows(call: Call) -> Optional[str]:
    """Forbid adaptive pooling over windows of more than ``MAX_REDUCTION`` elements, or to so many for each element.

    An element of the data that is in many windows gets as many terms in its gradient, a plain running sum too.
    """
    shape = known_shape(call, 0)
    if shape is None:
        return "the size of the windows is unknown"
    output = value_of(call.attrs, "output_size") or (1,)
    sides = (output, output) if isinstance(output, int) else (output[0], output[-1])
    length = math.prod(math.ceil(max(i / o, o / i)) for i, o in zip(shape[2:], sides))
    return f"it or its gradient sums {length} elements, more than {MAX_REDUCTION}" if length > MAX_REDUCTION else None


def small_magnification(call: Call) -> Optional[str]:
    """Forbid resizing by more than ``MAX_MAGNIFICATION``, or by an unknown factor."""
    for side, axis in (("height", 2), ("width", 3)):
        factor = _magnification(call, side, axis)
        if factor is None:
            return "the magnification is unknown"
        if factor > MAX_MAGNIFICATION:
            return f"it magnifies by {factor:g}, more than {MAX_MAGNIFICATION}"
    return None


def short_products(call: Call) -> Optional[str]:
    """Forbid batched products that sum more than ``MAX_PRODUCT`` terms, or unknown many, forward or backward."""
    a, b = known_shape(call, 0), known_shape(call, 1)
    if a is None or b is None:
        return "the length of the product is unknown"
    transposed = (bool(value_of(call.attrs, key)) for key in ("transpose_a", "transpose_b"))
    length = max(_product_lengths(a, b, *transposed))
    text = f"it or its gradient sums {length} products in {call.dtype}, more than {MAX_PRODUCT}"
    return text if length > MAX_PRODUCT else None


def short_gemm2(call: Call) -> Optional[str]:
    """Forbid a factor out of range, and sums that are too long for the ``batch_dot`` that replaces gemm2."""
    # Of two dimensions it becomes ``dot``, which accumulates in float32.
    shape = known_shape(call, 0)
    batched = shape is not None and len(shape) > 2
    return unsafe_scalar(call, ("alpha",)) or (short_products(call) if batched else None)


def short_gradients(call: Call) -> Optional[str]:
    """Forbid arithmetic with broadcasting, if an input's gradient sums too many terms."""
    shapes = [known_shape(call, port) for port in range(len(call.shapes))]
    known_shapes = [shape for shape in shapes if shape is not None]
    if not known_shapes or len(known_shapes) < len(shapes):
        return None
    size = math.prod(_broadcast(known_shapes))
    return _gradient_of(call, max(size // math.prod(shape) for shape in known_shapes))


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
    source_axes, others = (_axes(call, key, len(s)) for key, s in (("lhs_axes", source), ("rhs_axes", like)))
    return _gradient_of(call, math.prod(like[other] // source[axis] for axis, other in zip(source_axes, others)))


def short_slopes(call: Call) -> Optional[str]:
    """Forbid a PReLU whose slope has a gradient that sums too many terms."""
    data, slope = known_shape(call, 0), known_shape(call, 1)
    return None if data is None or slope is None else _gradient_of(call, math.prod(data) // math.prod(slope))


def short_bias(call: Call) -> Optional[str]:
    """Forbid a Convolution_v1 whose bias has a gradient that sums too many terms in a thread."""
    shape, stride = known_shape(call, 0), value_of(call.attrs, "stride")
    if shape is None or flag_of(call.attrs, "no_bias", False):
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


def taps_on_data(call: Call) -> Optional[str]:
    """Forbid bfloat16 convolutions with a tap that reads padding at every output, as on data one pixel wide.

    The gradient of such a tap is a sum of nothing. oneDNN's bfloat16 kernel may leave the old contents of the memory
    there. In a test 2,346 random convolutions ran in memory full of NaN, and 261 had NaN in the weight's gradient. All
    of these had such a tap.
    """
    shape, kernel = known_shape(call, 0), sizes_of(call.attrs, "kernel")
    if call.dtype != dtypes.BFLOAT16 or shape is None:
        return None
    defaults = {"stride": (1,) * 3, "dilate": (1,) * 3, "pad": (0,) * 3}
    stride, dilate, pad = (sizes_of(call.attrs, key) or default for key, default in defaults.items())
    for size, taps, step, spread, margin in zip(shape[2:], kernel, stride, dilate, pad):
        ends = range(-margin, size + margin - spread * (taps - 1), step)  # where tap 0 lies, output by output
        if any(not any(0 <= end + spread * tap < size for end in ends) for tap in range(taps)):
            return f"its kernel of {taps} has taps that read nothing but padding around {size}"
    return None


VECTOR = 16
"""Channels that oneDNN's bfloat16 kernels compute at once."""


def vectors_of_channels(call: Call) -> Optional[str]:
    """Forbid bfloat16 depthwise convolutions for which oneDNN has a kernel only in float32.

    Those whose channels do not fill vectors of 16, but of 8, which float32 may have. In bfloat16 a matrix product for
    each channel replaces it (gemm_bf16_convolution). That took 2 to 4 times as long forward, and 3 to 7 times in
    training. The figures are for 8, 24, 72 and 728 channels on an AMD EPYC with AVX512-BF16. With 116 channels float32
    has no kernel either.
    """
    groups, filters = (value_of(call.attrs, key) or 1 for key in ("num_group", "num_filter"))
    if call.dtype != dtypes.BFLOAT16 or groups != filters or groups % VECTOR == 0 or groups % (VECTOR // 2):
        return None
    return f"oneDNN has no bfloat16 kernel for {groups} channels, each by itself, and takes several times as long"


def sound_convolution(call: Call) -> Optional[str]:
    """Forbid bfloat16 convolutions whose gradient oneDNN leaves unwritten in part, or that it has no kernel for."""
    return taps_on_data(call) or vectors_of_channels(call)


def without_tensor_cores(call: Call) -> Optional[str]:
    """Forbid the fused RNN, which MXNet keeps off tensor cores in low precision, while float32 may have them.

    For float16 MXNet always asks cuDNN for CUDNN_DEFAULT_MATH (``cudnn_tensor_core_ = false`` in rnn-inl.h at tag
    1.9.1). By cuDNN 8's API reference (cudnnMathType_t) that permits no tensor cores before A100, and from A100 on
    TF32, which is for float32 data. For float32 MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION=1 permits those of float16
    on all cards. Weights would be cast at every step too. docs/kernels.md has an estimate of both.
    """
    return f"MXNet runs it without tensor cores in {call.dtype}, which float32 may have"


def row_sparse_gradient(call: Call) -> Optional[str]:
    """Forbid low precision where a weight has a row_sparse gradient, which that of a cast in front would make dense."""
    return f"the gradient of its weight is row_sparse, and would be dense behind a cast to {call.dtype}"


_LOW = frozenset(dtypes.LOW_PRECISION)

SHAPE_CONDITIONS: Dict[Condition, FrozenSet[str]] = {
    sound_convolution: frozenset({dtypes.BFLOAT16}),
    **dict.fromkeys((short_reduction, short_pooling, short_windows, small_magnification), _LOW),
    **dict.fromkeys((short_products, short_gemm2, few_rows, few_points, short_bias, short_upsampling), _LOW),
    **dict.fromkeys((short_gradients, short_slopes, short_broadcast_to, short_broadcast_like), _LOW),
}
"""The conditions that read shapes, with the dtypes for which they do."""


def _magnification(call: Call, side: str, axis: int) -> Optional[float]:
    mode = call.attrs.get("mode", "size")
    scale = value_of(call.attrs, f"scale_{side}")
    if mode in ("size", "odd_scale") and scale is not None:
        return float(scale)
    if mode not in ("size", "like"):
        return 1.0  # to_even_up and its like: one row at most
    source, like = known_shape(call, 0), known_shape(call, 1)
    if source is None or (mode == "like" and like is None):
        return None
    target = like[axis] if mode == "like" and like is not None else value_of(call.attrs, side) or 1
    return float(target / source[axis])


def _reduced_axes(attrs: Mapping[str, str], ndim: int) -> Tuple[int, ...]:
    axis = value_of(attrs, "axis")
    if not isinstance(axis, int) and not axis:
        return tuple(range(ndim))  # 'exclude' or not
    axes = {a % ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    return tuple(set(range(ndim)) - axes if value_of(attrs, "exclude") else axes)


def _reduction_of(length: Optional[int]) -> Optional[str]:
    if length is None:
        return "the length of the reduction is unknown"
    return f"it reduces {length} elements, more than {MAX_REDUCTION}" if length > MAX_REDUCTION else None


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
    # numpy's matmul takes vectors: a row on the left, a column on the right.
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


def _rounded(value: float, dtype: str) -> float:
    """Return a finite number rounded to as many digits as a dtype has; the dtype's range is ignored."""
    significand, exponent = math.frexp(value)
    scale = 2 / dtypes.limits(dtype).eps
    return math.ldexp(round(significand * scale) / scale, exponent)
