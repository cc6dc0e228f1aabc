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
from mxmp.tune.speed.workloads import make_workload

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


def recurrent():
    """A network with a state, in two groups of nodes."""
    with mx.AttrScope(ctx_group="first"):
        data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc")
    with mx.AttrScope(ctx_group="second"):
        state = mx.sym.FullyConnected(mx.sym.var("state", shape=(2, 5)), num_hidden=5, name="memory")
        return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(data + state)), name="loss")


def test_copies_of_a_module_are_made_and_bound_as_it_is():
    groups = {"first": mx.cpu(0), "second": mx.cpu(1)}
    module = mx.mod.Module(
        recurrent(), ["data"], [], fixed_param_names=["fc_bias"], state_names=["state"], group2ctxs=groups
    )
    module.bind([("data", (2, 3))], None, inputs_need_grad=True, grad_req={"memory_bias": "add"})
    module.init_params()
    workload = make_workload(module, [{"data": mx.nd.ones((2, 3))}], training=True, for_inference=False)
    assert workload.options == {
        "fixed_param_names": "fc_bias",
        "state_names": "state",
        "group2ctxs": "first: cpu(0), second: cpu(1)",
        "grad_req": "memory_bias: add",
        "inputs_need_grad": "True",
    }
    group = workload._bind(O1)._exec_group
    assert group.grad_req == module._exec_group.grad_req and group.grad_req["fc_bias"] == "null"
    assert group.execs[0].arg_dict["memory_weight"].context == mx.cpu(1)
    (decided,) = workload.decide(O2)
    stored = {decided.before.nodes[position].name for position in decided.plan.low_params}
    assert "memory_weight" in stored and "state" not in stored
    workload.build(O1)()
    mx.nd.waitall()


def test_options_that_are_the_usual_ones_are_not_said_and_inference_has_no_gradients():
    module = mx.mod.Module(network())
    module.bind([("data", DATA)], [("softmax_label", LABEL)], grad_req="add")
    module.init_params()
    batches = [{"data": mx.nd.ones(DATA)}]
    assert make_workload(module, batches, False, False).options == {}
    assert make_workload(module, batches, True, False).options == {"grad_req": "add"}
    several = mx.mod.Module(network(), context=[mx.cpu(0), mx.cpu(1)])
    assert make_workload(several, batches, True, False).options == {"context": "cpu(0), cpu(1)"}


def test_a_network_that_ends_in_the_mean_of_its_losses_trains():
    """Modules cannot give its output a gradient, as they take the first axis for that of the batch."""
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(network(loss=False))), name="loss")
    ModuleWorkload(loss, params_of(loss), inputs(labels=False), [mx.cpu()], True).build(O1)()
    mx.nd.waitall()
