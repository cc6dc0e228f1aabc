"""The numbers of a comparison: own and carried errors, contributions and gradients, against numpy and single nodes."""

from __future__ import annotations

import math
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import symbols
from mxmp.diagnose import compare
from mxmp.diagnose.compare import relative_error
from mxmp.errors import ConvertError
from mxmp.module import Module
from mxmp.policy import Policy
from mxmp.symbol import convert_model, on_cpu, to_graph

SCALE = 256.0


def half(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def ratio(low, exact):
    return np.linalg.norm(low - exact) / np.linalg.norm(exact)


def values_of(sym, seed=0, scale=1.0, **shapes):
    args, _, aux = sym.infer_shape(**shapes)
    draw = np.random.RandomState(seed)
    given = {name: mx.nd.array(draw.randn(*s) * scale) for name, s in zip(sym.list_arguments(), args)}
    return {**given, **{name: mx.nd.ones(s) for name, s in zip(sym.list_auxiliary_states(), aux)}}


def split(sym, values, data):
    states = set(sym.list_auxiliary_states())
    args = {name: array for name, array in values.items() if name not in (*states, *data)}
    return args, {name: values[name] for name in states}, {name: values[name] for name in data}


def measure(sym, policy, values, data=("data",)):
    """Return the rows of a comparison by name."""
    args, aux, batch = split(sym, values, data)
    return {row.name: row for row in compare((sym, args, aux), batch, policy).rows}


def gradients_of(sym, policy, values, loss, scale=SCALE):
    """Return the rows of a comparison whose gradients are those of a loss of the outputs."""
    args, aux, batch = split(sym, values, ("data",))
    net = gluon.SymbolBlock(sym, [mx.sym.var("data")])
    for name, param in net.collect_params().items():
        param._load_init({**args, **aux}[name], mx.cpu())
    rows = compare(net, (batch["data"], None), policy, loss=lambda out, _: loss(out), loss_scale=scale).rows
    return {row.name: row for row in rows}


# ---------------------------------------------------------------------- own and carried


def dense_square_sum():
    data = mx.sym.var("data")
    dense = mx.sym.FullyConnected(data, num_hidden=3, no_bias=True, name="dense")
    return mx.sym.FullyConnected(dense * dense, num_hidden=2, no_bias=True, name="sum")


@pytest.mark.parametrize("policy", ["O1", "O2", "O3"])
def test_own_and_carried_errors_are_those_of_numpy(policy):
    """Products of float16 are exact in float32, and so few terms add up alike in any order but for the last bit."""
    sym = dense_square_sum()
    values = values_of(sym, data=(5, 4))
    x, w, v = (values[name].asnumpy() for name in ("data", "dense_weight", "sum_weight"))
    dense, low = x @ w.T, half(half(x) @ half(w).T)
    square, low_square = dense * dense, half(low * low)
    found = measure(sym, policy, values)
    own = {
        "dense": ratio(low, dense),
        "_mul": ratio(half(half(dense) * half(dense)), square),
        "sum": ratio(half(half(square) @ half(v).T), square @ v.T),
    }
    carried = {
        "dense": ratio(low, dense),
        "_mul": ratio(low_square, square),
        "sum": ratio(half(low_square @ half(v).T), square @ v.T),
    }
    for name, error in found.items():
        name = name.rstrip("0123456789")
        assert error.own == pytest.approx(own[name], rel=0.02) and error.own > 1e-5
        assert error.carried == pytest.approx(carried[name], rel=0.02)


def test_a_node_in_float32_has_no_own_error_and_carries_that_of_its_inputs():
    sym = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="dense"), name="probabilities")
    found = measure(sym, "O2", values_of(sym, data=(5, 4)))
    assert found["probabilities"].own == 0 < found["probabilities"].carried


@pytest.mark.parametrize("factor", [1e26, 1e-26])
def test_values_whose_squares_float32_cannot_hold_have_their_error(factor):
    """Softplus or masks give such values in float32 behind a node in low precision."""
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="dense") * factor
    values = values_of(sym, data=(5, 4))
    x, w = values["data"].asnumpy(), values["dense_weight"].asnumpy()
    (found,) = (error for name, error in measure(sym, "O1,op:_mul_scalar=float32", values).items() if name != "dense")
    assert found.own == 0 and found.carried == pytest.approx(ratio(half(half(x) @ half(w).T), x @ w.T), rel=0.02)


