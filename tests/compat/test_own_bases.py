"""What MXNet's arrays and metrics do with numpy 1.23, they do with later ones."""

from __future__ import annotations

import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp import compat
from mxmp.compat import own_bases

with_views = pytest.mark.skipif(not compat.needed(), reason="numpy below 1.24 makes an array of objects")
ARRAYS = {"nd": mx.nd.array, "np": mx.np.array}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@with_views
def test_numpy_makes_an_array_of_one_of_mxnets(array):
    values = [[1.5, 2.0], [3.0, 0.0]]
    made = np.asarray(array(values))
    assert made.dtype == np.float32 and made.tolist() == values
    assert np.array(array(values), dtype="int64").tolist() == [[1, 2], [3, 0]]


@with_views
def test_numpy_makes_an_array_of_a_sparse_one():
    assert np.asarray(mx.nd.array([[0.0, 2.0]]).tostype("csr")).tolist() == [[0, 2]]


@pytest.mark.filterwarnings("ignore:Creating an ndarray from nested sequences")  # numpy 1, up to its 32 dimensions
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_numpy_compares_arrays_of_mxnet(array):
    """As MXNet's own tests do (test_ndarray.py, test_large_int_rounding)."""
    ones = array([1.0, 1.0])
    assert np.array_equal(ones, array([1.0, 1.0]))
    assert np.all(ones == 1) and np.any(ones)


@with_views
def test_an_array_cannot_be_had_without_a_copy():
    with pytest.raises(ValueError, match="no memory that numpy could share"):
        mx.nd.ones(2).__array__(copy=False)  # as np.asarray(..., copy=False) asks in numpy 2


def test_operators_of_numpys_scalars_and_mxnets_arrays_stay_mxnets():
    with mx.autograd.record():
        x = mx.nd.array([2.0, 3.0])
        results = [np.float32(2) * x, x - np.float64(1), np.int64(1) + x]
    assert all(isinstance(result, mx.nd.NDArray) for result in results)
    assert [result.asnumpy().tolist() for result in results] == [[4, 6], [1, 2], [3, 4]]


def test_an_array_is_pickled():
    assert pickle.loads(pickle.dumps(mx.nd.array([1.0, 2.0]))).asnumpy().tolist() == [1, 2]


def test_the_bases_add_no_room_for_attributes_to_an_array():
    assert not hasattr(own_bases.HostArray(), "__dict__")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_sum_of_a_metric_is_kept_in_double_precision(dtype):
    """2**24 + 1 is the first whole number that float32 skips, 2,049 that of float16."""
    metric = mx.metric.Loss()
    for _ in range(3):
        metric.update(None, [mx.nd.ones(1024, dtype=dtype)])
    metric.sum_metric += 2**24
    metric.update(None, [mx.nd.ones(1, dtype=dtype)])
    assert float(metric.sum_metric) == 3 * 1024 + 2**24 + 1


def test_perplexity_counts_on_where_labels_are_ignored():
    metric = mx.metric.Perplexity(ignore_label=0)
    label, score = mx.nd.array([0.0, 1.0]), mx.nd.array([[0.5, 0.5], [0.5, 0.5]])
    metric.num_inst = np.float32(2**24)
    metric.update([label], [score])
    assert float(metric.num_inst) == 2**24 + 1


@pytest.mark.parametrize("made", [np.float32, np.float16], ids=["float32", "float16"])
def test_a_metric_of_the_users_sums_in_double_precision(made):
    metric = mx.metric.np(lambda label, pred: made(label.sum() - pred.sum()), name="difference")
    metric.update([mx.nd.array([3.0])], [mx.nd.array([1.0])])
    metric.update([mx.nd.array([3.0])], [mx.nd.array([1.0])])
    assert float(metric.sum_metric) == 4.0 and metric.sum_metric.dtype == np.float64
    assert pickle.loads(pickle.dumps(metric.sum_metric)) == 4.0
