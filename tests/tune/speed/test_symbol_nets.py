"""Symbols and modules as workloads."""

from __future__ import annotations

import os

import mxnet as mx
import numpy as np
import pytest

from mxmp.policy import Policy
from mxmp.symbol import convert_model
from mxmp.tune.speed.problem import NetworkProblem
from mxmp.tune.speed.symbol_nets import Inputs, ModelWorkload, ModuleWorkload

O1, O2 = Policy.parse("mixed_float16"), Policy.parse("O2")
DATA, LABEL = (2, 3, 8, 8), (2,)


def network(loss=True):
    data = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv")
    data = mx.sym.Activation(mx.sym.BatchNorm(data, name="norm"), act_type="relu", name="act")
    data = mx.sym.FullyConnected(data, num_hidden=5, name="fc")
    return mx.sym.SoftmaxOutput(data, name="softmax") if loss else data


def params_of(symbol):
    module = mx.mod.Module(symbol, label_names=[name for name in symbol.list_arguments() if name.endswith("label")])
    labels = [("softmax_label", LABEL)] if "softmax_label" in symbol.list_arguments() else None
    module.bind([("data", DATA)], labels)
    module.init_params()
    return module.get_params()


def inputs(labels=True):
    given = {"softmax_label": mx.nd.zeros(LABEL)} if labels else {}
    return Inputs({"data": mx.nd.random.uniform(shape=DATA)}, given)


@pytest.mark.parametrize("policy", [O1, O2], ids=["O1", "O2"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", [True, False])
def test_modules_run_under_every_choice(policy, training, loss):
    symbol = network(loss)
    workload = ModuleWorkload(symbol, params_of(symbol), inputs(loss), [mx.cpu()], training)
    problem = NetworkProblem(workload, policy)
    for choice in (problem.choices.untuned, problem.choices.float32):
        assert problem.build(choice)() > 0


@pytest.mark.parametrize("for_inference", [True, False])
def test_models_run_under_every_choice(for_inference):
    symbol = network()
    workload = ModelWorkload(symbol, params_of(symbol), inputs(), mx.cpu(), for_inference)
    problem = NetworkProblem(workload, O2)
    assert ("BatchNorm" in {group.op for group in problem.choices.groups}) is not for_inference
    for choice in (problem.choices.untuned, problem.choices.float32):
        assert problem.build(choice)() > 0


def test_parameters_stay_as_they_are():
    symbol = network()
    arg_params, aux_params = params_of(symbol)
    before = {name: array.asnumpy() for name, array in [*arg_params.items(), *aux_params.items()]}
    ModuleWorkload(symbol, (arg_params, aux_params), inputs(), [mx.cpu()], True).build(O1)()
    ModelWorkload(symbol, (arg_params, aux_params), inputs(), mx.cpu(), False).build(O1)()
    mx.nd.waitall()
    for name, array in [*arg_params.items(), *aux_params.items()]:
        np.testing.assert_array_equal(array.asnumpy(), before[name])


def test_parameters_that_lack_are_initialized():
    run = ModuleWorkload(network(), ({}, {}), inputs(), [mx.cpu()], True).build(O1)
    run()
    mx.nd.waitall()


def test_decisions_are_those_of_the_conversion():
    symbol = network()
    params = params_of(symbol)
    (found,) = ModelWorkload(symbol, params, inputs(), mx.cpu(), False).decide(O2)
    shapes = {"data": DATA, "softmax_label": LABEL}
    expected = convert_model(symbol, *params, O2, shapes).report
    assert [(row.name, row.precision) for row in found.report.rows] == [
        (row.name, row.precision) for row in expected.rows
    ]


@pytest.mark.parametrize("value", [None, "1"])
def test_no_environment_variable_stays_changed(monkeypatch, value):
    monkeypatch.delenv("MXNET_SUBGRAPH_VERBOSE", raising=False)
    if value is not None:
        monkeypatch.setenv("MXNET_SUBGRAPH_VERBOSE", value)
    symbol = network()
    ModelWorkload(symbol, params_of(symbol), inputs(), mx.cpu(), False).build(O1)
    assert os.environ.get("MXNET_SUBGRAPH_VERBOSE") == value