def test_a_finite_difference_from_huge_values_is_not_lost():
    """A mask of -1e30 beside values that are off; float16 has -inf there."""
    mask = mx.nd.array([[-1e30, 0.0, 0.0]])
    sym = mx.sym.broadcast_add(mx.sym.var("data"), mx.sym.var("mask"), name="masked")
    values = {"data": mx.nd.ones((1, 3)), "mask": mask}
    assert measure(sym, "O3", values, data=("data", "mask"))["masked"].own == math.inf
    sym = mx.sym.broadcast_mul(mx.sym.sqrt(mx.sym.var("data"), name="root"), mx.sym.var("mask"), name="product")
    values = {"data": mx.nd.full((1, 3), 2.0), "mask": mask}
    found = measure(sym, "O1,op:sqrt=float16,op:broadcast_mul=float32", values, data=("data", "mask"))
    root = np.float32(np.sqrt(np.float32(2)))
    assert found["product"].carried == pytest.approx(abs(float(np.float16(root)) / float(root) - 1), rel=1e-3)


def test_where_float32_is_infinite_itself_nothing_is_compared():
    """An attention mask of -inf is as good in float16."""
    data = mx.sym.var("data")
    sym = mx.sym.relu(mx.sym.broadcast_add(data, mx.sym.log(data, name="log")), name="positive")
    values = {"data": mx.nd.array([[0.0, 1.0, 2.0]])}
    found = measure(sym, "O3", values)
    assert 0 <= found["log"].own < 1e-3 and found["positive"].carried < 1e-2


def test_an_output_of_zeros_has_no_error_if_it_stays_zero():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="dense")
    values = {name: array * 0 for name, array in values_of(sym, data=(5, 4)).items()}
    assert measure(sym, "O2", values)["dense"].own == 0


def test_values_that_vanish_are_an_error_of_1():
    sym = dense_square_sum()
    found = measure(sym, "O2", values_of(sym, scale=5e-3, data=(5, 4)))
    (square,) = (error for error in found.values() if error.op == "elemwise_mul")
    assert square.own == pytest.approx(1.0, abs=0.01)


def test_of_several_outputs_the_worst_counts():
    data = mx.sym.var("data")
    parts = mx.sym.split(mx.sym.FullyConnected(data, num_hidden=4, no_bias=True, name="dense"), num_outputs=2, name="s")
    sym = mx.sym.FullyConnected(parts[0] + parts[1] * 2, num_hidden=2, no_bias=True, name="end")
    values = values_of(sym, data=(5, 4))
    x, w = values["data"].asnumpy(), values["dense_weight"].asnumpy()
    dense, low = x @ w.T, half(half(x) @ half(w).T)
    found = measure(sym, "O2", values)["s"]
    assert found.carried == pytest.approx(max(ratio(low[:, i : i + 2], dense[:, i : i + 2]) for i in (0, 2)), rel=0.02)


def loop():
    def step(data, state):
        new = mx.sym.FullyConnected(data, weight=mx.sym.var("weight"), num_hidden=4, no_bias=True, name="inner") + state
        return new, new

    outputs, _ = mx.sym.contrib.foreach(step, mx.sym.var("data"), mx.sym.zeros((2, 4)), name="loop")
    return mx.sym.FullyConnected(outputs, num_hidden=2, name="end", no_bias=True)


def test_a_loop_is_compared_as_a_whole():
    sym = loop()
    found = measure(sym, "O2", values_of(sym, data=(3, 2, 4)))
    (whole,) = (error for error in found.values() if error.op == "_foreach")
    assert 1e-5 < whole.own < 1e-2 and "inner" not in found


