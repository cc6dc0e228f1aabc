"""Whole networks whose float16 is rounded by the operators: the bits of the same networks rounded by casts."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import convert, export, restore
from mxmp.module import Module

pytestmark = [pytest.mark.compiler, pytest.mark.slow]

OURS = "_mxmp_round"


class Residual(gluon.HybridBlock):
    """A residual block whose BatchNorms sum in another order where 16 channels are in a layout of oneDNN."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2D(16, 3, padding=1, in_channels=3)
        self.norm = nn.BatchNorm(in_channels=16)
        self.body = nn.Conv2D(16, 3, padding=1, in_channels=16)
        self.last = nn.Dense(5, in_units=16)

    def hybrid_forward(self, F, x):
        x = F.tanh(self.norm(self.stem(x)))
        x = F.tanh(x + self.norm(self.body(x)))
        return self.last(F.mean(x, axis=(2, 3)))


def make(net, policy="O1", **flags):
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.2))
    convert(net, policy)
    net.hybridize(**flags)
    return net


def batch():
    return mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (4, 3, 8, 8)))


@pytest.mark.parametrize("policy, static", [("O1", False), ("O2", True)])
def test_steps_have_the_bits_of_those_that_round_by_casts(policy, static, same_bits):
    def run():
        """Return what a net gives in training, then at inference, and all gradients, of a second step."""
        net, data = make(Residual(), policy, static_alloc=static, static_shape=static), batch()
        data.attach_grad()
        for _ in range(2):
            with autograd.record():
                out = net(data)
                loss = (out.astype("float32") ** 2).sum()
            loss.backward()
        gradients = [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]
        return [array.asnumpy() for array in (out, net(data), data.grad, *gradients)]

    same_bits(run)


@pytest.mark.skipif(not mx.runtime.Features().is_enabled("MKLDNN"), reason="MXNet without oneDNN")
def test_a_backend_may_partition_the_graph(same_bits):
    same_bits(lambda: [make(Residual(), backend="MKLDNN", static_alloc=True, static_shape=True)(batch()).asnumpy()])


def test_nothing_that_is_kept_or_written_has_the_operators(tmp_path, native):
    net, data = make(Residual()), batch()
    found = net(data).asnumpy()
    np.testing.assert_array_equal(copy.deepcopy(net)(data).asnumpy(), found)
    export(net, str(tmp_path / "ours"))
    assert OURS not in repr(net)
    restore(net)
    net(data)
    net.export(str(tmp_path / "theirs"))
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="softmax")
    module = Module(symbol, policy="O1")
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params()
    assert OURS in module._exec_group.symbol.tojson()
    module.save_checkpoint(str(tmp_path / "module"), 1)
    texts = [module.symbol.tojson(), *(path.read_text() for path in tmp_path.glob("*-symbol.json"))]
    assert len(texts) == 4 and not any(OURS in text for text in texts)
