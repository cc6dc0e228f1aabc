"""The Gluon model and the symbol are one model."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from examples.word_lm.model import LanguageModel, symbol_generator
from examples.word_lm.states import begin
from tests.examples.word_lm.small import HIDDEN, LAYERS, arrays, as_module, hyperparameters, learner

VOCABULARY, N, T = 6, 3, 5


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_symbol_and_gluon_model_give_the_same(tied):
    given = hyperparameters(tied=tied)
    rng = np.random.RandomState(0)
    words, following = (mx.nd.array(rng.randint(0, VOCABULARY, (N, T))) for _ in range(2))
    states = [mx.nd.array(rng.uniform(-1, 1, (LAYERS, N, HIDDEN))) for _ in range(2)]
    net = LanguageModel(VOCABULARY, given)
    net.initialize(mx.init.Uniform(0.5))
    with autograd.record():
        logits, *expected_states = net(words, *states)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(logits, following)
    loss.backward()
    symbol, data_names, (label_name,) = symbol_generator(VOCABULARY, given)(T)
    inputs = {**dict(zip(data_names, [words, *states])), label_name: following}
    weights = as_module({name: param.data().asnumpy() for name, param in net.collect_params().items()})
    request = {name: "write" if name in weights else "null" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=request, **{name: array.shape for name, array in inputs.items()})
    executor.copy_params_from({name: mx.nd.array(value) for name, value in weights.items()})
    probabilities, *found_states = executor.forward(is_train=True, **inputs)
    executor.backward()
    expected = mx.nd.softmax(logits).asnumpy().reshape(N * T, VOCABULARY)
    np.testing.assert_allclose(probabilities.asnumpy(), expected, rtol=1e-5)
    for found, state in zip(found_states, expected_states):
        np.testing.assert_allclose(found.asnumpy(), state.asnumpy(), rtol=1e-5, atol=1e-6)
    slopes = as_module({name: param.grad().asnumpy() for name, param in net.collect_params().items()})
    assert set(slopes) == set(weights)
    for name, slope in slopes.items():
        np.testing.assert_allclose(executor.grad_dict[name].asnumpy(), slope, rtol=1e-4, atol=1e-6, err_msg=name)


def test_no_gradient_flows_through_the_states_that_come_out():
    symbol, data_names, _ = symbol_generator(VOCABULARY, hyperparameters())(T)
    shapes = dict(zip(data_names, [(N, T), *[state.shape for state in begin(LAYERS, N, HIDDEN, mx.cpu())]]))
    request = {name: "write" if name == "lstm_parameters" else "null" for name in symbol.list_arguments()}
    executor = symbol.simple_bind(mx.cpu(), grad_req=request, softmax_label=(N, T), **shapes)
    for name, array in executor.arg_dict.items():
        array[:] = mx.nd.random.uniform(-1, 1, array.shape) if name not in ("data", "softmax_label") else 1
    slopes = []
    for factor in (0, 1000):
        outputs = executor.forward(is_train=True)
        executor.backward([mx.nd.ones(outputs[0].shape), *(factor * mx.nd.ones(each.shape) for each in outputs[1:])])
        slopes.append(executor.grad_dict["lstm_parameters"].asnumpy())
    assert slopes[0].any()
    np.testing.assert_array_equal(*slopes)


def test_both_start_from_weights_of_one_distribution():
    def pieces(found):
        cell = mx.rnn.FusedRNNCell(HIDDEN, LAYERS, mode="lstm", prefix="lstm_")
        return cell.unpack_weights({name: mx.nd.array(value) for name, value in found.items()})

    gluon_weights = pieces(as_module(arrays(learner("gluon")[0])))
    module_weights = pieces(arrays(learner("module")[0]))
    assert set(gluon_weights) == set(module_weights)
    for found in (gluon_weights, module_weights):
        values = {name: array.asnumpy() for name, array in found.items()}
        weights = np.concatenate([value.ravel() for name, value in values.items() if name.endswith("weight")])
        # 1072 values: of a uniform distribution, four deviations of the mean and of the mean square.
        assert abs(weights).max() <= 0.1 and abs(weights.mean()) < 4 * 0.0577 / np.sqrt(weights.size)
        assert weights.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.06)
        for layer in range(LAYERS):
            for gate, bias in zip("ifco", (0, 1, 0, 0)):
                both = sum(values[f"lstm_l{layer}_{arm}_{gate}_bias"] for arm in ("i2h", "h2h"))
                np.testing.assert_array_equal(both, bias)
        assert not values["pred_bias"].any()
