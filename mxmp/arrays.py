"""Arrays: casts, finite checks, norms, and many arrays copied, cast or scaled by few operators.

On a GPU each operator is a launch and a wait. MXNet has no operators that copy or cast many arrays at once. But its SGD
takes up to 60 weights in one launch (MultiSGDKernel in src/operator/optimizer_op-inl.h at tag 1.9.1):

    out = w + (0 - lr * wd * w - (lr * rescale_grad) * grad)
    out = w + (0 - lr * wd * w - lr * clip(rescale_grad * grad)), with clip_gradient

With a learning rate of 0 that is a copy of ``w``. With weights of zero and a negative learning rate it is the gradient
times a number, or clipped. With masters it takes float16 gradients and weights, and float32 masters:

    master = master + (0 - lr * wd * master - lr * float32(gradient));  weight = round(master)

A learning rate of -1 adds the gradients to masters of zero, which casts them to float32. A learning rate of 0 rounds
the masters into the weights. All are exact, except that -0 becomes 0, and an inf that is copied or rounded a NaN.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.base import _LIB, check_call

from .dtypes import NUMPY_BFLOAT16
from .errors import TrainerError

T = TypeVar("T")

# The arrays of one launch: N of MultiSGDKernelParam.
MOST_ARRAYS = 60

# Elements that are cast at a time on a GPU: 32 MiB in float32.
MOST_ELEMENTS = 2**23

_PIECE = 2**20  # elements, 4 MiB in float32


# Where arrays lie.


def on_gpu(array: mx.nd.NDArray) -> bool:
    """Return whether an array lies on a GPU."""
    return bool(array.ctx.device_type == "gpu")


def address(array: mx.nd.NDArray) -> int:
    """Return the address of an array's first element, 0 for a row_sparse one without rows; waits for its writers."""
    array.wait_to_read()  # else MXNet could change the layout meanwhile
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def wait_until_readable(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Wait until a weight may be read on the host, and return it.

    When an inference on a CPU has read a weight, MXNet moves the weight into a layout of oneDNN's, in place
    (``MKLDNNDataReorderAsync`` in src/ndarray/ndarray.cc at tag 1.9.1). ``wait_to_read`` and ``asnumpy`` do not wait
    for a move that is not queued yet. 435 weights were copied into a file's pages right after a call: 277 had part of
    the old layout and part of the new one. The move is queued before the operator that reads the weight ends.
    """
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))  # for the readers
    array.wait_to_read()
    return array


def to_default_layout(array: mx.nd.NDArray) -> None:
    """Move a dense array on a CPU out of a layout of oneDNN's, in place; waits for it.

    An inference can leave a weight in such a layout. The weight stays there in training, where each cast of it then
    takes longer: a step of a ResNet-18 in bfloat16 takes 1.25 times as long.
    """
    if not on_gpu(array) and array.stype == "default" and array.size:
        wait_until_readable(array)
        address(array)  # MXNDArrayGetData in src/c_api/c_api.cc at tag 1.9.1 moves it


def view(array: mx.nd.NDArray) -> np.ndarray[Any, Any]:
    """Return the values of an array for reading, while nothing writes to it; waits for the array.

    For an array on a CPU, of float32 or low precision, the result is the array's own memory. A copy of a large array
    would take as long as the work on it, mostly because its pages are new. Other arrays are copied.
    """
    dtype, shape = array.dtype, array.shape  # each attribute of an array is a call of MXNet
    if on_gpu(array) or dtype not in (np.float16, np.float32, NUMPY_BFLOAT16) or 0 in shape:
        return array.asnumpy()  # type: ignore[no-any-return]
    return np.asarray(_Memory(array, np.dtype(dtype), shape))


class _Memory:
    """An array's memory, for numpy to read. Views of it keep the array alive."""

    def __init__(self, array: mx.nd.NDArray, dtype: np.dtype[Any], shape: Tuple[int, ...]) -> None:
        self._array = array
        read_only = True
        data = address(array), read_only
        self.__array_interface__ = {
            "version": 3, "data": data, "shape": shape, "typestr": dtype.str, "descr": dtype.descr
        }  # fmt: skip


# Casts of one array.


def amp_cast(array: mx.nd.NDArray, dtype: Any, out: Optional[mx.nd.NDArray] = None) -> mx.nd.NDArray:
    """Return a dense array in another dtype of float16, bfloat16 and float32, in the default layout.

    It is rounded to nearest even, into ``out`` of the same shape if that is given.

    After inference in float32 MXNet keeps a convolution's weight in oneDNN's layout. A grouped weight has one more axis
    there (g, o, i, h, w). MXNet's operator (AMPCastExCPU in src/operator/tensor/amp_cast.cc at tag 1.9.1) asks oneDNN
    for a cast between the two, which does not exist: "could not create a primitive descriptor for a reorder primitive".
    A view of the weight is moved to the default layout first.
    """
    shape = array.shape
    if out is None:
        out = mx.nd.empty(shape, ctx=array.ctx, dtype=dtype)
    # A view costs two casts of a small array.
    source, target = (flat(each) if len(shape) > 2 else each.as_nd_ndarray() for each in (array, out))
    with autograd.pause():
        mx.nd.amp_cast(source, dtype=dtype, out=target)
    return out


def flat(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a one-dimensional view of a dense array."""
    return array.as_nd_ndarray().reshape((array.size,))


def is_low_precision(array: mx.nd.NDArray) -> bool:
    """Return whether an array holds float16 or bfloat16."""
    dtype = array.dtype
    return bool(dtype == np.float16 or dtype == NUMPY_BFLOAT16)


def to_float32(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return an array as float32: exact for low precision; an array of another dtype is returned as it is.

    A low precision row_sparse array becomes dense on the way, because MXNet's casts take only dense arrays.
    """
    if not is_low_precision(array):
        return array
    if array.stype == "default":
        return amp_cast(array, "float32")
    dense = amp_cast(array.tostype("default"), "float32")
    return mx.nd.cast_storage(dense, array.stype)


def round_into(source: mx.nd.NDArray, out: mx.nd.NDArray) -> None:
    """Round a float32 array to nearest even into a low precision one of the same shape.

    Float16 goes through Cast and bfloat16 through amp_cast, because Cast truncates to bfloat16
    in MXNet 1.9.1. On CPU amp_cast flushes values below 2**-126 to zero.
    """
    if out.dtype == np.float16:
        with autograd.pause():
            mx.nd.Cast(source, dtype="float16", out=out)
    else:
        amp_cast(source, NUMPY_BFLOAT16, out=out)


def flat_chunks(array: mx.nd.NDArray, size: Optional[int] = None) -> Iterator[mx.nd.NDArray]:
    """Yield one-dimensional views of at most ``size`` elements, by default 2**20, that make up a dense array."""
    size = _PIECE if size is None else size
    flat = array.reshape(-1)
    length = flat.shape[0]
    if length <= size:
        yield flat
    else:
        yield from (flat[start : start + size] for start in range(0, length, size))


# Many arrays by one operator.


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield parts of a sequence of at most ``size`` items."""
    return (items[start : start + size] for start in range(0, len(items), size))


def views(flat_array: mx.nd.NDArray, like: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return parts of a one-dimensional array in the shapes of others, in their order."""
    parts, start = [], 0
    for array in like:
        parts.append(flat_array[start : start + array.size].reshape(array.shape))
        start += array.size
    return parts


def copy_all(sources: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> None:
    """Copy dense arrays into others of their shapes, dtype and context, 60 in a launch; inf becomes NaN."""
    for group in chunks(list(zip(sources, targets)), MOST_ARRAYS):
        count = len(group)
        inputs = [array for source, _ in group for array in (source, source)]
        out = [target for _, target in group]
        mx.nd.multi_sgd_update(*inputs, lrs=(0,) * count, wds=(0,) * count, num_weights=count, out=out)


def scale_all(arrays: Sequence[mx.nd.NDArray], factor: float) -> None:
    """Multiply dense float32 arrays of one context in place, 60 in a launch; -0 becomes 0."""
    # MXNet 1.9.1 reads rescale_grad with an error in the last bit where it is written with an exponent.
    mantissa, exponent = math.frexp(np.float32(factor))
    _move_zeros(arrays, 2.0 ** (exponent - 1), rescale_grad=2 * mantissa)


def clip_all(arrays: Sequence[mx.nd.NDArray], max_value: float) -> None:
    """Bring every element of dense float32 arrays of one context into [-max_value, max_value], 60 in a launch."""
    _move_zeros(arrays, 1.0, clip_gradient=max_value)


def _move_zeros(grads: Sequence[mx.nd.NDArray], rate: float, **options: Any) -> None:
    """Replace gradients by the change that a step of SGD makes to weights of zero, at a learning rate of ``-rate``."""
    parts = [part for grad in grads for part in flat_chunks(grad)]
    zeros = mx.nd.zeros((max(part.size for part in parts),), ctx=parts[0].ctx)
    for group in chunks(parts, MOST_ARRAYS):
        count = len(group)
        inputs = [array for part in group for array in (zeros[: part.size], part)]
        options.update(lrs=(-rate,) * count, wds=(0,) * count, num_weights=count)
        mx.nd.multi_sgd_update(*inputs, out=list(group), **options)


def concat_scalars(numbers: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return float32 arrays of shape (1,) as one of shape (N,), on the context of the first; a single one as it is.

    On a GPU an inf becomes a NaN.
    """
    if len(numbers) == 1:
        return numbers[0]
    with autograd.pause():
        here = [number.as_in_context(numbers[0].ctx) for number in numbers]
        if not on_gpu(here[0]):
            return mx.nd.concat(*here, dim=0)
        scalars = mx.nd.empty((len(here),), ctx=here[0].ctx)
        copy_all(here, views(scalars, here))
        return scalars


def widen(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return dense float16 arrays of one context as float32, views of one array."""
    flat_array = mx.nd.zeros((sum(array.size for array in arrays),), ctx=arrays[0].ctx)
    float32_arrays = views(flat_array, arrays)
    for group in chunks(list(zip(arrays, float32_arrays)), MOST_ARRAYS):
        lows = [low for low, _ in group]
        _sgd(lows, lows, [master for _, master in group], lr=-1)
    return float32_arrays


def all_to_float32(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return arrays as `to_float32` does, those of ``mx.np`` as such; a GPU casts dense float16 arrays together."""
    sources = [array.as_nd_ndarray() for array in arrays]
    fit = [k for k, array in enumerate(sources) if _is_cast_together(array)]
    together: Dict[int, mx.nd.NDArray] = {}
    for group in by_context(fit, [sources[k] for k in fit]):
        with autograd.pause():
            together.update(zip(group, widen([sources[k] for k in group])))
    results = [together[k] if k in together else to_float32(array) for k, array in enumerate(sources)]
    return [each.as_np_ndarray() if isinstance(array, mx.np.ndarray) else each for each, array in zip(results, arrays)]


def by_context(items: Sequence[T], arrays: Sequence[mx.nd.NDArray]) -> List[List[T]]:
    """Return items in groups, by the contexts of their arrays."""
    groups: Dict[mx.Context, List[T]] = {}
    for item, array in zip(items, arrays):
        groups.setdefault(array.ctx, []).append(item)
    return list(groups.values())


def round_all(masters: Sequence[mx.nd.NDArray], weights: Sequence[mx.nd.NDArray]) -> None:
    """Round float32 arrays to nearest even into low precision arrays of one context; a GPU rounds dense ones together.

    Those must hold no NaN.
    """
    pairs = list(zip(weights, masters))
    for group in chunks([pair for pair in pairs if _is_cast_together(pair[0])], MOST_ARRAYS):
        lows = [low for low, _ in group]
        _sgd(lows, lows, [master for _, master in group], lr=0)
    for low, master in pairs:
        if not _is_cast_together(low):
            round_into(master, low)


def _is_cast_together(array: mx.nd.NDArray) -> bool:
    """Return whether an array is cast to and from float32 with others by one operator."""
    return bool(on_gpu(array) and array.dtype == np.float16 and array.stype == "default" and array.size)


def _sgd(
    weights: Sequence[mx.nd.NDArray], grads: Sequence[mx.nd.NDArray], masters: Sequence[mx.nd.NDArray], lr: float
) -> None:
    count = len(weights)
    inputs = [array for triple in zip(weights, grads, masters) for array in triple]
    options: Dict[str, Any] = {} if lr else {"clip_gradient": 1}  # 0 times a gradient of inf would be NaN
    mx.nd.multi_mp_sgd_update(
        *inputs, lrs=[lr] * count, wds=[0] * count, num_weights=count, out=list(weights), **options
    )


# Are all finite?

# The kernel of multi_all_finite has room for 200 pointers. On CPU it walks max(size) * count elements, which is fast
# only for many small arrays. On a GPU it stops at each array's end (src/operator/contrib/all_finite.cc, .cu and
# -inl.h at tag 1.9.1).
_SMALL = 4096
_MOST_ARRAYS = 200

# Elements of the shared array of zeros: 16 MiB in float32. Larger gradients go in pieces.
_MOST_ZEROS = 2**22
_ZEROS: Dict[Tuple[mx.Context, str], mx.nd.NDArray] = {}

_MOST_BITS = 2**17  # low precision elements at a time, which fit a processor's caches


def all_finite(arrays: Iterable[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a device-side flag that is 1 if every element of every array is finite, else 0.

    It is exact: huge finite values raise no alarm. Nothing is copied to the host. It waits only for large arrays of low
    precision on a CPU, whose bits the host checks. That is several times as fast as MXNet's kernels, which take one
    thread there and convert each value.

    Args:
        arrays: At least one; any shapes, contexts and floating point dtypes, dense or row_sparse.

    Returns:
        Shape (1,), float32, on the context of the first array.

    Example:
        >>> float(all_finite([mx.nd.array([1, 2]), mx.nd.array([3e38, 3e38])]).asscalar())
        1.0
    """
    arrays = [array.as_nd_ndarray() for array in arrays]
    with autograd.pause():
        return merge_flags([_all_finite_on_one(group) for group in by_context(arrays, arrays)])


def merge_flags(flags: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a flag that is 1 if all flags are, on the context of the first."""
    if len(flags) == 1:
        return flags[0]
    here = [flag.as_in_context(flags[0].ctx) for flag in flags]
    return here[0] * here[1] if len(here) == 2 else mx.nd.add_n(*here) == len(here)


def first_non_finite(named_arrays: Iterable[Tuple[str, mx.nd.NDArray]]) -> Optional[str]:
    """Return the first name whose array has an inf or a NaN, or None; one host read for each array."""
    for name, array in named_arrays:
        if all_finite([array]).asscalar() == 0:
            return name
    return None


def _all_finite_on_one(arrays: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return a flag that is 1 if every element of arrays of one context is finite."""
    largest = math.inf if on_gpu(arrays[0]) else _SMALL
    together: Dict[Any, List[mx.nd.NDArray]] = {}
    zeros: List[mx.nd.NDArray] = []  # arrays of shape (1,): 0, or NaN
    low_arrays: List[mx.nd.NDArray] = []
    for array in arrays:
        if array.stype != "default":
            rows = to_float32(array)
            zeros.append(mx.nd.norm(rows * 0).astype("float32"))  # see _zero_products
            continue
        dtype, is_small = array.dtype, array.size <= largest  # each attribute of an array is a call of MXNet
        if is_small and dtype in (np.float16, np.float32):
            together.setdefault(dtype, []).append(array)
        elif is_small and dtype == NUMPY_BFLOAT16:
            together.setdefault(np.float32, []).append(to_float32(array))  # the kernel does not know bfloat16
        elif is_low_precision(array):
            low_arrays.append(array)
        else:
            zeros.extend(_zero_products(array))
    flag = None
    for part in (part for group in together.values() for part in chunks(group, _MOST_ARRAYS)):
        flag = mx.nd.multi_all_finite(*part, num_arrays=len(part), init_output=flag is None, out=flag)
    flags = [] if flag is None else [flag]
    if low_arrays:
        flags.append(mx.nd.full((1,), float(all(map(_has_finite_bits, low_arrays))), ctx=low_arrays[0].ctx))
    if zeros:
        flags.append((zeros[0] if len(zeros) == 1 else mx.nd.add_n(*zeros)) == 0)
    return merge_flags(flags)


def _zero_products(array: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """Return arrays of shape (1,), float32: 0 if all elements are finite, else NaN.

    ``x * 0`` is 0 for every finite x and NaN for all others, so the inner product with zeros is an exact test. BLAS
    computes it three times as fast as ``all_finite`` tests the elements.
    """
    products = []
    for part in flat_chunks(array, _MOST_ZEROS):
        zeros = _zeros(part)[: part.shape[0]]
        products.append(mx.nd.dot(part, zeros).astype("float32", copy=False))
    return products


def _has_finite_bits(array: mx.nd.NDArray) -> bool:
    """Return whether all elements of a low precision array on a CPU are finite; waits for it.

    Infinities and NaN have the largest exponents: without the sign, their bits are at least those of infinity.
    """
    bits = view(array).view(np.uint16).reshape(-1)
    limit = 2 * (0x7C00 if array.dtype == np.float16 else 0x7F80)  # the bits of infinity in float16, bfloat16
    doubled = np.empty(min(bits.size, _MOST_BITS), np.uint16)
    for start in range(0, bits.size, _MOST_BITS):
        part = bits[start : start + _MOST_BITS]
        if np.add(part, part, out=doubled[: part.size]).max() >= limit:  # the sum drops the sign
            return False
    return True


def _zeros(like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return zeros of the context and dtype of ``like``, at least as many."""
    size = like.shape[0]
    key = (like.ctx, np.dtype(like.dtype).name)
    if key not in _ZEROS or _ZEROS[key].size < size:
        _ZEROS[key] = mx.nd.zeros((size,), ctx=like.ctx, dtype=like.dtype)
    return _ZEROS[key]


# Norms, and gradients times a number.


def sum_of_squares(arrays: Iterable[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Return the sum of the squares of all elements of arrays of one context, dense or row_sparse.

    Shape (1,), float32, on the device. It overflows to inf when the norm passes 1.8e19.
    """
    arrays = [array.as_nd_ndarray() for array in arrays]
    together: List[mx.nd.NDArray] = []
    squares: List[mx.nd.NDArray] = []
    with autograd.pause():
        for array in arrays:
            if array.stype != "default":
                squares.append(mx.nd.square(mx.nd.norm(array)).astype("float32"))
            elif on_gpu(array) and array.dtype == np.float32 and array.size:
                together.append(array.reshape(-1))
            else:
                # BLAS: faster and more accurate than multi_sum_sq, which adds one by one on CPU.
                squares.append(mx.nd.dot(flat(array), flat(array)).astype("float32", copy=False))
        if together:  # a GPU adds in blocks (src/operator/contrib/multi_sum_sq.cu)
            sums = mx.nd.multi_sum_sq(*together, num_arrays=len(together))
            squares.append(mx.nd.sum(sums, axis=0, keepdims=True))
        return squares[0] if len(squares) == 1 else mx.nd.add_n(*squares)


def host_norm(arrays: Iterable[mx.nd.NDArray]) -> float:
    """Return the norm of all elements, computed on the host in float64; waits for the arrays."""
    squares = (np.square(array.asnumpy(), dtype=np.float64).sum() for array in arrays)
    return math.sqrt(sum(squares))


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return the factor that brings gradients of a norm to at most ``max_norm``; 1 if the norm is not finite."""
    return max_norm / norm if max_norm < norm < math.inf else 1.0


def scale_in_place(arrays: Iterable[mx.nd.NDArray], factor: float) -> None:
    """Multiply arrays in place, in their dtype; dense or row_sparse."""
    if factor == 1.0:
        return
    together, others = _split(arrays)
    with autograd.pause():
        for group in together:
            scale_all(group, factor)
        for array in others:
            mx.nd._internal._mul_scalar(array, scalar=factor, out=array)


def clip_in_place(arrays: Iterable[mx.nd.NDArray], max_value: float) -> None:
    """Bring every element of arrays into [-max_value, max_value], in place; dense or row_sparse."""
    together, others = _split(arrays)
    with autograd.pause():
        for group in together:
            clip_all(group, max_value)
        for array in others:
            mx.nd.clip(array, -max_value, max_value, out=array)


def _split(arrays: Iterable[mx.nd.NDArray]) -> Tuple[List[List[mx.nd.NDArray]], List[mx.nd.NDArray]]:
    """Return dense float32 arrays of GPUs, grouped by GPU, and the other arrays."""
    together: List[mx.nd.NDArray] = []
    others: List[mx.nd.NDArray] = []
    for array in (array.as_nd_ndarray() for array in arrays):
        fits = array.stype == "default" and array.dtype == np.float32 and on_gpu(array)
        (together if fits else others).append(array)
    return by_context(together, together), others


def require_positive(what: str, value: Any) -> None:
    """Raise a TrainerError that names ``what`` unless a value is a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value > 0:
        raise TrainerError(f"{what}={value!r}; expected a positive number.")


# Nested lists of arrays.


def tree_leaves(value: Any) -> Iterator[Any]:
    """Yield the items of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from tree_leaves(item)
    else:
        yield value


def tree_map(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples and named tuples with a function applied to each item; None stays."""
    if not isinstance(value, (list, tuple)):
        return None if value is None else function(value)
    items = [tree_map(each, function) for each in value]
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
