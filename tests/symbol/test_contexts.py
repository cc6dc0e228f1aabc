"""bfloat16 on a GPU, for which MXNet has no kernels, is refused by name, whether the GPU is there or not."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.errors import ConvertError

GPU = mx.gpu(0)
REFUSAL = r"bfloat16 on gpu\(0\), but MXNet 1.9.1 has no bfloat16 kernels for GPUs. Take a float16 policy"


def dense(ctx, **options):
    """Return a layer whose parameters wait for the first call."""
    net = gluon.nn.Dense(3, use_bias=False, **options)
    net.initialize(ctx=ctx)
    return net


def module(*contexts):
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax")
    mxmp.module.Module(symbol, context=[*contexts], policy="mixed_bfloat16").bind([("data", (2, 4))], [("softmax_label", (2,))])


CALLS = {
    "convert": ("block 'dense", lambda: mxmp.gluon.convert(dense(GPU), "bfloat16")),
    "fields": ("block 'dense", lambda: mxmp.gluon.convert(dense(GPU), "O2,compute=bfloat16,param=bfloat16")),
    "cast": ("block '", lambda: mxmp.gluon.cast(dense([mx.cpu(), GPU]), "bfloat16")),
    "module": ("bind: symbol 'softmax': ", lambda: module(mx.cpu(), GPU)),
}


@pytest.mark.parametrize("where, call", CALLS.values(), ids=CALLS)
def test_bfloat16_is_refused_on_a_gpu(where, call):
    with pytest.raises(ConvertError, match=f"^{where}.*{REFUSAL}"):
        call()


def of_model(second):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    mxmp.symbol.convert_model(symbol, {"fc_weight": mx.nd.ones((3, 4), ctx=second)}, {}, "mixed_bfloat16")


def of_a_moved_net(second):
    net = mxmp.gluon.convert(dense(mx.cpu(), in_units=4), "mixed_bfloat16")
    net.collect_params().reset_ctx(second)
    net(mx.nd.ones((2, 4), ctx=second))


@pytest.mark.parametrize("call", [of_model, of_a_moved_net])
def test_arrays_that_are_on_a_gpu_are_refused(call, monkeypatch):
    """A second CPU stands in for a GPU, which would have to be there to hold arrays."""
    monkeypatch.setattr("mxmp.devices.check.is_gpu", lambda context: context == mx.cpu(1))
    with pytest.raises(ConvertError, match=REFUSAL.replace("gpu\\(0", "cpu\\(1")):
        call(mx.cpu(1))


def test_a_refused_net_is_as_it_was_and_takes_float16():
    net = dense(GPU)
    with pytest.raises(ConvertError):
        mxmp.gluon.convert(net, "bfloat16")
    assert type(net) is gluon.nn.Dense
    assert mxmp.gluon.convert(net, "O2") is net


@pytest.mark.bfloat16
def test_parameters_stored_in_bfloat16_do_not_move_to_a_gpu():
    """MXNet would fail to write them there, and say so at some later read: "Unknown type enum 12"."""
    net, rows = mxmp.gluon.cast(dense(mx.cpu(), in_units=4), "bfloat16"), mx.nd.ones((2, 4))
    before = net(rows).asnumpy()
    refusal = rf"parameter '{net.weight.name}': bfloat16 on gpu\(0\), but MXNet"
    with pytest.raises(ConvertError, match=refusal):
        net.weight.reset_ctx(GPU)
    assert net.weight.list_ctx() == [mx.cpu()]
    np.testing.assert_array_equal(net(rows).asnumpy(), before)
    with pytest.raises(ConvertError, match=refusal):
        net.initialize(ctx=GPU, force_reinit=True)
