"""bfloat16 on a GPU, for which MXNet has no kernels, is refused by name. A second CPU stands in for the GPU."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp import amp
from mxmp.errors import ConvertError
from mxmp.symbol import arguments
from tests import messages

GPU = mx.cpu(1)
REFUSAL = "uses bfloat16 on cpu(1), but MXNet 1.9.1 has no bfloat16 kernels for GPUs. Take a float16 policy..."


@pytest.fixture(autouse=True)
def second_cpu_is_a_gpu(monkeypatch):
    real = arguments._device_type
    monkeypatch.setattr(arguments, "_device_type", lambda context: "gpu" if context == GPU else real(context))


def dense(ctx, in_units=4, **options):
    net = gluon.nn.Dense(3, in_units=in_units, **options)
    net.initialize(ctx=ctx)
    return net


ROWS = mx.nd.ones((2, 4), ctx=GPU)
HEAD = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax")
PARAMS = {"fc_weight": mx.nd.ones((3, 4), ctx=GPU), "fc_bias": mx.nd.zeros(3)}, {}


def moved():
    net = mxmp.gluon.convert(dense(mx.cpu()), "mixed_bfloat16")
    net.collect_params().reset_ctx(GPU)
    net(ROWS)


def within():
    """Call a converted block within a net that is not converted."""
    outer = gluon.nn.HybridSequential()
    outer.add(mxmp.gluon.convert(gluon.nn.Dense(3, in_units=4), "mixed_bfloat16"))
    outer.initialize(ctx=GPU)
    outer.hybridize()
    outer(ROWS)


def module(*contexts):
    made = mxmp.module.Module(HEAD, context=[*contexts], policy="mixed_bfloat16")
    made.bind([("data", (2, 4))], [("softmax_label", (2,))])


def stored():
    net = mxmp.gluon.cast(dense(mx.cpu(), prefix="a_"), "bfloat16")
    net(mx.nd.ones((2, 4)))
    net.initialize(ctx=GPU, force_reinit=True)


CALLS = {
    "parameters": ("block 'dense...", lambda: mxmp.gluon.convert(dense(GPU), "mixed_bfloat16")),
    "parameters to come": ("block 'dense...", lambda: mxmp.gluon.convert(dense(GPU, 0), "bfloat16")),
    "fields": ("block 'dense...", lambda: mxmp.gluon.convert(dense(GPU), "O2,compute=bfloat16,param=bfloat16")),
    "cast": ("block '...", lambda: mxmp.gluon.cast(dense([mx.cpu(), GPU]), "bfloat16")),
    "moved": ("block '...", moved),
    "within": ("block '...", within),
    "model": ("arg_params: ...", lambda: mxmp.symbol.convert_model(HEAD, *PARAMS, "mixed_bfloat16")),
    "module": ("bind: symbol 'softmax': ...", lambda: module(mx.cpu(), GPU)),
}
MESSAGES = {
    **{name: (call, ConvertError, where + REFUSAL) for name, (where, call) in CALLS.items()},
    "stored": (stored, ConvertError, "parameter 'a_weight' is stored in bfloat16 on cpu(1), but MXNet..."),
    "a GPU, real or not there": (lambda: module(mx.gpu(0)), ConvertError,
        "...uses bfloat16 on gpu(0), but MXNet 1.9.1 has no bfloat16 kernels..."),
}  # fmt: skip


@messages.each(MESSAGES)
def test_bfloat16_is_refused_on_a_gpu(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


def test_a_refused_net_is_as_it_was():
    net = dense(GPU)
    net.hybridize()
    amp.init("bfloat16")
    try:
        for call in (lambda: mxmp.gluon.convert(net, "bfloat16"), lambda: net(ROWS)):
            with pytest.raises(ConvertError, match="uses bfloat16 on cpu"):
                call()
    finally:
        amp.disable()
    assert net(ROWS).dtype == net.weight.data().dtype == np.float32


@pytest.mark.bfloat16
def test_parameters_stored_in_bfloat16_do_not_move_to_a_gpu():
    """MXNet would fail to write them there, and say so at some later read: "Unknown type enum 12"."""
    net, rows = mxmp.gluon.cast(dense(mx.cpu()), "bfloat16"), mx.nd.ones((2, 4))
    before = net(rows).asnumpy()
    with pytest.raises(ConvertError, match=rf"parameter '{net.weight.name}' is stored in bfloat16 on cpu\(1\), but MXNet"):
        net.weight.reset_ctx(GPU)
    assert net.weight.list_ctx() == [mx.cpu()]
    np.testing.assert_array_equal(net(rows).asnumpy(), before)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_other_policies_run_on_a_gpu(policy):
    net = mxmp.gluon.convert(dense(GPU), policy)
    assert net(ROWS).shape == (2, 3)
