"""Conditions on attributes and shapes under which a call must stay in float32.

Each returns a function of a ``Call`` that gives the reason, or None. A value that a call needs
but does not carry (an unknown shape) is a reason too: what is not known to be safe is not.
"""

from __future__ import annotations

import functools
import math
from typing import Dict, FrozenSet, Mapping, Optional, Tuple

from .. import dtypes
from . import sums
from .core import Call, Condition, known_shape
from .core import value_of as value_of

MAX_REDUCTION = 1024
"""Longest sum in low precision.

MXNet sums in the dtype of the data (src/operator/tensor/broadcast_reduce_op.h at tag 1.9.1), with
MXNET_SAFE_ACCUMULATION too: that is for softmax, LayerNorm and norm alone. ``sum`` and ``mean`` carry the rounding
error along (mshadow's red::sum), but overflow: the float16 mean of 70,000 ones is NaN. Of 1024 elements it is not where
they are below 64. The windows of AdaptiveAvgPooling2D are plain running sums: of ones they stop growing at 2048, and
random windows of 32x32, 56x56 and 112x112 are off by 0.5%, 1.6% and 67% (float16 on CPU).
"""

MAX_MAGNIFICATION = 8
"""Largest factor per side that BilinearResize2D magnifies by in low precision.

Its gradient is a running sum in the dtype of the data (src/operator/contrib/bilinear_resize.cc and
.cu at tag 1.9.1): off by 0.7%, 3% and 22% for factors of 8, 16 and 32 (float16 on CPU).
"""


def unsafe_scalar(call: Call, keys: Tuple[str, ...]) -> Optional[str]:
    """Return a reason if the low precision dtype turns a scalar into inf, 0, 1, -1 or its largest value.

    In float16 a mask of -1e9 becomes -inf, an epsilon of 1e-9 vanishes, and a bound of 0.9999 becomes 1, where
    ``log(1 - x)``, arccos and arctanh have no finite gradient. A scalar that is such a value in float32 is fine.
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
        low = dtypes.rounded(value, call.dtype)
        if abs(low) in (1, limits.max) and low != dtypes.rounded(value, dtypes.FLOAT32):
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
            if finite and dtypes.rounded(value, call.dtype) != value:
                return f"{key}={value:g} is none of bfloat16's values, and MXNet truncates it"
        return None

    return condition


def short_reduction(call: Call) -> Optional[str]:
    """Forbid reductions over more than ``MAX_REDUCTION`` elements, or over unknown many."""
    shape = known_shape(call, 0)
    if shape is None:
        return "the length of the reduction is unknown"
    length = math.prod(shape[axis] for axis in _reduced_axes(call.attrs, len(shape)))
    return f"it reduces {length} elements, more than {MAX_REDUCTION}" if length > MAX_REDUCTION else None


def short_windows(call: Call) -> Optional[str]:
    """Forbid adaptive pooling over windows of more than ``MAX_REDUCTION`` elements, or to so many for each element.

    An element of the data that is in many windows gets as many terms in its gradient, a plain running sum too.
    """
    shape = known_shape(call, 0)
    output = value_of(call.attrs, "output_size") or (1,)
    sides = (output, output) if isinstance(output, int) else (output[0], output[-1])
    length = None if shape is None else math.prod(math.ceil(max(i / o, o / i)) for i, o in zip(shape[2:], sides))
    return _windows(length)


def short_pooling(call: Call) -> Optional[str]:
    """Forbid pooling over windows of more than ``MAX_REDUCTION`` elements by a kernel that sums in low precision.

    Pooling_v1's is a plain running sum (mshadow's PoolingExp); that of Pooling is in float32.
    """
    shape = known_shape(call, 0)
    if not value_of(call.attrs, "global_pool"):
        return _windows(math.prod(value_of(call.attrs, "kernel") or ()))
    return _windows(None if shape is None else math.prod(shape[2:]))


def small_magnification(call: Call) -> Optional[str]:
    """Forbid resizing by more than ``MAX_MAGNIFICATION``, or by an unknown factor."""
    for side, axis in (("height", 2), ("width", 3)):
        factor = _magnification(call, side, axis)
        if factor is None:
            return "the magnification is unknown"
        if factor > MAX_MAGNIFICATION:
            return f"it magnifies by {factor:g}, more than {MAX_MAGNIFICATION}"
    return None


def short_gemm2(call: Call) -> Optional[str]:
    """Forbid a factor out of range, and sums that are too long for the ``batch_dot`` that stands in for it."""
    shape = known_shape(call, 0)
    batched = shape is not None and len(shape) > 2
    return unsafe_scalar(call, ("alpha",)) or (sums.short_products(call) if batched else None)


def taps_on_data(call: Call) -> Optional[str]:
    """Forbid bfloat16 convolutions with a tap that reads padding at every output, as on data one pixel wide.

    The gradient of such a tap is a sum of nothing, but oneDNN's bfloat16 kernel may leave there what the memory
    held: of 2,346 random convolutions, run with memory full of NaN, 261 had some in the weight's gradient, and
    all of those had such a tap.
    """
    shape, kernel = known_shape(call, 0), value_of(call.attrs, "kernel")
    if call.dtype != dtypes.BFLOAT16 or shape is None or not isinstance(kernel, tuple):
        return None
    defaults = {"stride": (1,) * 3, "dilate": (1,) * 3, "pad": (0,) * 3}
    stride, dilate, pad = (value_of(call.attrs, key) or default for key, default in defaults.items())
    for size, taps, step, spread, margin in zip(shape[2:], kernel, stride, dilate, pad):
        ends = range(-margin, size + margin - spread * (taps - 1), step)  # where tap 0 lies, output by output
        if any(not any(0 <= end + spread * tap < size for end in ends) for tap in range(taps)):
            return f"its kernel of {taps} has taps that read nothing but padding around {size}"
    return None


VECTOR = 16
"""Channels that oneDNN's bfloat16 kernels compute at once."""


