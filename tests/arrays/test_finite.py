"""Whether all elements of arrays are finite, on a CPU and by the operators of a GPU; the oracle is numpy."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
import pytest

from mxmp import arrays as finite
from mxmp.arrays import address, all_finite, first_non_finite, merge_flags
from mxmp.dtypes import NUMPY_BFLOAT16

DTYPES = ["float16", "bfloat16", "float32", "float64"]


def nd(values, dtype="float32", ctx=None):
    array = mx.nd.array(values, dtype="float64" if dtype == "float64" else "float32", ctx=ctx)
    if dtype == "bfloat16":
        return mx.nd.amp_cast(array, dtype=NUMPY_BFLOAT16)
    return array.astype(dtype)


@pytest.fixture(params=["cpu", "gpu"])
def device(request, monkeypatch):
    """Check arrays on the CPU as they are checked on a device."""
    monkeypatch.setattr(finite, "on_gpu", lambda _: request.param == "gpu")
    return request.param


def finite_on_host(arrays) -> bool:
    return all_finite(arrays).asscalar() == 1.0


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 4096, 4097, 9000], ids=str)
@pytest.mark.parametrize("bad", [None, np.inf, -np.inf, np.nan], ids=str)
def test_all_finite_finds_one_bad_value_anywhere(device, dtype, size, bad):
    for position in {0, size // 2, size - 1}:
        values = np.full(size, 0.5, np.float32)
        if bad is not None:
            values[position] = bad
        assert finite_on_host([nd(values, dtype)]) == (bad is None)


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("bad_at", range(8))
def test_all_finite_mixes_dtypes_and_contexts(device, bad_at):
    arrays = [nd(np.ones((3, 5)), dtype, ctx) for dtype in DTYPES for ctx in (mx.cpu(0), mx.cpu(1))]
    flag = all_finite(arrays[::-1])
    assert (flag.shape, flag.dtype, flag.context, flag.asscalar()) == ((1,), np.float32, mx.cpu(1), 1)
    bad = np.ones((3, 5), np.float32)
    bad[2, 4] = np.nan
    arrays[bad_at] = nd(bad, DTYPES[bad_at // 2], arrays[bad_at].context)
    assert not finite_on_host(arrays)


def test_all_finite_raises_no_alarm_on_huge_values(device):
    huge = np.finfo(np.float32).max
    small, large = nd([huge] * 10), nd(np.full(5000, huge, np.float32))
    assert finite_on_host([small, large, nd([65504.0] * 10, "float16"), nd([3e38] * 10, "bfloat16")])
    assert finite_on_host([nd([1e300] * 3, "float64")])
    assert not np.isfinite((large * large).sum().asscalar())  # what isfinite(sum) would have said


def test_all_finite_takes_more_arrays_than_the_kernel_has_room_for(device):
    arrays = [nd([1.0, 2.0]) for _ in range(450)]
    assert finite_on_host(arrays)
    for i in (0, 199, 200, 449):
        assert not finite_on_host([*arrays[:i], nd([1.0, np.inf]), *arrays[i + 1 :]])


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_finite_knows_low_precision_by_its_bits(dtype, monkeypatch):
    """Each sign and exponent, with the smallest mantissas and the largest, in the last of several pieces."""
    monkeypatch.setattr(finite, "_MOST_BITS", 2000)
    mantissa = 10 if dtype == "float16" else 7
    patterns = np.add.outer(np.arange(2 ** (16 - mantissa)) << mantissa, [0, 1, 2**mantissa - 1]).ravel()
    values = patterns.astype(np.uint16).view(np.float16) if dtype == "float16" else _widened(patterns)
    array = mx.nd.zeros((5000,), dtype=np.float16 if dtype == "float16" else NUMPY_BFLOAT16)
    memory = np.frombuffer((ctypes.c_uint16 * array.size).from_address(address(array)), np.uint16)
    found = []
    for pattern in patterns:
        memory[4999] = pattern
        found.append(finite_on_host([array]))
    np.testing.assert_array_equal(found, np.isfinite(values))


def _widened(patterns):
    return (patterns.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(
    "most, size, dtype, positions",
    [
        ("_MOST_ZEROS", 5000, "float32", (0, 4999, 5000, 12_000)),
        ("_MOST_BITS", 5000, "float16", (0, 4999, 5000, 9999, 12_000)),
    ],
)
def test_all_finite_looks_at_all_pieces_of_large_arrays(most, size, dtype, positions, monkeypatch):
    monkeypatch.setattr(finite, most, size)
    monkeypatch.setattr(finite, "_ZEROS", {})
    values = np.ones(12_001, np.float32)
    assert finite_on_host([nd(values, dtype)])
    for position in positions:
        bad = values.copy()
        bad[position] = -np.inf
        assert not finite_on_host([nd(bad, dtype)])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_finite_reads_row_sparse_arrays(device, dtype):
    def rows(values):
        return mx.nd.sparse.row_sparse_array((values, [0, 3]), shape=(6, 2)).astype(dtype)

    assert finite_on_host([rows([[1.0, 2.0], [3.0, 4.0]]), mx.nd.sparse.zeros("row_sparse", (6, 2))])
    assert not finite_on_host([rows([[1.0, 2.0], [np.inf, 4.0]])])
    assert not finite_on_host([nd([1.0]), rows([[np.nan, 2.0], [3.0, 4.0]])])


@pytest.mark.behaviour("sparse gradients")
def test_all_finite_finds_duplicates_that_overflow_when_summed():
    weight = mx.nd.ones((4, 2))
    weight.attach_grad(stype="row_sparse")
    with mx.autograd.record():
        rows = mx.nd.Embedding(mx.nd.array([1, 1]), weight, input_dim=4, output_dim=2, sparse_grad=True)
    rows.backward(mx.nd.full((2, 2), 2e38))
    assert weight.grad.stype == "row_sparse"
    assert not finite_on_host([weight.grad])


def test_all_finite_does_not_touch_the_host(device, monkeypatch):
    kinds = ["float16", "float32", "float64"] if device == "gpu" else ["float32", "float64"]
    arrays = [nd(np.ones(5000), dtype, ctx) for dtype in kinds for ctx in (mx.cpu(0), mx.cpu(1))]
    arrays += [nd(np.ones(4096), dtype, ctx) for dtype in DTYPES for ctx in (mx.cpu(0), mx.cpu(1))]
    arrays.append(mx.nd.sparse.row_sparse_array(([[1.0, 2.0]], [0]), shape=(6, 2)))
    with monkeypatch.context() as patch:
        for name in ("asnumpy", "wait_to_read", "asscalar"):
            patch.setattr(mx.nd.NDArray, name, None)
        flag = all_finite(arrays)
        patch.undo()
        patch.setattr(mx.nd.NDArray, "asnumpy", None)
        low = all_finite([nd(np.ones(5000), dtype) for dtype in ("float16", "bfloat16")])  # waits, but copies nothing
    assert flag.asscalar() == low.asscalar() == 1.0


def test_all_finite_records_nothing():
    x = mx.nd.ones((5000,))
    x.attach_grad()
    with mx.autograd.record():
        y = x * 2
        flag = all_finite([y])
    with pytest.raises(mx.MXNetError):
        flag.backward()


def test_all_finite_takes_numpy_arrays_of_mxnet():
    with mx.util.np_shape(True), mx.util.np_array(True):
        array = mx.np.array([[1.0, np.inf]])
        assert not finite_on_host([array])
        assert finite_on_host([mx.np.array(3.0)])


def test_all_finite_on_a_gpu_is_one_operator_for_each_dtype(monkeypatch):
    monkeypatch.setattr(finite, "on_gpu", lambda _: True)
    calls = []
    operator = mx.nd.multi_all_finite
    monkeypatch.setattr(mx.nd, "multi_all_finite", lambda *a, **kw: calls.append(len(a)) or operator(*a, **kw))
    monkeypatch.setattr(mx.nd, "dot", None)
    large, small = nd(np.ones(9000)), nd([1.0], "float16")
    assert finite_on_host([large, small, nd([2.0]), nd(np.ones(9000), "float16")]) and calls == [2, 2]


def test_merge_flags_is_one_only_if_all_are():
    one, zero = mx.nd.ones((1,)), mx.nd.zeros((1,), ctx=mx.cpu(1))
    assert merge_flags([one, one]).asscalar() == 1
    assert merge_flags([zero]) is zero
    for flags in ([one, zero], [one, zero, one], [one, one, zero], [zero, one, one, zero]):
        merged = merge_flags(flags)
        assert (merged.asscalar(), merged.shape, merged.ctx) == (0, (1,), flags[0].ctx)
    assert merge_flags([one] * 5).asscalar() == 1


def test_first_non_finite_names_the_first():
    good, bad = nd([1.0]), nd([np.nan], "bfloat16")
    assert first_non_finite([("a", good), ("b", bad), ("c", bad)]) == "b"
    assert first_non_finite([("a", good)]) is None
