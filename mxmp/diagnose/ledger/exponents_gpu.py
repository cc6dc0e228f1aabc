"""The exponents of arrays on a GPU, counted by one kernel that is compiled at run time: one launch, one read of each.

MXNet compiles it with NVRTC (``mx.rtc``), as it does its fused operators. The arrays go to it as they are; what it
reads of the float16 ones are bits, so it needs no header. No GPU was at hand: a host compiles the same source, and
counts as numpy does (`tests/arrays/test_exponents.py`); NVRTC takes it (`tests/gpu_record/test_ledger.py`).
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Sequence

import mxnet as mx
import numpy as np

DTYPES = {"float32": "float", "float16": "__half"}
"""The dtypes that the kernel reads, and what the signature of a kernel calls them."""

MOST_ARRAYS = 200  # of 16 bytes each; a launch has room for 4096

_COLUMNS = 257  # see `exponents`
_THREADS = 256
_ELEMENTS = 16  # of a thread, or more where that would take more blocks than _MOST_BLOCKS for an array
_MOST_BLOCKS = 128

# What the two dtypes differ in: the type that holds the bits, and the bits of the magnitude as a float32.
_BITS = {
    "float32": ("unsigned int", "bits & 0x7fffffffu"),
    "float16": (
        "unsigned short",
        "(bits & 0x7c00) == 0x7c00 ? 0x7f800000u | (bits & 0x3ffu) << 13\n"
        "      : bits & 0x7c00 ? ((bits >> 10 & 31u) + 112) << 23 | (bits & 0x3ffu) << 13\n"
        "      : __float_as_uint((bits & 0x3ffu) * 5.9604644775390625e-8f)",
    ),
}

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


def source(dtype: str, count: int) -> str:
    """Return the kernel for so many arrays of a dtype: CUDA C++ that needs no header."""
    kind, magnitude = _BITS[dtype]
    numbers = range(count)
    return _SOURCE.format(
        type=kind,
        magnitude=magnitude,
        columns=_COLUMNS,
        params=", ".join(f"const {kind} *a{n}, long long n{n}" for n in numbers),
        arrays=", ".join(f"a{n}" for n in numbers),
        sizes=", ".join(f"n{n}" for n in numbers),
    )


def count(arrays: Sequence[mx.nd.NDArray]) -> Callable[[], Any]:
    """Begin to count; arguments and what is returned as of `exponents.count_exponents`, rows of these arrays.

    The arrays are dense, not empty, at most `MOST_ARRAYS`, of one context and one of `DTYPES`. It raises MXNetError if
    MXNet cannot compile the kernel here.
    """
    ctx, kernel = arrays[0].ctx, _kernel(np.dtype(arrays[0].dtype).name, len(arrays))
    table = mx.nd.zeros((len(arrays), _COLUMNS), ctx=ctx, dtype="int32")
    arguments: List[Any] = [value for array in arrays for value in (array, array.size)]
    blocks = -(-max(array.size for array in arrays) // (_THREADS * _ELEMENTS))
    kernel.launch([*arguments, table], ctx, (min(blocks, _MOST_BLOCKS), len(arrays), 1), (_THREADS, 1, 1))
    return lambda: table.asnumpy().view(np.uint32).astype(np.int64)


@functools.lru_cache(maxsize=64)
def _kernel(dtype: str, count: int) -> Any:
    module = mx.rtc.CudaModule(source(dtype, count))
    params = ", ".join(f"const {DTYPES[dtype]} *a{n}, int64_t n{n}" for n in range(count))
    return module.get_kernel("count_exponents", f"{params}, int *out")
