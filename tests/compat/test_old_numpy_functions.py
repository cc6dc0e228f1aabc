"""What MXNet has numpy do gives with any numpy what it gave with 1.23."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]


def test_qr_returns_arrays_of_mxnet():
    q, r = mx.np.linalg.qr(mx.np.array(VALUES))
    assert type(q) is type(r) is mx.np.ndarray
    assert q.shape == (3, 2) and r.asnumpy()[1, 0] == 0
    assert q.asnumpy() @ r.asnumpy() == pytest.approx(np.array(VALUES), abs=1e-5)


def test_qr_knows_the_modes_of_numpys():
    r = mx.np.linalg.qr(mx.np.array(VALUES), mode="r")
    assert type(r) is mx.np.ndarray
    assert r.asnumpy() == pytest.approx(np.linalg.qr(np.array(VALUES, "float32"), mode="r"), abs=1e-6)


def test_qr_takes_an_array_of_numpy_too():
    q, r = mx.np.linalg.qr(np.array(VALUES))
    assert q @ r == pytest.approx(np.array(VALUES))


@pytest.mark.filterwarnings("ignore:the `interpolation=` argument")  # numpy 1.23
@pytest.mark.parametrize("name, q", [("nanpercentile", 25), ("nanquantile", 0.25)])
def test_nanpercentile_keeps_the_argument_that_percentile_has(name, q):
    array = mx.np.array([1.0, 2.0, 4.0, np.nan])
    for method, value in (("lower", 1.0), ("higher", 2.0), ("linear", 1.5)):
        assert getattr(mx.np, name)(array, q, interpolation=method) == value


@pytest.mark.filterwarnings("ignore:.in1d. is deprecated")  # numpy 2.0 to 2.3
def test_in1d_returns_an_array_of_mxnet():
    found = mx.np.in1d(mx.np.array([[1.0, 2.0], [3.0, 4.0]]), [2.0, 4.0])
    assert type(found) is mx.np.ndarray and found.asnumpy().tolist() == [False, True, False, True]


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion of out-of-bound")  # 1.24 to 1.26
@pytest.mark.parametrize("array", [mx.nd.array, mx.np.array], ids=["nd", "np"])
def test_integers_wrap_around_as_they_do_in_operators(array):
    assert array([-1, 300], dtype="uint8").asnumpy().tolist() == [255, 44]
    assert mx.nd.full((1,), -1, dtype="uint8").asscalar() == 255


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion of out-of-bound")
def test_integers_wrap_around_where_a_list_is_assigned():
    array = mx.nd.zeros(3, dtype="uint8")
    array[:] = [1, -1, 300]
    assert array.asnumpy().tolist() == [1, 255, 44]


@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion of out-of-bound")
def test_floats_among_them_are_cut_off():
    assert mx.nd.array([1.5, -1, 2**40], dtype="uint8").asnumpy().tolist() == [1, 255, 0]


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # a warning is no refusal
@pytest.mark.parametrize("value", [2**70, math.inf, -math.inf, math.nan])
def test_what_no_integer_type_holds_is_refused(value):
    with pytest.raises((OverflowError, TypeError)):
        mx.nd.array([value], dtype="int32")
