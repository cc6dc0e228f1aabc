"""How many elements of arrays have which exponent, and the largest of each: what a loss scale is judged by.

A GPU counts in one launch for up to 200 arrays, and copies none; a CPU's arrays are counted by numpy at once.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..arrays import chunks, on_gpu, view
from ..dtypes import BFLOAT16, canonical
from ..errors import listed, mxnet_reason
from ..train.step import Weights

# Columns of a table: 254 binades of float32, with what a bin of 0 and one of 255 means there, and one more.
ZERO, NONFINITE, LARGEST, COLUMNS = 0, 255, 256, 257
BIAS = 127  # the column of [1, 2)

MOST_ARRAYS = 200  # of a launch: 16 bytes each, and CUDA has room for 4096

_LOG = logging.getLogger(__name__)
_PIECE = 2**16  # elements at a time, which stay in a processor's caches
_THREADS, _ELEMENTS, _MOST_BLOCKS = 256, 16, 128  # threads of a block, elements of a thread, blocks of an array

Read = Callable[[], Any]


def count_exponents(arrays: Sequence[mx.nd.NDArray]) -> Read:
    """Begin to count the elements of arrays by exponent; those of GPUs without any wait of the host.

    The exception are row_sparse arrays, whose number of rows MXNet waits for.

    Args:
        arrays: Any shapes, contexts and floating point dtypes. Of a row_sparse one the stored rows are counted.

    Returns:
        A function that waits for the counts and returns a table of int64, shape (arrays, 257). A row's column ``e +
        127`` has how many elements are at least 2**e and below 2**(e+1) in magnitude, for e from -126 to 127. Column
        `ZERO` has those that are 0, or subnormal in float32; `NONFINITE` those that are infinite or NaN; and `LARGEST`
        the bits of the largest finite magnitude as a float32, see `largest`.
    """
    with mx.autograd.pause():
        dense = [array.as_nd_ndarray() for array in arrays]
        dense = [array if array.stype == "default" else array.data for array in dense]
    groups: Dict[Any, List[int]] = {}
    for number, array in enumerate(dense):
        if array.size:
            groups.setdefault((array.ctx, canonical(array.dtype)), []).append(number)
    parts: List[Tuple[Sequence[int], Read]] = []
    for (_, dtype), numbers in groups.items():
        parts += [(some, _count([dense[n] for n in some], dtype)) for some in chunks(numbers, MOST_ARRAYS)]

    def read() -> Any:
        table = np.zeros((len(dense), COLUMNS), np.int64)
        for numbers, counts in parts:
            table[list(numbers)] = counts()
        return table

    return read


def largest(rows: Any) -> Any:
    """Return the largest finite magnitudes of rows of a table, float32."""
    return rows[..., LARGEST].astype(np.uint32).view(np.float32)


def nonfinite_shares(weights: Weights) -> Mapping[str, float]:
    """Return what share of each gradient of a skipped step is not finite, by name; none of those that are finite.

    Of several contexts the smallest share counts. Backward spreads inf and NaN to ever more elements, so the gradient
    with the smallest share is likely the first. Waits for the gradients, and reads them once for all who ask in a step.
    """
    if weights.seen is None:
        updates = [update for group in weights.groups() for update in group]
        shares: Dict[str, float] = {}
        for update, row in zip(updates, count_exponents([update.grad for update in updates])()):
            if row[NONFINITE]:
                name, share = weights.name(update.index), float(row[NONFINITE] / row[: NONFINITE + 1].sum())
                shares[name] = min(share, shares.get(name, 1.0))
        weights.seen = shares
    seen: Mapping[str, float] = weights.seen
    return seen


def why_skipped(weights: Weights) -> str:
    """Return in a line which gradients of a skipped step are not finite, the smallest share first; '' if all are."""
    shares = nonfinite_shares(weights)
    names = sorted(shares, key=lambda name: shares[name])
    text = listed(names, [f" ({100 * shares[name]:.3g} %)" for name in names])
    return f"gradients not finite: {text}" if names else ""


def _count(arrays: Sequence[mx.nd.NDArray], dtype: str) -> Read:
    """Count arrays of one context and dtype, on it if MXNet compiles a kernel there."""
    if on_gpu(arrays[0]) and dtype in _KERNELS:
        try:
            return _count_on_gpu(arrays, dtype)
        except mx.MXNetError as e:
            _warn(mxnet_reason(e))
    table = np.stack([_row(array, dtype) for array in arrays])
    return lambda: table


@functools.lru_cache(maxsize=None)  # once for each reason
def _warn(reason: str) -> None:
    _LOG.warning("Gradients are copied to the host to be counted, slowly: MXNet compiles no kernel here (%s).", reason)


def _row(array: mx.nd.NDArray, dtype: str) -> Any:
    """Return the row of one array, counted by the host; waits for it."""
    values, row = view(array).reshape(-1), np.zeros(COLUMNS, np.int64)
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE]
        if dtype == BFLOAT16:  # numpy knows its bits alone: the upper half of a float32's
            bits = piece.view(np.uint16).astype(np.uint32) << 16
        else:
            bits = piece.astype(np.float32, copy=False).view(np.uint32)
        magnitudes = bits & 0x7FFFFFFF  # ordered as the numbers are
        row[:LARGEST] += np.bincount(magnitudes >> 23, minlength=LARGEST)
        row[LARGEST] = max(row[LARGEST], magnitudes[magnitudes < NONFINITE << 23].max(initial=0))
    return row


# ---------------------------------------------------------------------- the kernel of a GPU

# MXNet compiles it at run time with NVRTC (``mx.rtc``), as it does its fused operators. What it reads of float16 are
# bits, so it needs no header. tests/diagnose/test_exponents.py compiles the same source for a host.
_SOURCE = """
extern "C" __global__ void count_exponents({params}, int *out) {{
  const {type} *arrays[] = {{{arrays}}};
  const long long sizes[] = {{{sizes}}};
  __shared__ unsigned int counts[256], largest;
  for (int bin = threadIdx.x; bin < 256; bin += blockDim.x) counts[bin] = 0;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const {type} *array = arrays[blockIdx.y];
  const long long size = sizes[blockIdx.y], stride = (long long)gridDim.x * blockDim.x;
  unsigned int top = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += stride) {{
    const unsigned int bits = array[i];
    const unsigned int magnitude = {magnitude};
    atomicAdd(&counts[magnitude >> 23], 1u);
    if (magnitude < 0x7f800000u && magnitude > top) top = magnitude;
  }}
  if (top) atomicMax(&largest, top);
  __syncthreads();
  unsigned int *row = (unsigned int *)out + {columns} * blockIdx.y;
  for (int bin = threadIdx.x; bin < 256; bin += blockDim.x)
    if (counts[bin]) atomicAdd(&row[bin], counts[bin]);
  if (threadIdx.x == 0 && largest) atomicMax(&row[256], largest);
}}
"""

# By dtype: its name in MXNet's signature of a kernel, the type of its bits, and how they become a float32's magnitude.
_KERNELS = {
    "float32": ("float", "unsigned int", "bits & 0x7fffffffu"),
    "float16": (
        "__half",
        "unsigned short",
        "(bits & 0x7c00) == 0x7c00 ? 0x7f800000u | (bits & 0x3ffu) << 13\n"
        "      : bits & 0x7c00 ? ((bits >> 10 & 31u) + 112) << 23 | (bits & 0x3ffu) << 13\n"
        "      : __float_as_uint((bits & 0x3ffu) * 5.9604644775390625e-8f)",
    ),
}


def source(dtype: str, count: int) -> str:
    """Return the kernel for so many arrays of a dtype: CUDA C++ that needs no header."""
    _, kind, magnitude = _KERNELS[dtype]
    numbers = range(count)
    return _SOURCE.format(
        type=kind,
        magnitude=magnitude,
        columns=COLUMNS,
        params=", ".join(f"const {kind} *a{n}, long long n{n}" for n in numbers),
        arrays=", ".join(f"a{n}" for n in numbers),
        sizes=", ".join(f"n{n}" for n in numbers),
    )


def _count_on_gpu(arrays: Sequence[mx.nd.NDArray], dtype: str) -> Read:
    """Begin to count dense arrays, none of them empty; MXNetError if MXNet cannot compile the kernel here."""
    ctx, kernel = arrays[0].ctx, _kernel(dtype, len(arrays))
    table = mx.nd.zeros((len(arrays), COLUMNS), ctx=ctx, dtype="int32")
    arguments = [value for array in arrays for value in (array, array.size)]
    blocks = -(-max(array.size for array in arrays) // (_THREADS * _ELEMENTS))
    kernel.launch([*arguments, table], ctx, (min(blocks, _MOST_BLOCKS), len(arrays), 1), (_THREADS, 1, 1))
    return lambda: table.asnumpy().view(np.uint32).astype(np.int64)


@functools.lru_cache(maxsize=64)
def _kernel(dtype: str, count: int) -> Any:
    params = ", ".join(f"const {_KERNELS[dtype][0]} *a{n}, int64_t n{n}" for n in range(count))
    return mx.rtc.CudaModule(source(dtype, count)).get_kernel("count_exponents", f"{params}, int *out")
