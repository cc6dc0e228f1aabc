"""What can be kept in float32, and policies that have just that there."""

from __future__ import annotations

import itertools

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from mxmp import Policy
from mxmp.diagnose.subject import NetSubject
from mxmp.tune.by_accuracy import LowOperators
from tests.tune.networks import FAILING

DATA = mx.nd.ones((4, 8))


def operators_of(net, policy, *inputs):
    network = NetSubject(net)
    with network.watched():
        net(*inputs)
    return network, LowOperators(network, Policy.parse(policy))


class Twice(gluon.HybridBlock):
    """Calls one activation twice, the second time behind an exponential, where the rules want float32."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.last = nn.Dense(8, in_units=8), nn.Dense(4, in_units=8)
            self.act = nn.LeakyReLU(0.5)

    def hybrid_forward(self, F, x):
        return self.last(self.act(F.exp(-self.act(self.first(x)))))


def test_in_each_trial_just_those_that_are_kept_are_in_float32():
    """Of all sets of operators of a small network, that of its squares among them."""
    net = FAILING["normalised"]().net
    network, operators = operators_of(net, "O2", DATA)
    assert len(operators.items) == 6 and not operators.fixed
    for count in range(7):
        for kept in map(frozenset, itertools.combinations(operators.items, count)):
            rows = network.rows(operators.exactly(kept))
            found = {row.name for row in rows if row.precision == "float32"} & set(operators.items)
            assert found == kept


def test_a_name_that_the_rules_have_in_float32_elsewhere_is_not_asked_for_in_low_precision():
    net = Twice(prefix="net_")
    net.initialize()
    network, operators = operators_of(net, "O1", DATA)
    precisions = [row.precision for row in operators.rows if row.op == "LeakyReLU"]
    assert precisions == ["float16", "float32"], "the net does not show it"
    (shared,) = (item for item in operators.items if "leakyrelu" in item)
    policy = operators.exactly(frozenset(operators.items) - {shared})
    assert shared not in dict(policy.names)
    assert [row.precision for row in network.rows(policy) if row.op == "LeakyReLU"] == ["float32", "float32"]


def test_an_override_of_an_operator_or_block_gives_way_to_a_name():
    net = Twice(prefix="net_")
    net.initialize()
    network, operators = operators_of(net, "O1,op:exp=float16,block:net_dense0=float16", DATA)
    assert not operators.fixed and {"net_exp0", "net_dense0_fwd"} <= set(operators.items)
    rows = network.rows(operators.exactly(frozenset(operators.items)))
    assert {row.precision for row in rows} == {"float32"}
