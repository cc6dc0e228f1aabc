"""Errors of gradients: own and carried, against numpy and against gradients of networks that MXNet runs."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import ConvertError
from mxmp.module import Module
from mxmp.probe.gradient_errors import GradientErrors
from mxmp.symbol import convert_model
from tests.probe.test_node_errors import half, loop, ratio, values_of

SCALE = 256.0


def measure(sym, values, policy="O2", data=("data",), scale=SCALE, loss=None):
    """Return the errors by name."""
    states = set(sym.list_auxiliary_states())
    args = {name: array for name, array in values.items() if name not in (*states, *data)}
    aux = {name: values[name] for name in states}
    decisions = convert_model(sym, args, aux, policy, {name: values[name].shape for name in data}).decisions
    found = GradientErrors(decisions, mx.cpu())(values, loss, scale)
    return {decisions.before.nodes[position].name: errors for position, errors in found.items()}


def squares(outputs):
    return [(output**2).sum() for output in outputs]


def chain():
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    return mx.sym.FullyConnected(mx.sym.relu(first, name="relu"), num_hidden=2, no_bias=True, name="second")


def test_errors_of_two_layers_are_those_of_numpy():
    sym = chain()
    values = values_of(sym, data=(3, 4))
    x, w, v = (values[name].asnumpy() for name in ("data", "first_weight", "second_weight"))
    found = measure(sym, values, loss=squares)

    def low(array):
        return half(array * SCALE) / SCALE

    hidden = np.maximum(x @ w.T, 0)
    seed = 2 * hidden @ v.T
    own = [ratio(low(low(seed) @ half(v)), seed @ v), ratio(low(low(seed).T @ half(hidden)), seed.T @ hidden)]
    assert found["second"].own == pytest.approx(max(own), rel=0.02)
    given = (seed @ v) * (hidden > 0)
    own = [ratio(low(low(given) @ half(w)), given @ w), ratio(low(low(given).T @ half(x)), given.T @ x)]
    assert found["first"].own == pytest.approx(max(own), rel=0.02)
    below = half(np.maximum(half(half(x) @ half(w).T), 0))
    seed_low = low(2 * half(below @ half(v).T))
    given_low = low(seed_low @ half(v)) * (below > 0)
    carried = [ratio(low(given_low @ half(w)), given @ w), ratio(low(given_low.T @ half(x)), given.T @ x)]
    assert found["first"].carried == pytest.approx(max(carried), rel=0.02)


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
    found = measure(sym, values, "O1", data=("data", "softmax_label"))
    exact = gradients(sym, values, None)
    low = gradients(sym, values, f"O1,loss_scale={SCALE}")
    for name in ("conv", "scores"):
        of_weight = ratio(low[f"{name}_weight"], exact[f"{name}_weight"])
        assert of_weight > 1e-5
        assert found[name].carried >= of_weight * 0.98  # the worst of the weight's and the data's
    assert found["conv"].carried < 20 * ratio(low["conv_weight"], exact["conv_weight"])
    assert found["softmax"].own == 0 < found["softmax"].carried


def test_a_gradient_that_leaves_the_range_is_infinite_and_smaller_scales_keep_it():
    sym = chain()
    values = values_of(sym, scale=8.0, data=(3, 4))
    assert math.isinf(measure(sym, values, scale=2.0**15, loss=squares)["second"].own)
    found = measure(sym, values, scale=2.0**-8, loss=squares)
    assert max(errors.own for errors in found.values()) < 1e-2


def test_gradients_that_vanish_are_an_error_of_1_without_a_scale_and_none_with_it():
    sym, tiny = chain(), 1e-9
    values = values_of(sym, data=(3, 4))

    def loss(outputs):
        return [each * tiny for each in squares(outputs)]

    assert measure(sym, values, scale=1.0, loss=loss)["second"].own == pytest.approx(1.0, abs=0.01)
    assert measure(sym, values, scale=2.0**30, loss=loss)["second"].own < 1e-2


def test_a_residual_sum_gets_the_gradients_of_all_of_its_readers():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="first")
    both = mx.sym.elemwise_add(data, mx.sym.FullyConnected(data, num_hidden=4, no_bias=True, name="side"), name="both")
    sym = mx.sym.Group([both, mx.sym.relu(both, name="relu")])
    values = values_of(sym, data=(3, 4))
    found = measure(sym, values, "O3", loss=squares)
    x, w, v = (values[name].asnumpy() for name in ("data", "first_weight", "side_weight"))
    both = x @ w.T + x @ w.T @ v.T
    seed = 2 * both + 2 * np.maximum(both, 0)
    assert found["both"].own == pytest.approx(ratio(half(seed * SCALE) / SCALE, seed), rel=0.02)


def test_a_loop_is_compared_as_a_whole():
    found = measure(loop(), values_of(loop(), data=(3, 2, 4)), scale=16.0, loss=squares)
    (whole,) = (errors for name, errors in found.items() if "foreach" in name)
    assert 1e-5 < whole.own < 1e-2 and 1e-5 < whole.carried < 1e-2


def test_indices_and_labels_have_no_gradient():
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=5, output_dim=4, name="embed")
    sym = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(words, num_hidden=3, name="scores"), name="softmax")
    values = {**values_of(sym, data=(2, 3), softmax_label=(2,)), "data": mx.nd.array([[0, 1, 2], [3, 4, 0]])}
    found = measure(sym, {**values, "softmax_label": mx.nd.array([0, 2])}, data=("data", "softmax_label"))
    assert all(errors.carried < 1e-2 for errors in found.values()) and "embed" in found


def test_nothing_that_is_given_changes():
    sym = network()
    values = values_of(sym, data=(4, 3, 6, 6), softmax_label=(4,))
    values["conv_weight"].attach_grad()
    before = {name: array.asnumpy() for name, array in values.items()}
    measure(sym, values, data=("data", "softmax_label"))
    assert all((values[name].asnumpy() == before[name]).all() for name in values)
    assert not values["conv_weight"].grad.asnumpy().any()


def test_a_loss_that_does_not_depend_on_the_network_is_refused():
    sym = chain()
    with pytest.raises(ConvertError, match="gradients: MXNet cannot run the network backward"):
        measure(sym, values_of(sym, data=(3, 4)), loss=lambda outputs: [mx.nd.ones(1)])


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
    found = measure(sym, values, "O2", loss=squares)["conv" if op == "Convolution" else "added"]
    assert 1e-5 < found.own < 2e-3 and found.carried < 0.1


def test_a_small_gradient_of_a_bias_that_is_no_rounding_has_its_own_error():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    values = values_of(sym, data=(400, 3))
    signs = mx.nd.array(np.where(np.arange(400) % 2, 1.0, -0.99).reshape(-1, 1) * (1 + 2.0**-12))

    def loss(outputs):
        return [(outputs[0] * signs).sum()]

    terms = signs.asnumpy().astype(np.float64)
    expected = abs(half(terms.astype("float32")).sum() - terms.sum()) / abs(terms.sum())
    assert measure(sym, values, "O2", loss=loss)["fc"].own == pytest.approx(expected, rel=0.1)
