"""Elements counted by exponent, against numpy; the GPU's kernel compiled for the host."""

import ctypes
import logging
import shutil
import subprocess
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import exponents
from mxmp.diagnose.exponents import BIAS, COLUMNS, LARGEST, NONFINITE, ZERO, count_exponents, largest
from mxmp.dtypes import NUMPY_BFLOAT16

SPECIAL = [0.0, -0.0, 2.0**-24, -(2.0**-24), 3 * 2.0**-24, 2.0**-14, 2.0**-14 - 2.0**-24, 1.0, -1.5, 65504.0, -2.0]
BAD = [np.inf, -np.inf, np.nan]


def oracle(values):
    """Return the row of numbers, by frexp: value = mantissa * 2**exponent with a mantissa from 0.5, excluding 1."""
    row, values = np.zeros(COLUMNS, np.int64), np.abs(np.asarray(values, np.float64)).ravel()
    finite = values[np.isfinite(values)]
    normal = finite[finite >= 2.0**-126]
    row[NONFINITE], row[ZERO] = values.size - finite.size, finite.size - normal.size
    np.add.at(row, np.frexp(normal)[1] - 1 + BIAS, 1)
    row[LARGEST] = normal.max(initial=0.0).astype(np.float32).view(np.uint32)
    return row


def numbers(size, seed=0):
    random = np.random.RandomState(seed)
    values = random.choice([-1, 1], size) * 2.0 ** random.uniform(-26, 15, size) * (random.rand(size) < 0.8)
    return values.astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 65537])
def test_counts_are_those_of_numpy(dtype, size):
    values = np.concatenate([SPECIAL + BAD, numbers(size)]).astype(dtype)
    row = count_exponents([mx.nd.array(values, dtype=dtype)])()[0]
    np.testing.assert_array_equal(row, oracle(values))
    assert row[NONFINITE] == 3 and largest(row) == 65504.0


@pytest.mark.bfloat16
def test_bfloat16_is_counted():
    values = numbers(500)
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=NUMPY_BFLOAT16)
    np.testing.assert_array_equal(
        count_exponents([array])()[0], oracle(mx.nd.amp_cast(array, dtype="float32").asnumpy())
    )


def test_rows_are_in_the_order_of_the_arrays_those_stored_of_a_row_sparse_one():
    shapes, dtypes, contexts = [(3, 2), (0,), (4,), (1, 1, 5)], ["float16", "float32", "float32", "float16"], [0, 0, 1, 1]
    given = [numbers(int(np.prod(shape)), n).reshape(shape).astype(dtypes[n]) for n, shape in enumerate(shapes)]
    arrays = [mx.nd.array(v, ctx=mx.cpu(c), dtype=d) for v, d, c in zip(given, dtypes, contexts)]
    sparse = mx.nd.sparse.row_sparse_array(([[1.0, 0.0], [2.0, 4.0]], [1, 7]), shape=(9, 2))
    table = count_exponents([*arrays, sparse, mx.nd.sparse.zeros("row_sparse", (9, 2))])()
    np.testing.assert_array_equal(table, [oracle(values) for values in [*given, [1, 0, 2, 4], []]])


# ---------------------------------------------------------------------- the kernel of a GPU

SHIM = """
#include <cstring>
struct Index {{ unsigned int x, y; }};
static Index blockIdx, threadIdx, blockDim, gridDim;
#define __global__
#define __shared__ static
static void __syncthreads() {{}}
static unsigned int atomicAdd(unsigned int *at, unsigned int value) {{ return (*at += value) - value; }}
static void atomicMax(unsigned int *at, unsigned int value) {{ if (value > *at) *at = value; }}
static unsigned int __float_as_uint(float value) {{ unsigned int bits; memcpy(&bits, &value, 4); return bits; }}
{kernel}
extern "C" void run(void **arrays, long long *sizes, int *out, unsigned int blocks) {{
  blockDim = {{1, 1}}, gridDim = {{blocks, {count}}};
  for (blockIdx.y = 0; blockIdx.y < {count}; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) count_exponents({call}, out);
}}
"""


def compiled(dtype, count, folder):
    """Return the kernel for arrays of numpy, run by a host: one thread in a block, block after block."""
    kind = {"float32": "unsigned int", "float16": "unsigned short"}[dtype]
    call = ", ".join(f"(const {kind} *)arrays[{n}], sizes[{n}]" for n in range(count))
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(SHIM.format(kernel=exponents.source(dtype, count), count=count, call=call))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    run = ctypes.CDLL(str(library)).run

    def counted(arrays, blocks):
        table = np.zeros((count, COLUMNS), np.int32)
        pointers = (ctypes.c_void_p * count)(*(array.ctypes.data for array in arrays))
        sizes = (ctypes.c_longlong * count)(*(array.size for array in arrays))
        run(pointers, sizes, table.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint(blocks))
        return table

    return counted


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler (g++)")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_kernel_counts_as_numpy_does(dtype, tmp_path):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    arrays = [np.array(SPECIAL + BAD, dtype), numbers(1000).astype(dtype), every.astype(dtype)]
    counted, expected = compiled(dtype, 3, tmp_path), np.stack([oracle(values) for values in arrays])
    for blocks in (1, 3):
        np.testing.assert_array_equal(counted(arrays, blocks), expected)


@pytest.fixture
def launches(monkeypatch):
    """What is launched when arrays on a CPU are counted as on a GPU."""
    launched = []

    def launch(args, ctx, grid, block):
        launched.append((args, grid, block))
        args[-1][:] = 1

    monkeypatch.setattr(exponents, "on_gpu", lambda _: True)
    monkeypatch.setattr(exponents, "_kernel", lambda dtype, count: SimpleNamespace(launch=launch))
    return launched


def test_a_gpu_counts_many_arrays_in_one_launch_for_each_dtype(launches):
    arrays = [mx.nd.ones((n + 1,), dtype="float32" if n % 3 else "float16") for n in range(361)]
    read = count_exponents(arrays)
    assert [len(args) for args, _, _ in launches] == [2 * 121 + 1, 2 * 200 + 1, 2 * 40 + 1] and (read() == 1).all()
    assert 16 * exponents.MOST_ARRAYS + 8 <= 4096  # bytes of arguments


@pytest.mark.parametrize(("size", "blocks"), [(1, 1), (4097, 2), (2**22, 128)])
def test_blocks_are_as_many_as_the_largest_array_wants(launches, size, blocks):
    count_exponents([mx.nd.ones((size,)), mx.nd.ones((1,)), mx.nd.sparse.zeros("row_sparse", (2, 2))])
    assert launches[0][1:] == ((blocks, 2, 1), (256, 1, 1))


def test_without_a_compiler_a_gpu_is_counted_on_the_host(monkeypatch, caplog):
    def fail(dtype, count):
        raise mx.MXNetError("no NVRTC")

    exponents._warn.cache_clear()
    monkeypatch.setattr(exponents, "on_gpu", lambda _: True)
    monkeypatch.setattr(exponents, "_kernel", fail)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_array_equal(count_exponents([mx.nd.array([1.0, 2.0])])()[0], oracle([1, 2]))
    assert [record.getMessage() for record in caplog.records] == [
        "Gradients are copied to the host to be counted, slowly: MXNet compiles no kernel here (no NVRTC)."
    ]