def test_nothing_that_is_given_changes_and_statistics_stay_as_they_are():
    data = mx.sym.var("data")
    sym = mx.sym.BatchNorm(mx.sym.FullyConnected(data, num_hidden=3, name="dense"), name="norm", fix_gamma=False)
    values = values_of(sym, data=(5, 4))
    before = {name: array.asnumpy() for name, array in values.items()}
    with autograd.record():  # as in a loop that asks for it
        measure(sym, "O2", values)
    assert all((values[name].asnumpy() == before[name]).all() for name in values)


def images(size, channels=3):
    return {"data": mx.nd.random.normal(shape=(2, channels, size, size)), "softmax_label": mx.nd.zeros(2)}


def words(**more):
    return {"data": mx.nd.array(np.arange(15).reshape(3, 5) % 11), **more}


TINY = {"num_layers": 2, "num_hidden": 8, "num_heads": 2, "vocab_size": 11, "max_length": 9, "num_classes": 4}
WORDS = {"num_classes": 11, "seq_len": 5, "num_hidden": 6, "num_embed": 4}
NETWORKS = {
    "mlp": ({"num_classes": 10}, lambda: images(28, 1)),
    "lenet": ({"num_classes": 10}, lambda: images(28, 1)),
    "cifar_resnet20_v1": ({"num_classes": 10}, lambda: images(32)),
    "mobilenet_v2": ({"num_classes": 10}, lambda: images(64)),
    "lstm_lm": (WORDS, lambda: words(softmax_label=mx.nd.zeros((3, 5)))),
    "transformer": (
        TINY,
        lambda: words(
            token_types=mx.nd.zeros((3, 5)), valid_length=mx.nd.array([5, 1, 4]), softmax_label=mx.nd.zeros(3)
        ),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_an_error_for_each_node_in_low_precision_and_no_own_error_elsewhere(name):
    options, make = NETWORKS[name]
    sym, inputs = symbols.get_symbol(name, **options), make()
    inputs = {key: array for key, array in inputs.items() if key in sym.list_arguments()}
    shapes = {key: array.shape for key, array in inputs.items()}
    values = {key: array if "var" in key else array * 0.1 for key, array in values_of(sym, **shapes).items()}
    found = measure(sym, "O3", {**values, **inputs}, tuple(inputs))
    assert not any(row.own for row in found.values() if row.precision != "float16")
    assert any(row.own > 1e-5 and row.contribution for row in found.values())


@pytest.mark.parametrize("exact, low", [(1e-10, 1e34), (1e-30, 2e-30), (1e30, 3e30), (1e-42, 3e-42)])
def test_no_square_of_an_error_overflows_or_vanishes(exact, low):
    """(low / exact - 1) of one element, in Python's float64, though its square may leave float32's range."""
    arrays = [np.array([value, 0.0], np.float32) for value in (exact, low)]
    expected = abs(float(arrays[1][0]) - float(arrays[0][0])) / float(arrays[0][0])
    assert relative_error(*arrays) == pytest.approx(expected)
    assert relative_error(arrays[0], arrays[1] * np.float32(0.5), scale=0.5) == pytest.approx(expected, rel=1e-2)


# ---------------------------------------------------------------------- contributions


def outputs(sym, values, policy, data):
    """Return what a conversion gives, run by MXNet as plain symbol."""
    args, aux, batch = split(sym, values, data)
    shapes = {name: array.shape for name, array in batch.items()}
    model = convert_model(sym, args, aux, policy, shapes)
    given = {**values, **model.arg_params, **model.aux_params}
    run = on_cpu(model.symbol)
    return [each.asnumpy() for each in run.bind(mx.cpu(), *bound(run, given)).forward(is_train=False)]


def bound(sym, values):
    return {n: values[n] for n in sym.list_arguments()}, None, "null", {n: values[n] for n in sym.list_auxiliary_states()}


def one_alone(sym, values, policy, name, data=("data",)):
    """Return the error of the outputs if one node alone is in low precision, as a share of each output."""
    names = {node.name for node in to_graph(sym).operators()}
    others = dict.fromkeys(names - {name}, "float32")
    policy = Policy.parse(policy).replace(names={**others, name: "float16"}, param_dtype="float32")
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
    found = measure(sym, "O2", values)
    exact = np.tanh(x @ w.T) @ v.T
    first = np.tanh(half(half(x) @ half(w).T)) @ v.T
    second = half(half(np.tanh(x @ w.T)) @ half(v).T)
    assert found["first"].contribution == pytest.approx(ratio(first, exact), rel=0.02)
    assert found["second"].contribution == pytest.approx(ratio(second, exact), rel=0.02)


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


SMALL = {
    "chain": (chain, (3, 4)),
    "convolutions": (convolutions, (2, 3, 8, 8)),
    "two outputs": (two_outputs, (3, 4)),
    "loop": (loop, (1, 2, 4)),
}


@pytest.mark.parametrize("name", SMALL)
def test_contributions_are_those_of_one_node_rounded_alone(name):
    make, shape = SMALL[name]
    sym = make()
    values = values_of(sym, data=shape)
    for node, row in measure(sym, "O3", values).items():
        if row.op != "_foreach" and row.own:
            assert row.contribution == pytest.approx(one_alone(sym, values, "O3", node), rel=0.1, abs=1e-7), node


@pytest.mark.parametrize("op", ["SoftmaxOutput", "LogisticRegressionOutput", "LinearRegressionOutput"])
def test_contributions_pass_loss_heads_which_have_no_derivative(op):
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="scores")
    sym = getattr(mx.sym, op)(scores, mx.sym.var("label"), name="head")
    shapes = {"label": (2,) if op == "SoftmaxOutput" else (2, 3)}
    values = values_of(sym, data=(2, 4), **shapes)
    found = measure(sym, "O2", values, ("data", "label"))
    expected = one_alone(sym, values, "O2", "scores", ("data", "label"))
    assert found["scores"].contribution == pytest.approx(expected, rel=0.05) and expected > 1e-5


@pytest.mark.parametrize("attributes", [{"multi_output": True}, {"preserve_shape": True}, {}], ids=str)
def test_contributions_pass_softmax_heads_of_every_layout(attributes):
    data = mx.sym.var("data")
    scores = mx.sym.FullyConnected(data, num_hidden=3, flatten=False, name="scores")
    sym = mx.sym.SoftmaxOutput(scores, mx.sym.var("label"), name="head", **attributes)
    size = (1, 3) if "multi_output" in attributes else (1, 2)
    values = values_of(sym, data=(1, 2, 4), label=size)
    found, expected = measure(sym, "O2", values, ("data", "label")), one_alone(sym, values, "O2", "scores", ("data", "label"))
    assert found["scores"].contribution == pytest.approx(expected, rel=0.05)


def test_contributions_pass_what_blocks_gradients():
    sym = mx.sym.BlockGrad(chain())
    values = values_of(sym, data=(3, 4))
    plain, found = measure(chain(), "O2", values)["first"], measure(sym, "O2", values)["first"]
    assert found.contribution == pytest.approx(plain.contribution, rel=1e-3) and found.contribution > 1e-5


def test_many_outputs_are_projected_at_random_without_touching_random_states(monkeypatch):
    data = mx.sym.var("data")
    sym = mx.sym.FullyConnected(data, num_hidden=300, no_bias=True, name="only")
    values = values_of(sym, data=(4, 20))
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    found = measure(sym, "O2", values)["only"].contribution
    assert np.random.get_state()[1].tolist() == before
    expected = one_alone(sym, values, "O2", "only")
    assert 0.4 < found / expected < 1.6 and found != expected
    monkeypatch.setattr(sys.modules["mxmp.diagnose.compare"], "PROJECTIONS", 200)
    assert measure(sym, "O2", values)["only"].contribution == pytest.approx(expected, rel=0.15)


def test_without_float32_outputs_nothing_is_known():
    sym = mx.sym.Cast(chain(), dtype="int32")
    assert measure(sym, "O2", values_of(sym, data=(3, 4)))["first"].contribution is None


# ---------------------------------------------------------------------- gradients


def squares(outputs):
    return [(output**2).sum() for output in (outputs if isinstance(outputs, list) else [outputs])]


def dense_relu():
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    return mx.sym.FullyConnected(mx.sym.relu(first, name="relu"), num_hidden=2, no_bias=True, name="second")


def test_gradients_of_two_layers_are_those_of_numpy():
    sym = dense_relu()
    values = values_of(sym, data=(3, 4))
    x, w, v = (values[name].asnumpy() for name in ("data", "first_weight", "second_weight"))
    found = gradients_of(sym, "O2", values, squares)

    def low(array):
        return half(array * SCALE) / SCALE

    hidden = np.maximum(x @ w.T, 0)
    seed = 2 * hidden @ v.T
    own = [ratio(low(low(seed) @ half(v)), seed @ v), ratio(low(low(seed).T @ half(hidden)), seed.T @ hidden)]
    assert found["second"].gradient_own == pytest.approx(max(own), rel=0.02)
    given = (seed @ v) * (hidden > 0)
    own = [ratio(low(low(given) @ half(w)), given @ w), ratio(low(low(given).T @ half(x)), given.T @ x)]
    assert found["first"].gradient_own == pytest.approx(max(own), rel=0.02)
    below = half(np.maximum(half(half(x) @ half(w).T), 0))
    seed_low = low(2 * half(below @ half(v).T))
    given_low = low(seed_low @ half(v)) * (below > 0)
    carried = [ratio(low(given_low @ half(w)), given @ w), ratio(low(given_low.T @ half(x)), given.T @ x)]
    assert found["first"].gradient_carried == pytest.approx(max(carried), rel=0.02)


def network():
    data = mx.sym.var("data")
    layer = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, no_bias=True, name="conv")
    layer = mx.sym.relu(mx.sym.BatchNorm(layer, fix_gamma=False, name="norm"), name="relu")
    layer = mx.sym.Dropout(layer, p=0.5, name="drop")
    scores = mx.sym.FullyConnected(layer, num_hidden=3, no_bias=True, name="scores")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def gradients(sym, values, policy):
    """Return the gradients of the parameters as a Module has them, dropout left out, divided by the scale."""
    sym = mx.sym.load_json(sym.tojson().replace('"p": "0.5"', '"p": "0"'))
    module = Module(sym, policy=policy) if policy else mx.mod.Module(sym)
    module.bind([("data", values["data"].shape)], [("softmax_label", values["softmax_label"].shape)])
    module.set_params(*({n: values[n] for n in names} for names in (params(sym), sym.list_auxiliary_states())))
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0, "wd": 0.0})
    module.forward(mx.io.DataBatch([values["data"]], [values["softmax_label"]]), is_train=True)
    module.backward()
    module.update()
    new, _ = module.get_params()
    return {name: values[name].asnumpy() - new[name].asnumpy() for name in params(sym)}


