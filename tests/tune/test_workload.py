"""Networks as workloads: the copies that run are converted as the network would be, which stays as it is."""

import os

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from mxmp.gluon import convert, freeze, report
from mxmp.policy import Policy
from mxmp.symbol import Checkpoint, convert_model
from mxmp.tune.workload import make_batch, read_workload
from tests.tune.networks import WithMask, classifier, convnet, imported, make_module, two_graphs

O0, O1, O2 = map(Policy.parse, ("O0", "O1", "O2"))
DATA, LABEL = (2, 3, 8, 8), (2,)
BATCH = mx.nd.random.uniform(shape=DATA)


def make_model(symbol=None):
    module = make_module(symbol)
    return (module.symbol, *module.get_params())


def shapes_of(workload):
    return {name: array.shape for name, array in workload.inputs.items()}


def stored_low(workload):
    """Return the names of the parameters that are stored in low precision under O2."""
    (decisions,) = workload.decide(O2)
    return {decisions.before.nodes[position].name for position in decisions.plan.low_params}


def precisions(report):
    return {(row.name, row.precision) for row in report.rows}


# ------------------------------------------------------------------ Gluon nets


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("policy", [None, "O2"])
def test_the_copy_of_a_net_gives_what_the_converted_net_does_and_the_net_stays(policy, training, tmp_path):
    net = convnet()
    net.hybridize()
    net(BATCH)
    if policy:
        convert(net, policy)
    with autograd.record():
        net(BATCH).sum().backward()

    def state():
        values = {name: (param.dtype, param.data().asnumpy()) for name, param in net.collect_params().items()}
        return type(net), dict(vars(net)).keys(), values, net[0].weight.grad().asnumpy()

    before = state()
    workload = read_workload(net, [BATCH], training)
    (decisions,) = workload.decide(O1)
    (found,) = workload.start(O1)()
    mx.nd.waitall()
    np.testing.assert_equal(state(), before)
    net.export(str(tmp_path / "net"))
    convert(net, O1)
    with autograd.record() if training else autograd.predict_mode():
        expected = net(BATCH)
    assert precisions(decisions.report) == precisions(report(net))
    np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-2, atol=1e-3)


def test_a_block_with_two_graphs_runs_both_under_policies_of_their_own():
    net = two_graphs()
    net[1].hybridize(static_alloc=True, inline_limit=2)  # the latter is MXNet's default
    workload = read_workload(net, [BATCH], True)
    assert set(shapes_of(workload).values()) == {DATA, (2, 5)} and all(" data" in name for name in workload.inputs)
    assert workload.options == {f"{net[1].name} static_alloc": "True"}
    name = f"{net[1].name}_fwd"
    assert [each.shape for each in workload.start(O1.replace(names={name: "float32"}))()] == [(2, 5), (2, 2)]


class Words(gluon.HybridBlock):
    """A net of integers and a state in a list, with sparse gradients, a constant of float32 and one of integers."""

    def __init__(self):
        super().__init__(prefix="words_")
        with self.name_scope():
            self.words = nn.Embedding(20, 8, sparse_grad=True)
            self.memory = rnn.LSTM(8, input_size=8)
            self.out = nn.Dense(4, flatten=False, in_units=8)
            self.scale = self.params.get_constant("scale", mx.nd.ones((4, 4)))
            self.index = self.params.get_constant("index", mx.nd.array([0, 2], dtype="int32"))

    def hybrid_forward(self, F, tokens, state, scale, index):
        out, state = self.memory(self.words(tokens), state)
        return F.take(F.dot(self.out(out), scale), index, axis=2), state


def test_nested_inputs_integers_sparse_gradients_and_constants_run():
    net = Words()
    net.initialize()
    batch = mx.nd.array(np.arange(6).reshape(3, 2), dtype="int32"), net.memory.begin_state(2)
    workload = read_workload(net, [batch], True)
    for policy in (O0, O2):
        assert workload.start(policy)()[0].shape == (3, 2, 2)
    low = stored_low(workload)
    assert net.out.weight.name in low and not low & {net.scale.name, net.index.name}


def given_once():
    batches = mx.io.NDArrayIter(np.zeros((4, 3, 8, 8)), np.zeros(4), 2, label_name="softmax_label")
    batches.next()
    return batches


READ = {
    "a label": (convnet, lambda: [(BATCH, mx.nd.zeros(2))], None),
    "a label of an imported net": (imported, lambda: [(BATCH, mx.nd.zeros(2))], None),
    "an input that may be left out": (lambda: WithMask(prefix="mask_"), lambda: [BATCH], None),
    "a call of its own": (convnet, lambda: [{"image": BATCH}], lambda net, batch: net(batch["image"])),
    "an iterator that has given a batch already": (lambda: make_module(), given_once, None),
}


@pytest.mark.parametrize("build, batches, forward", READ.values(), ids=READ)
def test_the_first_batch_is_taken_without_what_the_network_does_not_take(build, batches, forward):
    assert shapes_of(read_workload(build(), batches(), True, forward=forward)) == {"data": DATA}


