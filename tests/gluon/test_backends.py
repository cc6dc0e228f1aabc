"""Converted nets that MXNet partitions by a backend: ``hybridize(backend=...)`` and ``optimize_for``, in any order."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, export, restore
from mxmp.symbol import on_cpu
from tests.gluon.nets import recorded, started

POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
BACKEND = {"backend": "MKLDNN"}
CASTS = {"Cast", "amp_cast"}
STATIC = {"static_alloc": True, "static_shape": True}

pytestmark = pytest.mark.skipif(not mx.runtime.Features().is_enabled("MKLDNN"), reason="MXNet without oneDNN")


def make(ctx=None):
    """A net whose convolutions have a BatchNorm, an activation, and neither behind them."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=8))
        net.add(nn.Activation("relu"), nn.Conv2D(4, 3, in_channels=8, activation="relu"), nn.Dropout(0.4))
        net.add(nn.Conv2D(4, 1, in_channels=4), nn.Dense(5, in_units=64))
    started(net, ctx)
    statistics = np.random.RandomState(0)
    net[1].running_mean.set_data(mx.nd.array(statistics.uniform(-1, 1, 8)))
    net[1].running_var.set_data(mx.nd.array(statistics.uniform(0.5, 2, 8)))
    return net


def batch(seed=1, size=2):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, (size, 3, 6, 6)), dtype="float32")


class Symbols(list):
    ran = None


@pytest.fixture
def symbols(monkeypatch):
    """The operators of each cached operator that MXNet builds for blocks, in order; ``ran`` has those that ran last."""
    found = Symbols()

    class Noting(mx.nd.CachedOp):
        def __init__(self, symbol, flags=()):
            found.append({node["op"] for node in json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]})
            self.symbol = found[-1]
            super().__init__(symbol, flags)

        def __call__(self, *args, **options):
            found.ran = self.symbol
            return super().__call__(*args, **options)

    monkeypatch.setattr(gluon.block.ndarray, "CachedOp", Noting)
    return found


def close(found, expected, policy):
    """Whether a net gives what its float32 net does, but for roundings to the policy's dtype."""
    eps = 2.0**-7 if "bfloat16" in str(policy) else 2.0**-10
    return np.abs(found - expected).max() < 4 * eps * np.abs(expected).max()


ORDERS = {
    "convert, hybridize": "c h",
    "hybridize, convert": "h c",
    "hybridize, call, convert": "h r c",
    "convert, call, hybridize": "c r h",
    "twice": "h c r h r c r",
    "inactive and again": "c h r i r h",
    "optimize_for": "c o",
    "optimize_for, convert": "o c",
    "optimize_for after a call": "c r o",
}


@pytest.mark.parametrize("flags", [{}, STATIC], ids=["plain", "static"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_backend_partitions_the_converted_graph(order, policy, flags, symbols):
    net, expected = make(), make()(batch()).asnumpy()
    steps = {
        "c": lambda: convert(net, policy),
        "h": lambda: net.hybridize(**BACKEND, **flags),
        "i": lambda: net.hybridize(False),
        "o": lambda: net.optimize_for(batch(), **BACKEND, **flags),
        "r": lambda: net(batch()),
    }
    for step in order.split():
        steps[step]()
    if order == "c o":
        assert len(symbols) == 1  # it is built already
    outputs = net(batch()).asnumpy()
    assert close(outputs, expected, policy) and symbols.ran is symbols[-1]
    assert "_sg_mkldnn_conv" in symbols[-1] and CASTS & symbols[-1]
    assert "Convolution" not in symbols[-1]
    built = len(symbols)
    assert order != "c o" or built == 1
    np.testing.assert_array_equal(net(batch()).asnumpy(), outputs)
    assert len(symbols) == built
    restore(net)
    np.testing.assert_allclose(net(batch()).asnumpy(), expected, rtol=1e-5, atol=1e-5)
    assert "_sg_mkldnn_conv" in symbols[-1] and not CASTS & symbols[-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_training_runs_the_graph_as_it_is(policy, symbols):
    """MXNet's fused operators give gradients of zero; plain nets with this backend do not train at all."""
    nets = [make(), make()]
    for net, flags in zip(nets, [BACKEND, {}]):
        convert(net, policy).hybridize(**flags, **STATIC)
        for train_mode in (True, False):
            with autograd.record(train_mode):
                autograd.backward(net(batch()))
        net(batch())
    for fused, plain in zip(*(net.collect_params().values() for net in nets)):
        if plain.grad_req != "null":
            np.testing.assert_array_equal(fused.grad().asnumpy(), plain.grad().asnumpy())
            assert plain.name.endswith("bias") or plain.grad().asnumpy().any()
    assert nets[0]._backend == "MKLDNN" and any("_sg_mkldnn_conv" in found for found in symbols)


def gamma(net):
    net[1].gamma.data()[:] *= 2  # past set_data


CHANGES = {
    "weight": lambda net: net[3].weight.set_data(net[3].weight._reduce() * 2),
    "bias": lambda net: net[5].bias.set_data(net[5].bias._reduce() + 1),
    "statistics": lambda net: net[1].running_mean.set_data(net[1].running_mean.data() + 1),
    "gamma": gamma,
    "backward, which moves running statistics": lambda net: recorded(net, batch(2)),
}


@pytest.mark.parametrize("flags", [{}, STATIC], ids=["plain", "static"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_that_fused_operators_keep_is_stale(change, policy, flags):
    """Those of MXNet keep weights for good where there is no BatchNorm, and statistics for as long as weights stay."""
    net = convert(make(), policy)
    net.hybridize(**BACKEND, **flags)
    before = net(batch()).asnumpy()
    change(net)
    after = net(batch()).asnumpy()
    assert not np.array_equal(after, before)
    net.hybridize(**BACKEND)
    np.testing.assert_array_equal(after, net(batch()).asnumpy())


def test_the_export_has_the_whole_net_and_parameters_keep_their_names_and_values(tmp_path):
    net, plain = convert(make(), "O2"), make()
    net.hybridize(**BACKEND)
    y = net(batch()).asnumpy()
    net.save_parameters(str(tmp_path / "net.params"))
    for name, array in mx.nd.load(str(tmp_path / "net.params")).items():
        np.testing.assert_array_equal(array.asnumpy(), plain._collect_params_with_prefix()[name].data().asnumpy())
    export(net, str(tmp_path / "net"))
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    assert "net_batchnorm0_running_mean" in aux
    assert "_sg_mkldnn_conv" not in symbol.tojson() and "BatchNorm" in symbol.tojson()
    bound = on_cpu(symbol).bind(mx.cpu(), {**args, "data": batch()}, aux_states=aux)
    assert close(bound.forward()[0].asnumpy(), y, "O2")
