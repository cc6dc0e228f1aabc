"""Gluon nets as workloads: what runs is a copy, converted as the net itself would be."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from mxmp.errors import ConvertError, TuneError
from mxmp.gluon import convert, report
from mxmp.policy import Policy
from mxmp.tune.speed.gluon_net import GluonWorkload, call_with
from mxmp.tune.speed.plan_search import PlanSearch
from mxmp.tune.speed.problem import NetworkProblem

O1 = Policy.parse("mixed_float16")


def make_net():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu"), nn.Dense(5))
    net.initialize(mx.init.Xavier())
    return net


class TwoGraphs(gluon.Block):
    """A plain block around two HybridBlocks."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.second = make_net(), nn.Dense(2, in_units=5)
        self.second.initialize()

    def forward(self, data):
        return self.second(self.first(data) * 2)


@pytest.fixture
def batch():
    return mx.nd.random.uniform(shape=(2, 3, 8, 8))


def state_of(net):
    return {name: param.data().asnumpy() for name, param in net.collect_params().items()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("converted", [None, "O1", "O2"])
def test_the_net_stays_as_it_is(batch, training, converted):
    net = make_net()
    net(batch)
    if converted:
        convert(net, converted)
    with autograd.record():
        net(batch).sum().backward()
    before, gradient = state_of(net), net[0].weight.grad().asnumpy()
    kinds = type(net), dict(vars(net)).keys(), {name: param.dtype for name, param in net.collect_params().items()}
    workload = GluonWorkload(net, batch, training)
    workload.decide(O1)
    workload.build(O1)()
    mx.nd.waitall()
    assert kinds == (type(net), dict(vars(net)).keys(), {n: param.dtype for n, param in net.collect_params().items()})
    for name, value in state_of(net).items():
        np.testing.assert_array_equal(value, before[name])
    np.testing.assert_array_equal(net[0].weight.grad().asnumpy(), gradient)


@pytest.mark.parametrize("hybridized", [True, False])
def test_decisions_are_those_of_the_converted_net(batch, hybridized):
    net = make_net()
    net.hybridize(hybridized)
    (found,) = GluonWorkload(net, batch, True).decide(O1)
    convert(net, O1)
    with autograd.record():
        net(batch)
    expected = {(row.name, row.precision) for row in report(net).rows}
    assert {(row.name, row.precision) for row in found.report.rows} == expected


def test_what_runs_is_hybridized_as_the_net_is(batch):
    net = make_net()
    net.hybridize(static_alloc=True, static_shape=True)
    workload = GluonWorkload(net, batch, False)
    copy = workload._copy(workload._graphs[0], O1)
    assert dict(copy._flags) == dict(net._flags)


def test_a_block_with_two_graphs_runs_both_under_policies_of_their_own(batch):
    net = TwoGraphs()
    problem = NetworkProblem(GluonWorkload(net, batch, True), O1)
    assert {"Convolution", "FullyConnected"} <= {group.op for group in problem.choices.groups}
    for number in range(len(problem.choices.groups)):
        choice = tuple("float32" if i == number else None for i in range(len(problem.choices.groups)))
        assert problem.build(choice)() > 0


def test_inputs_in_lists_and_integers_and_sparse_gradients_run():
    class Model(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.words = nn.Embedding(20, 8, sparse_grad=True)
                self.memory = rnn.LSTM(8, input_size=8)
                self.out = nn.Dense(20, flatten=False, in_units=8)

        def hybrid_forward(self, F, tokens, state):
            out, state = self.memory(self.words(tokens), state)
            return self.out(out), state

    net = Model()
    net.initialize()
    tokens, state = mx.nd.array(np.arange(6).reshape(3, 2), dtype="int32"), net.memory.begin_state(2)
    problem = NetworkProblem(GluonWorkload(net, (tokens, state), True), O1)
    assert problem.build(problem.choices.float32)() > 0
    assert problem.build(problem.choices.untuned)() > 0


def test_labels_that_a_net_does_not_take_are_left_out(batch):
    net = make_net()
    assert call_with(net, (batch, mx.nd.zeros(2))).shape == (2, 5)
    assert call_with(net, [batch]).shape == (2, 5)
    symbols = gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), mx.sym.var("data"))
    symbols.initialize()
    assert call_with(symbols, (batch, mx.nd.zeros(2))).shape == (2, 2)


def test_forward_says_how_the_net_is_called(batch):
    workload = GluonWorkload(make_net(), {"image": batch}, True, lambda net, found: net(found["image"][:1]))
    assert workload.shapes == {"data": (1, 3, 8, 8)}


def test_a_forward_that_does_not_call_the_net_is_refused(batch):
    net = make_net()
    with pytest.raises(
        TuneError, match=r"calling the net with a batch did not call hybridsequential\d+; give forward="
    ):
        GluonWorkload(net, batch, True, lambda net, found: None)
    assert not net._forward_pre_hooks


def test_a_search_runs_for_real(batch):
    """With emulated float16, whose clock counts as any other: what is returned is one of what was measured."""
    problem = NetworkProblem(GluonWorkload(make_net(), batch, True), O1)
    found = PlanSearch(problem, 2.0).run()
    assert found.proved
    assert found.seconds["float32"] > 0
    assert {"untuned", "normalisations in float32"} <= {trial.name for trial in found.trials}
    assert min(found.seconds.values()) > 0


class Picks(gluon.HybridBlock):
    """A net that scales by a float32 constant, and picks outputs by an integer one."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=3)
            self.scale = self.params.get_constant("scale", mx.nd.ones((4, 4)))
            self.index = self.params.get_constant("index", mx.nd.array([0, 2], dtype="int32"))

    def hybrid_forward(self, F, data, scale, index):
        return F.take(F.dot(self.dense(data), scale), index, axis=1)


@pytest.mark.parametrize("training", [True, False])
def test_constants_stay_constants_of_their_dtypes(training):
    net = Picks()
    net.initialize()
    workload = GluonWorkload(net, mx.nd.ones((2, 3)), training)
    (found,) = workload.decide(Policy.parse("O2"))
    workload.build(Policy.parse("O2"))()
    mx.nd.waitall()
    low = {found.before.nodes[position].name for position in found.plan.low_params}
    assert low == {net.dense.weight.name, net.dense.bias.name}


def test_a_net_that_ran_can_be_exported_afterwards(batch, tmp_path):
    net = make_net()
    net.hybridize()
    net(batch)
    GluonWorkload(net, batch, True)
    net.export(str(tmp_path / "net"))
    assert (tmp_path / "net-symbol.json").exists()


class WithMask(gluon.HybridBlock):
    """A net with an input that may be left out."""

    def hybrid_forward(self, F, data, mask=None):
        return data if mask is None else data * mask


def test_labels_are_not_taken_for_an_input_that_may_be_left_out(batch):
    net = WithMask()
    assert call_with(net, [batch]).shape == batch.shape
    with pytest.raises(TuneError, match="the net takes 1 to 2 arrays, and a batch has 2; say with forward="):
        call_with(net, [batch, mx.nd.zeros(2)])


class Unnamed(gluon.HybridBlock):
    """A net that calls an operator without a scope of its own."""

    def hybrid_forward(self, F, data):
        return F.relu(data)


def test_a_net_whose_names_change_with_each_trace_is_refused(batch):
    with pytest.raises(ConvertError, match="operators in it get other names each time it is traced.*prefix='net_'"):
        GluonWorkload(Unnamed(prefix=""), batch, False)