def params(sym):
    return [name for name in sym.list_arguments() if name not in ("data", "softmax_label")]


def test_carried_errors_of_weights_are_those_that_a_module_trains_with():
    sym = network()
    values = values_of(sym, data=(4, 3, 6, 6), softmax_label=(4,))
    values["softmax_label"] = mx.nd.array([0, 1, 2, 0])
    found = measure(sym, "O1", values, ("data", "softmax_label"))
    exact = gradients(sym, values, None)
    low = gradients(sym, values, "O1,loss_scale=1024")
    for name in ("conv", "scores"):
        of_weight = ratio(low[f"{name}_weight"], exact[f"{name}_weight"])
        assert of_weight > 1e-5
        assert found[name].gradient_carried >= of_weight * 0.98  # the worst of the weight's and the data's
    assert found["conv"].gradient_carried < 20 * ratio(low["conv_weight"], exact["conv_weight"])
    assert found["softmax"].gradient_own == 0 < found["softmax"].gradient_carried


def test_a_gradient_that_leaves_the_range_is_infinite_and_smaller_scales_keep_it():
    sym = dense_relu()
    values = values_of(sym, scale=8.0, data=(3, 4))
    assert math.isinf(gradients_of(sym, "O2", values, squares, 2.0**15)["second"].gradient_own)
    found = gradients_of(sym, "O2", values, squares, 2.0**-8)
    assert max(errors.gradient_own for errors in found.values()) < 1e-2