def vectors_of_channels(call: Call) -> Optional[str]:
    """Forbid bfloat16 depthwise convolutions for which oneDNN has a kernel in float32 alone.

    Those whose channels do not fill vectors of 16, but of 8, which float32 may have. In bfloat16 a matrix product for
    each channel stands in (gemm_bf16_convolution), which took 2 to 4 times as long forward, and 3 to 7 times in
    training, with 8, 24, 72 and 728 channels on an AMD EPYC with AVX512-BF16. With 116 channels float32 has no kernel
    either.
    """
    groups, filters = (value_of(call.attrs, key) or 1 for key in ("num_group", "num_filter"))
    if call.dtype != dtypes.BFLOAT16 or groups != filters or groups % VECTOR == 0 or groups % (VECTOR // 2):
        return None
    return f"oneDNN has no bfloat16 kernel for {groups} channels, each by itself, and takes several times as long"


def sound_convolution(call: Call) -> Optional[str]:
    """Forbid bfloat16 convolutions whose gradient oneDNN leaves unwritten in part, or that it has no kernel for."""
    return taps_on_data(call) or vectors_of_channels(call)


def _windows(length: Optional[int]) -> Optional[str]:
    if length is None:
        return "the size of the windows is unknown"
    return f"it or its gradient sums {length} elements, more than {MAX_REDUCTION}" if length > MAX_REDUCTION else None


def without_tensor_cores(call: Call) -> Optional[str]:
    """Forbid what MXNet keeps off tensor cores in low precision, while float32 may have them: the fused RNN.

    For float16 it asks cuDNN for CUDNN_DEFAULT_MATH whatever is set (``cudnn_tensor_core_ = false`` in rnn-inl.h at
    tag 1.9.1). By cuDNN 8's API reference (cudnnMathType_t) that permits no tensor cores before A100, and from A100 on
    TF32, which is for float32 data. For float32 MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION=1 permits those of float16
    on all cards. Weights would be cast at every step too. docs/choosing_a_policy.md has an estimate of both.
    """
    return f"MXNet runs it without tensor cores in {call.dtype}, which float32 may have"


def row_sparse_gradient(call: Call) -> Optional[str]:
    """Forbid low precision where a weight has a row_sparse gradient, which that of a cast in front would make dense."""
    return f"the gradient of its weight is row_sparse, and would be dense behind a cast to {call.dtype}"


_LOW = frozenset(dtypes.LOW_PRECISION)

SHAPE_CONDITIONS: Dict[Condition, FrozenSet[str]] = {
    sound_convolution: frozenset({dtypes.BFLOAT16}),
    **dict.fromkeys((short_reduction, short_windows, short_pooling, small_magnification, short_gemm2), _LOW),
    **dict.fromkeys((sums.short_products, sums.short_gradients, sums.short_slopes, sums.short_upsampling), _LOW),
    **dict.fromkeys((sums.short_broadcast_to, sums.short_broadcast_like, sums.few_rows, sums.few_points), _LOW),
    sums.short_bias: _LOW,
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
