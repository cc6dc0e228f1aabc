"""Gradients of activations by magnitude, held to numpy."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import measure_gradients
from mxmp.errors import ConvertError
from mxmp.symbol import convert_model
from symbols import get_symbol

RNG = np.random.RandomState(0)
X = RNG.randn(5, 4).astype(np.float32)
WEIGHTS = {"a_weight": RNG.randn(6, 4).astype(np.float32), "b_weight": RNG.randn(3, 6).astype(np.float32)}
LABELS = np.array([0, 2, 1, 1, 0], np.float32)


def network():
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="a")
    hidden = mx.sym.Activation(hidden, act_type="relu", name="relu")
    logits = mx.sym.FullyConnected(hidden, num_hidden=3, no_bias=True, name="b")
    return mx.sym.SoftmaxOutput(logits, name="softmax")


def params():
    return {name: mx.nd.array(value) for name, value in WEIGHTS.items()}


def batch():
    return {"data": mx.nd.array(X), "softmax_label": mx.nd.array(LABELS)}


def expected():
    """Return the gradients of logits, ReLU's output and its input."""
    hidden = X @ WEIGHTS["a_weight"].T
    logits = np.maximum(hidden, 0) @ WEIGHTS["b_weight"].T
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    error = probabilities - np.eye(3)[LABELS.astype(int)]
    back = error @ WEIGHTS["b_weight"]
    return {"b_output": error, "relu_output": back, "a_output": back * (hidden > 0)}


def test_gradients_are_those_of_numpy():
    found = measure_gradients(network(), params(), {}, [batch()])
    assert set(found) == set(expected())
    for name, gradient in expected().items():
        size = np.abs(gradient)
        assert found[name].zeros == (size == 0).sum()
        assert found[name].total == (size > 0).sum()
        assert found[name].largest == pytest.approx(size.max(), rel=1e-5)
        exponents, counts = np.unique(np.ceil(np.log2(size[size > 0])), return_counts=True)
        assert found[name].counts == {int(e): c for e, c in zip(exponents, counts)}


def test_batches_are_counted_together_and_an_iterator_brings_its_labels():
    once = measure_gradients(network(), params(), {}, [batch()])
    twice = measure_gradients(network(), params(), {}, [batch(), batch()])
    read = measure_gradients(network(), params(), {}, mx.io.NDArrayIter(X, LABELS, 5))
    assert {name: 2 * each.total for name, each in once.items()} == {name: each.total for name, each in twice.items()}
    assert {name: vars(each) for name, each in read.items()} == {name: vars(each) for name, each in once.items()}


def test_a_converted_network_is_measured_in_float32():
    converted = convert_model(network(), params(), {}, "O1")
    found = measure_gradients(converted.symbol, converted.arg_params, {}, [batch()])
    plain = measure_gradients(network(), params(), {}, [batch()])
    assert {name: vars(each) for name, each in found.items()} == {name: vars(each) for name, each in plain.items()}


def test_a_residual_network_is_measured_and_keeps_its_statistics():
    symbol = get_symbol("cifar_resnet20_v1", num_classes=10)
    data = {"data": mx.nd.array(RNG.randn(2, 3, 32, 32)), "softmax_label": mx.nd.array([1, 2])}
    sizes, _, aux = symbol.infer_shape(**{name: array.shape for name, array in data.items()})
    args = {n: mx.nd.array(0.1 * RNG.randn(*s)) for n, s in zip(symbol.list_arguments(), sizes) if n not in data}
    states = {n: mx.nd.ones(s) for n, s in zip(symbol.list_auxiliary_states(), aux)}
    found = measure_gradients(symbol, args, states, [data])
    operators = [name for name in symbol.get_internals().list_outputs() if name.endswith("_output")]
    assert set(operators) - set(found) == {"softmax_output"}  # which nothing reads
    assert all((array.asnumpy() == 1).all() for array in states.values())


def test_what_has_no_gradient_is_left_out():
    softmax = network()
    aside = mx.sym.FullyConnected(softmax.get_internals()["data"], num_hidden=4, no_bias=True, name="c")
    read_again = mx.sym.BlockGrad(softmax * 2)
    both = mx.sym.Group([softmax, mx.sym.BlockGrad(aside), read_again])
    found = measure_gradients(both, {**params(), "c_weight": mx.nd.ones((4, 4))}, {}, [batch()])
    assert set(found) == set(expected())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "batches is empty"),
        ([{"data": mx.nd.array(X)}], "lacks the input 'softmax_label'"),
        (["text"], "holds a str"),
    ],
)
def test_bad_batches_are_refused(batches, message):
    with pytest.raises(ConvertError, match=message):
        measure_gradients(network(), params(), {}, batches)


def test_a_network_in_float16_is_measured_in_float32():
    low = {name: array.astype("float16") for name, array in params().items()}
    found = measure_gradients(network(), low, {}, [{name: array.astype("float16") for name, array in batch().items()}])
    wide = {name: array.astype("float32") for name, array in low.items()}
    rounded = {name: array.astype("float16").astype("float32") for name, array in batch().items()}
    expected = measure_gradients(network(), wide, {}, [rounded])
    assert {name: vars(each) for name, each in found.items()} == {name: vars(each) for name, each in expected.items()}


def test_a_network_without_an_activation_is_refused():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="a")
    with pytest.raises(ConvertError, match="no output in floating point that an operator reads"):
        measure_gradients(symbol, {"a_weight": mx.nd.ones((4, 4))}, {}, [{"data": mx.nd.ones((1, 4))}])


def test_gradients_that_mxnet_leaves_unwritten_are_left_out():
    """MultiBoxTarget writes none for the anchors: what is found there was in memory before."""
    symbol = get_symbol("ssd96_resnet8", num_classes=3)
    data = {"data": mx.nd.array(RNG.randn(1, 3, 32, 32)), "label": mx.nd.array([[[1, 0.1, 0.1, 0.6, 0.7]]])}
    sizes, _, aux = symbol.infer_shape(**{name: array.shape for name, array in data.items()})
    args = {n: mx.nd.array(0.1 * RNG.randn(*s)) for n, s in zip(symbol.list_arguments(), sizes) if n not in data}
    found = measure_gradients(
        symbol, args, {n: mx.nd.ones(s) for n, s in zip(symbol.list_auxiliary_states(), aux)}, [data]
    )
    assert {"cls_preds_output", "loc_preds_output"} < set(found)
    assert not [name for name in found if "anchors" in name or "target" in name]