def test_gradients_that_vanish_are_an_error_of_1_without_a_scale_and_none_with_it():
    sym, tiny = dense_relu(), 1e-9
    values = values_of(sym, data=(3, 4))

    def loss(outputs):
        return [each * tiny for each in squares(outputs)]

    assert gradients_of(sym, "O2", values, loss, 1.0)["second"].gradient_own == pytest.approx(1.0, abs=0.01)
    assert gradients_of(sym, "O2", values, loss, 2.0**30)["second"].gradient_own < 1e-2


def test_a_residual_sum_gets_the_gradients_of_all_of_its_readers():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="first")
    both = mx.sym.elemwise_add(data, mx.sym.FullyConnected(data, num_hidden=4, no_bias=True, name="side"), name="both")
    sym = mx.sym.Group([both, mx.sym.relu(both, name="relu")])
    values = values_of(sym, data=(3, 4))
    found = gradients_of(sym, "O3", values, squares)
    x, w, v = (values[name].asnumpy() for name in ("data", "first_weight", "side_weight"))
    both = x @ w.T + x @ w.T @ v.T
    seed = 2 * both + 2 * np.maximum(both, 0)
    assert found["both"].gradient_own == pytest.approx(ratio(half(seed * SCALE) / SCALE, seed), rel=0.02)


