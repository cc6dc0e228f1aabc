"""MXNet reads scipy's sparse matrices by a name that scipy has."""

from __future__ import annotations

import warnings

import mxnet as mx
import numpy as np
import pytest

from mxmp import compat

sparse = pytest.importorskip("scipy.sparse", reason="MXNet does without scipy")


@pytest.mark.skipif(not compat.needed(), reason="MXNet runs as it is, and scipy warns")
def test_arrays_are_made_without_a_warning_of_scipy():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mx.nd.array([1, 2]).shape == (2,)
        assert next(iter(mx.io.NDArrayIter(np.ones((4, 3)), batch_size=2))).data[0].shape == (2, 3)


def test_sparse_matrices_go_both_ways():
    matrix = sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    array = mx.nd.sparse.array(matrix)
    assert array.stype == "csr" and array.asnumpy().tolist() == [[0, 2], [3, 0]]
    assert mx.nd.array(matrix).stype == "csr"
    assert type(array.asscipy()) is sparse.csr_matrix