# ------------------------------------------------------------------ frozen networks


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["net", "model"])
def test_a_frozen_network_gives_what_freeze_does(kind, fused):
    net = convnet()
    net.hybridize()
    net(BATCH)
    given, batch = (net, BATCH) if kind == "net" else (make_model(classifier(loss=False)), {"data": BATCH})
    workload = read_workload(given, [batch], False, for_inference=True)
    assert workload.options == {} and shapes_of(workload) == {"data": DATA}
    (decisions,) = workload.decide(O1)
    assert "BatchNorm" not in {node.op for node in decisions.before.operators()} and decisions.plan.low_params
    expected = freeze(given, O1, {"data": DATA})(BATCH).asnumpy()
    np.testing.assert_allclose(workload.start(O1, fused)()[0].asnumpy(), expected, rtol=1e-2, atol=1e-3)


# ------------------------------------------------------------------ symbols and Modules


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("kind", ["model", "module"])
def test_symbols_run_in_modules_and_their_parameters_stay(kind, loss, training):
    symbol = classifier(loss)
    given = make_module(symbol, training) if kind == "module" else make_model(symbol)
    params = given.get_params() if kind == "module" else given[1:]

    def state():
        return [{name: array.asnumpy() for name, array in each.items()} for each in params], dict(os.environ)

    before = state()
    workload = read_workload(given, [{"data": BATCH}], training)
    for policy in (O0, O1, O2):
        assert workload.start(policy)()[0].shape == (2, 5)
    mx.nd.waitall()
    np.testing.assert_equal(state(), before)
    (decisions,) = workload.decide(O2)
    assert precisions(decisions.report) == precisions(convert_model(symbol, *params, O2, {"data": DATA}).report)


def test_the_options_of_a_module_are_taken_and_said():
    with mx.AttrScope(ctx_group="first"):
        data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc")
    with mx.AttrScope(ctx_group="second"):
        hidden = mx.sym.FullyConnected(data, num_hidden=5, name="last")
        symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(hidden)), name="loss")
    groups = {"first": mx.cpu(0), "second": mx.cpu(1)}
    module = mx.mod.Module(symbol, ["data"], [], fixed_param_names=["fc_bias"], group2ctxs=groups)
    module.bind([("data", DATA)], None, inputs_need_grad=True, grad_req={"last_bias": "add"})
    module.init_params()
    workload = read_workload(module, [{"data": BATCH}], True)
    assert workload.options == {
        "fixed_param_names": "['fc_bias']",
        "group2ctxs": "{'first': cpu(0), 'second': cpu(1)}",
        "grad_req": "{'last_bias': 'add'}",
        "inputs_need_grad": "True",
    }
    workload.start(O1)()
    mx.nd.waitall()
    assert read_workload(make_module(), [{"data": BATCH}], True).options == {}
    several = make_module(context=[mx.cpu(0), mx.cpu(1)])
    assert read_workload(several, [{"data": BATCH}], True).options["context"] == "[cpu(0), cpu(1)]"


def test_the_states_of_a_module_are_its_own():
    state = mx.sym.var("state", shape=(2, 5))
    symbol = mx.sym.MakeLoss(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc") + state)
    workload = read_workload(make_module(symbol, state_names=["state"]), [{"data": BATCH}], True)
    assert shapes_of(workload) == {"data": DATA} and workload.options == {"state_names": "['state']"}
    assert workload.start(O1)()[0].shape == (2, 5)
    stored = stored_low(workload)
    assert "fc_weight" in stored and "state" not in stored


def test_a_network_that_ends_in_the_mean_of_its_losses_trains():
    """Modules cannot give its output a gradient, as they take the first axis for that of the batch."""
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(classifier(loss=False))), name="loss")
    model = make_model(loss)
    executor = loss.simple_bind(mx.cpu(), data=DATA)  # with gradients: without them MXNet fuses BatchNorm
    executor.copy_params_from({**model[1], "data": BATCH}, model[2])
    (found,), (exact,) = read_workload(model, [{"data": BATCH}], True).start(O0)(), executor.forward(is_train=True)
    np.testing.assert_allclose(found.asnumpy(), exact.asnumpy(), rtol=1e-5)


# ------------------------------------------------------------------ batches of shapes alone


def test_inputs_are_random_and_labels_zeros():
    words, declared = (
        mx.sym.Embedding(mx.sym.var(name, dtype=dtype), mx.sym.var("w"), input_dim=3, output_dim=2)
        for name, dtype in (("words", None), ("declared", "int32"))
    )
    target = mx.sym.LinearRegressionOutput(declared, mx.sym.var("target"))  # by whose name it is known to be a label
    _, args, aux = make_model()
    model = Checkpoint(mx.sym.Group([classifier(), words, target]), {**args, "w": mx.nd.ones((3, 2))}, aux)
    shapes = {"data": DATA, "softmax_label": LABEL, "words": (4, 5), "declared": (2,)}
    batch = {name: array.asnumpy() for name, array in make_batch(model, shapes, {"words": "int32"}).items()}
    assert {name: array.shape for name, array in batch.items()} == shapes
    assert 0 <= batch["data"].min() < 0.1 < 0.9 < batch["data"].max() <= 1 and not batch["softmax_label"].any()
    assert batch["words"].dtype == batch["declared"].dtype == np.int32 and set(batch["words"].flat) == {0, 1}