def test_gradients_of_a_loop_are_compared_as_a_whole():
    found = gradients_of(loop(), "O2", values_of(loop(), data=(3, 2, 4)), squares, 16.0)
    (whole,) = (errors for name, errors in found.items() if "foreach" in name)
    assert 1e-5 < whole.gradient_own < 1e-2 and 1e-5 < whole.gradient_carried < 1e-2


def test_indices_and_labels_have_no_gradient():
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=5, output_dim=4, name="embed")
    sym = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(words, num_hidden=3, name="scores"), name="softmax")
    values = {**values_of(sym, data=(2, 3), softmax_label=(2,)), "data": mx.nd.array([[0, 1, 2], [3, 4, 0]])}
    found = measure(sym, "O2", {**values, "softmax_label": mx.nd.array([0, 2])}, ("data", "softmax_label"))
    assert all(errors.gradient_carried < 1e-2 for errors in found.values()) and "embed" in found


def test_a_loss_that_does_not_depend_on_the_network_is_refused():
    sym = dense_relu()
    with pytest.raises(ConvertError, match="gradients: MXNet cannot run the network backward"):
        gradients_of(sym, "O2", values_of(sym, data=(3, 4)), lambda outputs: [mx.nd.ones(1)])


@pytest.mark.parametrize("op", ["Convolution", "broadcast_add"])
def test_a_gradient_that_is_0_but_for_rounding_is_measured_against_its_terms(op):
    """BatchNorm takes away the mean of each channel, and so what a bias before it adds."""
    bias = mx.sym.var("bias", shape=(1, 4, 1, 1) if op == "broadcast_add" else (4,))
    given = {"no_bias": True} if op == "broadcast_add" else {"bias": bias}
    layer = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv", **given)
    if op == "broadcast_add":
        layer = mx.sym.broadcast_add(layer, bias, name="added")
    sym = mx.sym.relu(mx.sym.BatchNorm(layer, fix_gamma=False, name="norm"))
    values = values_of(sym, data=(8, 3, 10, 10))
    found = gradients_of(sym, "O2", values, squares)["conv" if op == "Convolution" else "added"]
    assert 1e-5 < found.gradient_own < 2e-3 and found.gradient_carried < 0.1


def test_a_small_gradient_of_a_bias_that_is_no_rounding_has_its_own_error():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    values = values_of(sym, data=(400, 3))
    signs = mx.nd.array(np.where(np.arange(400) % 2, 1.0, -0.99).reshape(-1, 1) * (1 + 2.0**-12))

    def loss(outputs):
        return [(outputs * signs).sum()]

    terms = signs.asnumpy().astype(np.float64)
    expected = abs(half(terms.astype("float32")).sum() - terms.sum()) / abs(terms.sum())
    assert gradients_of(sym, "O2", values, loss)["fc"].gradient_own == pytest.approx(expected, rel=0.1)
