"""Whole networks whose float16 is rounded by the operators, against the same networks rounded by casts."""

from __future__ import annotations

import copy
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, export, restore
from mxmp.module import Module
from mxmp.passes.emulate import ROUND
from mxmp.rounding import library

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

OURS = "_mxmp_round"


@pytest.fixture(autouse=True)
def native(operators, monkeypatch):
    """Round by operators; the function that this gives switches that off and on."""

    def switch(on):
        monkeypatch.setattr(library, "_decided", on)

    switch(True)
    return switch


class Residual(gluon.HybridBlock):
    """A residual block with BatchNorm and 16 channels, which is smooth: a rounding more moves it little."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.stem = nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.norm = nn.BatchNorm(in_channels=16)
            self.body = nn.Conv2D(16, 3, padding=1, in_channels=16)
            self.last = nn.Dense(5, in_units=16)

    def hybrid_forward(self, F, x):
        x = F.tanh(self.norm(self.stem(x)))
        x = F.tanh(x + self.norm(self.body(x)))
        return self.last(F.mean(x, axis=(2, 3)))


class Loop(gluon.HybridBlock):
    """A layer in a loop, behind and in front of layers that are not."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.stem = nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.cell = nn.Dense(16, in_units=16, flatten=False)

    def hybrid_forward(self, F, x):
        rows = F.reshape(self.stem(x), (0, 0, -1)).transpose((2, 0, 1))

        def step(row, state):
            new = F.tanh(self.cell(row) + state)
            return new, new

        return F.contrib.foreach(step, rows, F.zeros((4, 16)))[0]


def make(net, policy="O1", **flags):
    mx.random.seed(1)
    net = net(prefix="net_")
    net.initialize(mx.init.Xavier())
    convert(net, policy)
    net.hybridize(**flags)
    return net


def batch():
    return mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (4, 3, 8, 8)))


def step(net, data):
    """Return what a net gives in training, then at inference, and all gradients."""
    data.attach_grad()
    with autograd.record():
        out = net(data)
        loss = (out.astype("float32") ** 2).sum()
    loss.backward()
    grads = [p.grad().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"]
    return [each.astype(np.float32) for each in (out.asnumpy(), net(data).asnumpy(), data.grad.asnumpy(), *grads)]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("net", [Residual, Loop])
def test_steps_are_those_of_casts_but_for_the_order_of_sums(net, policy, static, native):
    found = {}
    for on in (False, True):
        native(on)
        each = make(net, policy, static_alloc=static, static_shape=static)
        step(each, batch())
        found[on] = step(each, batch())
    assert len(found[True]) >= 6
    largest = max(np.abs(each).max() for each in found[False][2:])  # a bias in front of BatchNorm has no gradient
    for number, (one, other) in enumerate(zip(found[False], found[True])):
        size = largest if number > 1 else np.abs(one).max()
        assert np.abs(one - other).max() <= 2.0**-8 * size


def test_weights_are_rounded_once_for_inference():
    net = make(Residual)
    found = net(batch()).asnumpy()
    (built,) = net._mxmp_conversion.graphs.ops.values()
    assert built.prepared is not None and len(built.prepared.params) >= 3
    net.stem.weight.set_data(net.stem.weight.data() * 2)
    assert np.abs(net(batch()).asnumpy() - found).max() > 1e-3


def test_two_threads_call_one_net():
    net, data = make(Residual, static_alloc=True, static_shape=True), batch()
    expected, found = net(data).asnumpy(), {}

    def work(number):
        found[number] = [net(data).asnumpy() for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1]
    for each in (*found[0], *found[1]):
        np.testing.assert_array_equal(each, expected)


@pytest.mark.skipif(not mx.runtime.Features().is_enabled("MKLDNN"), reason="MXNet without oneDNN")
def test_a_backend_may_partition_the_graph(native):
    found = {}
    for on in (False, True):
        native(on)
        net = make(Residual, backend="MKLDNN", static_alloc=True, static_shape=True)
        found[on] = net(batch()).asnumpy()
    assert np.abs(found[True] - found[False]).max() <= 2.0**-8 * np.abs(found[False]).max()


def test_nothing_that_is_kept_or_written_has_the_operators(tmp_path):
    net, data = make(Residual), batch()
    found = net(data).asnumpy()
    np.testing.assert_array_equal(copy.deepcopy(net)(data).asnumpy(), found)
    export(net, str(tmp_path / "ours"))
    assert OURS not in repr(net)
    restore(net)
    net(data)
    net.export(str(tmp_path / "theirs"))
    texts = [path.read_text() for path in tmp_path.glob("*-symbol.json")]
    assert len(texts) == 2 and not any(OURS in text for text in texts)


def test_a_modules_checkpoint_has_the_symbol_without_the_operators(tmp_path):
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax")
    module = Module(symbol, policy="O1")
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params()
    assert ROUND in module._exec_group.symbol.tojson()
    module.save_checkpoint(str(tmp_path / "net"), 1)
    for text in ((tmp_path / "net-symbol.json").read_text(), module.symbol.tojson()):
        assert OURS not in text and "fc" in text
    loaded = Module.load(str(tmp_path / "net"), 1, policy="O1")
    loaded.bind([("data", (4, 5))], [("softmax_label", (4,))])
    data = mx.io.DataBatch([mx.nd.ones((4, 5))], [mx.nd.zeros(4)])
    for each in (module, loaded):
        each.forward(data, is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), loaded.get_outputs()[0].asnumpy())
