"""Arrays on a CPU as memory."""

from __future__ import annotations

import mxnet as mx

from mxmp.arrays import address


def test_address_is_that_of_the_memory():
    array = mx.nd.arange(8)
    assert address(array) == address(array.reshape((2, 4))) == address(array[4:8]) - 16
    assert address(array.copy()) != address(array)
    assert address(mx.nd.sparse.zeros("row_sparse", (3, 2))) == 0
