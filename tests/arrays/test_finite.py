from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_all_finite_returns_one_flag_on_the_first_context():
    flag = all_finite([nd([1], ctx=mx.cpu(1)), nd([2], ctx=mx.cpu(0))])
    assert (flag.shape, flag.dtype, flag.context) == ((1,), np.float32, mx.cpu(1))


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("bad_at", range(8))
def test_all_finite_mixes_dtypes_and_contexts(device, bad_at):
    arrays = [nd(np.ones((3, 5)), dtype, ctx) for dtype in DTYPES for ctx in (mx.cpu(0), mx.cpu(1))]
    assert finite_on_host(arrays)
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


def test_all_finite_takes_large_arrays_in_pieces(monkeypatch):
    monkeypatch.setattr(finite, "_MOST_ZEROS", 5000)
    monkeypatch.setattr(finite, "_ZEROS", {})
    values = np.ones(12_001, np.float32)
    assert finite_on_host([nd(values)])
    for position in (0, 4999, 5000, 12_000):
        bad = values.copy()
        bad[position] = np.nan
        assert not finite_on_host([nd(bad)])


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_finite_knows_every_pattern_of_bits_of_low_precision(dtype):
    patterns = np.arange(2**16, dtype=np.uint32)
    values = patterns.astype(np.uint16).view(np.float16) if dtype == "float16" else (patterns << 16).view(np.float32)
    array = mx.nd.zeros((5000,), dtype=np.float16 if dtype == "float16" else NUMPY_BFLOAT16)
    memory = np.frombuffer((ctypes.c_uint16 * array.size).from_address(address(array)), np.uint16)
    found = []
    for pattern in range(2**16):
        memory[4999] = pattern
        found.append(finite._has_finite_bits(array))
    np.testing.assert_array_equal(found, np.isfinite(values))


def test_all_finite_looks_at_all_pieces_of_low_precision(monkeypatch):
    monkeypatch.setattr(finite, "_MOST_BITS", 2000)
    values = np.ones(5001, np.float32)
    assert finite_on_host([nd(values, "float16")])
    for position in (0, 1999, 2000, 4000, 5000):
        bad = values.copy()
        bad[position] = -np.inf
        assert not finite_on_host([nd(bad, "float16")])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_all_finite_reads_row_sparse_arrays(device, dtype):
    def rows(values):
        return mx.nd.sparse.row_sparse_array((values, [0, 3]), shape=(6, 2)).astype(dtype)

    assert finite_on_host([rows([[1.0, 2.0], [3.0, 4.0]])])
    assert not finite_on_host([rows([[1.0, 2.0], [np.inf, 4.0]])])
    assert not finite_on_host([nd([1.0]), rows([[np.nan, 2.0], [3.0, 4.0]])])


def test_all_finite_accepts_an_empty_row_sparse_array():
    assert finite_on_host([mx.nd.sparse.zeros("row_sparse", (6, 2))])


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
    assert flag.asscalar() == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_finite_looks_at_large_low_precision_arrays_of_a_cpu_without_a_copy(dtype, monkeypatch):
    array = nd(np.ones(5000), dtype)
    with monkeypatch.context() as patch:
        patch.setattr(mx.nd.NDArray, "asnumpy", None)
        flag = all_finite([array])
    assert flag.asscalar() == 1.0


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_all_finite_agrees_with_numpy(values):
    array = np.array(values, np.float32)
    assert finite_on_host([nd(array)]) == bool(np.isfinite(array).all())
    padded = np.resize(array, 5000)
    assert finite_on_host([nd(padded)]) == bool(np.isfinite(padded).all())


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
