"""What a user can check of the diagnosis, by public names only. docs/behaviours.md lists it."""

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import compare, explain
from tests.freeze import freeze
from tests.perceptron import X, make, values
from tests.symbol.small import dense


@pytest.mark.behaviour(56)
def test_explain_names_the_operator_that_leaves_float16s_range():
    """And not a parameter beyond it that float32 reads."""
    squares = mx.sym.square(dense(mx.sym.var("data")), name="squares")
    shifted = mx.sym.broadcast_add(squares, mx.sym.var("shift", shape=(1, 6)), name="shifted")
    symbol = mx.sym.LinearRegressionOutput(shifted, name="out")
    args = {"fc_weight": mx.nd.full((6, 5), 100), "shift": mx.nd.full((1, 6), 1e5)}
    batch = {"data": mx.nd.ones((4, 5)), "out_label": mx.nd.full((4, 6), 1e5)}
    found = explain((symbol, args, {}), batch, "O1,op:square=float16,name:shifted=float32", loss_scale=1)
    assert (found.kind, found.node.name) == ("activation out of range", "squares") and "squares" in str(found)
    healthy = explain((symbol, {**args, "fc_weight": args["fc_weight"] / 100}, {}), batch, "O1", loss_scale=1)
    assert (healthy.kind, healthy.node) == ("no fault found", None)


class SquareRootOfZero(gluon.Block):
    """Two layers, and between them an operator that has no finite gradient there."""

    def __init__(self):
        super().__init__(prefix="net_")
        self.first, self.second = nn.Dense(3, in_units=5, prefix="first_"), nn.Dense(3, in_units=3)

    def forward(self, x):
        return self.second(mx.nd.sqrt(self.first(x) * 0))


def test_explain_finds_a_gradient_that_is_lost_between_two_blocks():
    """Where the values of both are finite, and the gradients of the second."""
    net = SquareRootOfZero()
    net.initialize()
    found = explain(net, (X, mx.nd.ones((4, 3))), "O1", loss=gluon.loss.L2Loss())
    assert (found.kind, found.node.name) == ("float32 model broken", "first_fwd_output")


def test_what_compare_writes_to_gradients_is_none_for_a_step():
    net = nn.Sequential()
    net.add(make())
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    with autograd.record():
        net(X).sum().backward()
    trainer.step(4)
    compare(net, (X, mx.nd.ones((4, 3))), "O1", loss=gluon.loss.L2Loss())
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(4)


@pytest.mark.behaviour(57)
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", [nn.HybridSequential, nn.Sequential])
def test_compare_leaves_the_net_as_it_was(policy, gradients, kind):
    """Its statistics and gradients too."""
    net, norm = kind(), nn.BatchNorm(in_channels=3)
    norm.initialize()
    net.add(make(), norm)
    mxmp.gluon.convert(net, policy)
    with autograd.record():
        net(X).sum().backward()

    def state():
        grads = [param.grad() for param in net.collect_params().values() if param.grad_req != "null"]
        return freeze([values(net), grads, net(X)])

    before = state()
    loss = gluon.loss.L2Loss() if gradients else None
    found = compare(net, (X, mx.nd.ones((4, 3))) if gradients else X, "mixed_float16", loss=loss)
    assert state() == before
    assert found.has_gradients is gradients and 0 < found.outputs[0].error < 1e-2
