"""Whether all elements of arrays are finite, on a CPU and by the operators of a GPU; the oracle is numpy."""

import itertools

import mxnet as mx
import numpy as np
import pytest

from mxmp.optimizer import all_finite
from tests.values import DTYPES as STORED

DTYPES = ["float16", "bfloat16", "float32", "float64"]


def nd(values, dtype="float32", ctx=None):
    array = mx.nd.array(values, dtype="float64" if dtype == "float64" else "float32", ctx=ctx)
    return mx.nd.amp_cast(array, dtype=STORED[dtype]) if dtype == "bfloat16" else array.astype(dtype)


def finite_on_host(arrays):
    return all_finite(arrays).asscalar() == 1.0


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 4096, 4097, 9000], ids=str)
def test_all_finite_finds_one_bad_value_anywhere(device, dtype, size):
    values = np.full(size, 0.5, np.float32)
    assert finite_on_host([nd(values, dtype)])
    for position, bad in zip((0, size // 2, size - 1), (np.inf, -np.inf, np.nan)):
        values[:] = 0.5
        values[position] = bad
        assert not finite_on_host([nd(values, dtype)])


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("count", [2, 3])
def test_all_finite_mixes_dtypes_and_contexts(device, count):
    kinds = [(dtype, mx.cpu(number)) for dtype in DTYPES for number in range(count)]
    arrays = [nd(np.ones((3, 5)), *kind) for kind in kinds]
    flag = all_finite(arrays[::-1])
    assert (flag.shape, flag.dtype, flag.context, flag.asscalar()) == ((1,), np.float32, mx.cpu(count - 1), 1)
    for i, kind in enumerate(kinds):
        assert not finite_on_host([*arrays[:i], nd([[1, np.nan]], *kind), *arrays[i + 1 :]])


def test_all_finite_raises_no_alarm_on_huge_values(device):
    huge = nd(np.full(5000, np.finfo(np.float32).max))
    low = nd([65504.0] * 10, "float16"), nd([3e38] * 10, "bfloat16")
    assert finite_on_host([huge[:10], huge, *low]) and finite_on_host([nd([1e300] * 3, "float64")])
    assert not np.isfinite((huge * huge).sum().asscalar())  # what isfinite(sum) would have said


def test_all_finite_takes_more_arrays_than_the_kernel_has_room_for(device):
    arrays = [nd([1.0, 2.0])] * 450
    assert finite_on_host(arrays)
    for i in (0, 199, 200, 449):
        assert not finite_on_host([*arrays[:i], nd([1.0, np.inf]), *arrays[i + 1 :]])


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("dtype, mantissa", [("float16", 10), ("bfloat16", 7)])
def test_all_finite_knows_low_precision_by_its_bits(dtype, mantissa):
    """Each sign, with the least and the largest exponents and mantissas."""
    infinite = 2 ** (15 - mantissa) - 1
    array = mx.nd.zeros((5000,), dtype=STORED[dtype])
    for exponent in (0, 1, infinite // 2, infinite - 1, infinite):
        for sign, fraction in itertools.product((0, 2**15), (0, 1, 2**mantissa - 1)):
            bits = sign + (exponent << mantissa) + fraction
            value = np.uint16(bits).view(np.float16) if dtype == "float16" else np.uint32(bits << 16).view(np.float32)
            array[4999] = nd([value], dtype)
            assert finite_on_host([array]) == (exponent != infinite)


@pytest.mark.parametrize("piece, dtype", [(2**22, "float32"), (2**17, "float16")])
def test_all_finite_looks_at_all_pieces_of_large_arrays(piece, dtype):
    array = nd(np.ones(2 * piece + 1, np.float32), dtype)
    assert finite_on_host([array])
    for position in (0, piece - 1, piece, 2 * piece):
        array[position] = -np.inf
        assert not finite_on_host([array])
        array[position] = 1


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value, is_finite", [(3, True), (np.inf, False), (np.nan, False)])
def test_all_finite_reads_row_sparse_arrays(device, dtype, value, is_finite):
    rows = mx.nd.sparse.row_sparse_array(([[1, 2], [value, 4]], [0, 3]), shape=(6, 2)).astype(dtype)
    for others in ([], [nd([1.0])], [mx.nd.sparse.zeros("row_sparse", (6, 2))]):
        assert finite_on_host([*others, rows]) == is_finite


@pytest.mark.behaviour("sparse gradients")
def test_all_finite_finds_duplicates_that_overflow_when_summed():
    weight = mx.nd.ones((4, 2))
    weight.attach_grad(stype="row_sparse")
    with mx.autograd.record():
        rows = mx.nd.Embedding(mx.nd.array([1, 1]), weight, input_dim=4, output_dim=2, sparse_grad=True)
    rows.backward(mx.nd.full((2, 2), 2e38))
    assert weight.grad.stype == "row_sparse" and not finite_on_host([weight.grad])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 5000])
def test_all_finite_is_not_recorded(dtype, size, device):
    array = nd(np.ones(size), dtype)
    array.attach_grad()
    with mx.autograd.record():
        flag = all_finite([array * 2, array])
    assert flag.asscalar() == 1.0
    with pytest.raises(mx.MXNetError):
        flag.backward()


def test_all_finite_takes_numpy_arrays_of_mxnet():
    with mx.util.np_shape(True), mx.util.np_array(True):
        assert finite_on_host([mx.np.array(3.0)]) and not finite_on_host([mx.np.array([[1.0, np.inf]])])
