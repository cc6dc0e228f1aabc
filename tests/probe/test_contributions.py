"""Contributions of nodes to the error of the outputs, against networks in which one node alone is rounded."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.policy import Policy
from mxmp.probe import contributions
from mxmp.probe.contributions import Contributions
from mxmp.symbol import convert_model, on_cpu
from tests.probe.test_node_errors import half, loop, ratio, values_of


def split(sym, values, data):
    states = set(sym.list_auxiliary_states())
    args = {name: array for name, array in values.items() if name not in (*states, *data)}
    return args, {name: values[name] for name in states}, {name: values[name].shape for name in data}


def measure(sym, values, policy="O2", data=("data",), trains=False):
    """Return the contributions by name, and the decisions."""
    args, aux, shapes = split(sym, values, data)
    decisions = convert_model(sym, args, aux, policy, shapes).decisions
    found = Contributions(decisions, mx.cpu(), trains)(values)
    return {decisions.before.nodes[position].name: change for position, change in found.items()}, decisions


def outputs(sym, values, policy, data):
    """Return what a conversion gives, run by MXNet as plain symbol."""
    args, aux, shapes = split(sym, values, data)
    model = convert_model(sym, args, aux, policy, shapes)
    given = {**values, **model.arg_params, **model.aux_params}
    run = on_cpu(model.symbol)
    return [each.asnumpy() for each in run.bind(mx.cpu(), *bound(run, given)).forward(is_train=False)]


def bound(sym, values):
    return {n: values[n] for n in sym.list_arguments()}, None, "null", {n: values[n] for n in sym.list_auxiliary_states()}


def one_alone(sym, values, decisions, name, data=("data",)):
    """Return the error of the outputs if one node alone is in low precision, as a share of each output."""
    others = {node.name: "float32" for node in decisions.before.operators() if node.name != name}
    policy = decisions.policy.replace(names={**others, name: "float16"}, param_dtype="float32")
    exact, low = (outputs(sym, values, each, data) for each in (Policy(), policy))
    return np.sqrt(sum(ratio(*pair) ** 2 for pair in zip(low, exact)))


def chain():
    data = mx.sym.var("data")
    first = mx.sym.FullyConnected(data, num_hidden=6, no_bias=True, name="first")
    return mx.sym.FullyConnected(mx.sym.tanh(first, name="tanh"), num_hidden=2, no_bias=True, name="second")


def test_contributions_of_two_layers_are_those_of_numpy():
    sym = chain()
    values = values_of(sym, data=(3, 4))
    x, w, v = (values[name].asnumpy() for name in ("data", "first_weight", "second_weight"))
    found, _ = measure(sym, values)
    exact = np.tanh(x @ w.T) @ v.T
    first = np.tanh(half(half(x) @ half(w).T)) @ v.T
    second = half(half(np.tanh(x @ w.T)) @ half(v).T)
    assert found["first"] == pytest.approx(ratio(first, exact), rel=0.02)
    assert found["second"] == pytest.approx(ratio(second, exact), rel=0.02)


def convolutions():
    data = mx.sym.var("data")
    layer = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, name="conv")
    layer = mx.sym.BatchNorm(layer, fix_gamma=False, name="norm")
    layer = mx.sym.relu(layer, name="relu") + mx.sym.Convolution(layer, kernel=(1, 1), num_filter=4, name="side")
    layer = mx.sym.Pooling(layer, global_pool=True, pool_type="avg", kernel=(1, 1), name="pool")
    return mx.sym.FullyConnected(layer, num_hidden=3, name="end")


def two_outputs():
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="first")
    parts = mx.sym.split(first, num_outputs=2, name="parts")
    large = mx.sym.FullyConnected(parts[0], num_hidden=1, name="large") * 1000
    return mx.sym.Group([large, mx.sym.FullyConnected(parts[1] + parts[0], num_hidden=1, name="small")])


def heads(**attributes):
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="scores")
    return mx.sym.SoftmaxOutput(scores, name="softmax", **attributes)


NETWORKS = {
    "chain": (chain, (3, 4)),
    "convolutions": (convolutions, (2, 3, 8, 8)),
    "two outputs": (two_outputs, (3, 4)),
    "loop": (loop, (1, 2, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_contributions_are_those_of_one_node_rounded_alone(name):
    make, shape = NETWORKS[name]
    sym = make()
    values = values_of(sym, data=shape)
    found, decisions = measure(sym, values, "O3")
    assert found
    for node, change in found.items():
        if not any(each.name == node and each.subgraphs for each in decisions.before.nodes):
            assert change == pytest.approx(one_alone(sym, values, decisions, node), rel=0.1, abs=1e-7), node


@pytest.mark.parametrize("op", ["SoftmaxOutput", "LogisticRegressionOutput", "LinearRegressionOutput"])
def test_contributions_pass_loss_heads_which_have_no_derivative(op):
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="scores")
    sym = getattr(mx.sym, op)(scores, mx.sym.var("label"), name="head")
    shapes = {"label": (2,) if op == "SoftmaxOutput" else (2, 3)}
    values = values_of(sym, data=(2, 4), **shapes)
    found, decisions = measure(sym, values, data=("data", "label"))
    expected = one_alone(sym, values, decisions, "scores", ("data", "label"))
    assert found["scores"] == pytest.approx(expected, rel=0.05) and expected > 1e-5


@pytest.mark.parametrize("attributes", [{"multi_output": True}, {"preserve_shape": True}, {}], ids=str)
def test_contributions_pass_softmax_heads_of_every_layout(attributes):
    data = mx.sym.var("data")
    scores = mx.sym.FullyConnected(data, num_hidden=3, flatten=False, name="scores")
    sym = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="head", **attributes)
    size = (1, 3) if "multi_output" in attributes else (1, 2)
    values = values_of(sym, data=(1, 2, 4), label=size)
    found, decisions = measure(sym, values, data=("data", "label"))
    assert found["scores"] == pytest.approx(one_alone(sym, values, decisions, "scores", ("data", "label")), rel=0.05)


def test_contributions_pass_what_blocks_gradients():
    sym = mx.sym.BlockGrad(chain())
    values = values_of(sym, data=(3, 4))
    plain, _ = measure(chain(), values)
    found, _ = measure(sym, values)
    assert found["first"] == pytest.approx(plain["first"], rel=1e-3) and found["first"] > 1e-5


def test_many_outputs_are_projected_at_random_without_touching_random_states(monkeypatch):
    data = mx.sym.var("data")
    sym = mx.sym.FullyConnected(data, num_hidden=300, no_bias=True, name="only")
    values = values_of(sym, data=(4, 20))
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    found, decisions = measure(sym, values)
    assert np.random.get_state()[1].tolist() == before
    expected = one_alone(sym, values, decisions, "only")
    assert 0.4 < found["only"] / expected < 1.6 and found["only"] != expected
    monkeypatch.setattr(contributions, "PROJECTIONS", 200)
    assert measure(sym, values)[0]["only"] == pytest.approx(expected, rel=0.15)


def test_without_float32_outputs_nothing_is_known():
    sym = mx.sym.Cast(chain(), dtype="int32")
    found, _ = measure(sym, values_of(sym, data=(3, 4)))
    assert np.isnan(found["first"])


def test_an_error_that_is_not_finite_is_left_out():
    data = mx.sym.var("data")
    square = mx.sym.elemwise_mul(data, data, name="square")
    sym = mx.sym.FullyConnected(square, num_hidden=2, no_bias=True, name="end")
    values = {**values_of(sym, data=(2, 3)), "data": mx.nd.array([[300, 1.1, 2.3], [0.7, 5.1, 1.3]])}
    found, _ = measure(sym, values, "O2,op:elemwise_mul=float16")
    assert 0 < found["square"] < 1e-3


def test_what_is_given_stays_in_training_too():
    sym = convolutions()
    values = values_of(sym, data=(2, 3, 8, 8))
    values["conv_weight"].attach_grad()
    before = {name: array.asnumpy() for name, array in values.items()}
    with autograd.record():
        measure(sym, values, trains=True)
    assert all((values[name].asnumpy() == before[name]).all() for name in values)
    assert not values["conv_weight"].grad.asnumpy().any()
