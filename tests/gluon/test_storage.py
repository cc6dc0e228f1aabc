"""Parameters in low precision, and back."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp import dtypes
from mxmp.gluon import api as gluon_api
from mxmp.gluon import storage

VALUES = np.random.RandomState(0).randn(4, 5).astype("float32")


def parameter(grad_req="write", ctx=None):
    param = gluon.Parameter("weight", shape=VALUES.shape, grad_req=grad_req)
    param.initialize(ctx=ctx or mx.cpu())
    param.set_data(mx.nd.array(VALUES))
    return param


def rounded(dtype):
    if dtype == "float16":
        return VALUES.astype("float16").astype("float32")
    bits = VALUES.view("uint32").astype("uint64")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype("uint32").view("float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_are_rounded_to_nearest_even(dtype):
    param = parameter()
    storage.store_low(param, dtype)
    assert storage.dtype_of(param) == dtype == dtypes.canonical(param.data().dtype)
    assert np.array_equal(mx.nd.amp_cast(param.data(), dtype="float32").asnumpy(), rounded(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_flow_into_the_low_precision_parameter(dtype):
    param = parameter()
    storage.store_low(param, dtype)
    with autograd.record():
        (mx.nd.amp_cast(param.data(), dtype="float32") * 3).sum().backward()
    assert dtypes.canonical(param.grad().dtype) == dtype
    assert (mx.nd.amp_cast(param.grad(), dtype="float32").asnumpy() == 3).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_comes_back_exactly(dtype):
    param = parameter(ctx=[mx.cpu(0), mx.cpu(1)])
    storage.store_low(param, dtype)
    storage.store_float32(param)
    assert all(np.array_equal(array.asnumpy(), VALUES) for array in param.list_data())
    assert storage.dtype_of(param) == "float32"


def test_the_float32_value_keeps_no_float32_gradient():
    param = parameter()
    assert param.data().grad is not None  # otherwise the last line proves nothing
    storage.store_low(param, "float16")
    assert all(master.grad is None for master in vars(param)["_mxmp_masters"].values())


def test_frozen_parameters_keep_no_float32_copy():
    param = parameter("null")
    storage.store_low(param, "float16")
    assert not hasattr(param, "_mxmp_masters")
    storage.store_float32(param)
    assert np.array_equal(param.data().asnumpy(), rounded("float16"))


def test_the_dtype_equals_its_name_and_its_type():
    param = parameter()
    storage.store_low(param, "float16")
    assert param.dtype == "float16" and param.dtype == np.float16
    storage.store_float32(param)
    assert param.dtype == "float32" and param.dtype == np.float32


@pytest.mark.parametrize("layer", [gluon.rnn.LSTM, gluon.rnn.GRU, gluon.rnn.RNN])
def test_weights_of_recurrent_layers_are_stored_low(layer):
    """The RNN operator reads them reshaped and concatenated, in low precision alone."""
    net = layer(4, num_layers=2, bidirectional=True, input_size=3)
    net.initialize()
    gluon_api.convert(net, "O2,op:RNN=float16")
    net(mx.nd.ones((5, 2, 3)))
    assert {storage.dtype_of(param) for param in net.collect_params().values()} == {"float16"}
