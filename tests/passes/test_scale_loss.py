"""Loss heads with a loss scale: same values, scaled gradients."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.passes import EraseCasts, Facts, ScaleLoss
from mxmp.policy import Policy
from mxmp.rules import RULES
from mxmp.symbol import convert_graph, from_graph, to_graph
from tests.graph.text import from_text, to_text
from tests.rules.examples import EXAMPLES
from tests.rules.run_examples import build

TWO_HEADS = """
x = null()
label = null()
soft = SoftmaxOutput(x, label)
e = exp(x)
loss = MakeLoss(e)
shown = BlockGrad(e)
return soft, loss, shown
"""

SCALED = """
x = null()
label = null()
loss_scale = null() {__dtype__: 0; __shape__: (1,)}
soft_sign = _contrib_sign_ste(x) {__mxmp__: loss_scale}
soft_scaled_sign = broadcast_mul(soft_sign, loss_scale) {__mxmp__: loss_scale}
soft_value_of_sign = BlockGrad(soft_scaled_sign) {__mxmp__: loss_scale}
soft_zero = elemwise_sub(soft_scaled_sign, soft_value_of_sign) {__mxmp__: loss_scale}
soft_value = BlockGrad(x) {__mxmp__: loss_scale}
soft_scaled = elemwise_add(soft_value, soft_zero) {__mxmp__: loss_scale}
soft = SoftmaxOutput(soft_scaled, label)
e = exp(x)
loss_sign = _contrib_sign_ste(e) {__mxmp__: loss_scale}
loss_scaled_sign = broadcast_mul(loss_sign, loss_scale) {__mxmp__: loss_scale}
loss_value_of_sign = BlockGrad(loss_scaled_sign) {__mxmp__: loss_scale}
loss_zero = elemwise_sub(loss_scaled_sign, loss_value_of_sign) {__mxmp__: loss_scale}
loss_value = BlockGrad(e) {__mxmp__: loss_scale}
loss_scaled = elemwise_add(loss_value, loss_zero) {__mxmp__: loss_scale}
loss = MakeLoss(loss_scaled)
shown = BlockGrad(e)
return soft, loss, shown
"""


def test_every_head_reads_one_scale():
    assert to_text(ScaleLoss()(from_text(TWO_HEADS)).graph) == SCALED.strip()


def test_heads_of_one_tensor_share_its_scaling():
    text = "x = null()\na = make_loss(x)\nb = MakeLoss(x)\nreturn a, b"
    nodes = ScaleLoss()(from_text(text)).graph.nodes
    assert [node.op for node in nodes].count("broadcast_mul") == 1
    assert nodes[-1].inputs == nodes[-2].inputs


def starts_a_gradient(example):
    """Return whether a call gives a gradient although none comes from its outputs."""
    symbol = build(example, "float32")
    inputs = {f"in{port}": mx.nd.array(array) for port, array in enumerate(example.arrays())}
    names = [f"in{port}" for port in example.data_ports]
    gradients = {name: mx.nd.zeros(inputs[name].shape) for name in names}
    executor = symbol.bind(
        mx.cpu(),
        {name: inputs[name] for name in symbol.list_arguments()},
        gradients,
        {name: "write" if name in names else "null" for name in symbol.list_arguments()},
        {name: inputs[name] for name in symbol.list_auxiliary_states()},
    )
    if "_head_grad_" in executor.debug_str():  # the backward graph reads the gradient of an output
        return False
    executor.forward(is_train=True)
    executor.backward()
    return any(np.any(gradient.asnumpy()) for gradient in gradients.values())


def test_the_loss_heads_are_those_that_ignore_the_gradient_of_their_output():
    """MXNet itself is asked, for every operator that has a rule."""
    examples = [e for e in EXAMPLES if e.differentiable and e.data_ports]
    assert len({e.op for e in examples}) > 80
    assert {e.op for e in examples if starts_a_gradient(e)} == {rule.op for rule in RULES if rule.loss_head}


def heads():
    x, label = mx.sym.var("x"), mx.sym.var("label")
    return {
        "SoftmaxOutput": mx.sym.SoftmaxOutput(x, label),
        "LinearRegressionOutput": mx.sym.LinearRegressionOutput(x, label),
        "LogisticRegressionOutput": mx.sym.LogisticRegressionOutput(x, label),
        "MAERegressionOutput": mx.sym.MAERegressionOutput(x, label),
        "SVMOutput": mx.sym.SVMOutput(x, label),
        "MakeLoss": mx.sym.MakeLoss(mx.sym.square(x - label), grad_scale=0.3),
        "make_loss": mx.sym.make_loss(mx.sym.square(x - label)),
    }


def run(symbol, x, label, scale=None):
    """Return output and gradient of x from plain executors."""
    args = {"x": mx.nd.array(x), "label": mx.nd.array(label)}
    if scale is not None:
        args["loss_scale"] = mx.nd.array([scale])
    grads = {"x": mx.nd.zeros(x.shape)}
    executor = symbol.bind(mx.cpu(), args, grads, {n: "write" if n == "x" else "null" for n in args})
    (output,) = executor.forward(is_train=True)
    executor.backward()
    return output.asnumpy(), grads["x"].asnumpy()


def values(name):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 4)).astype(np.float32) * 3
    return x, rng.integers(0, 4, 5) if name in ("SoftmaxOutput", "SVMOutput") else rng.normal(size=(5, 4))


@pytest.mark.parametrize("exponent", [-5, 0, 7, 16, 24])
@pytest.mark.parametrize("name", heads())
def test_values_are_exact_and_gradients_scaled_bit_for_bit(name, exponent):
    symbol, (x, label) = heads()[name], values(name)
    scaled = from_graph(ScaleLoss()(to_graph(symbol)).graph)
    output, gradient = run(symbol, x, label)
    found, scaled_gradient = run(scaled, x, label, 2.0**exponent)
    assert found.tobytes() == output.tobytes()
    assert np.any(gradient)
    assert np.array_equal(scaled_gradient, np.ldexp(gradient, exponent))


@pytest.mark.parametrize("name", heads())
def test_values_that_are_not_finite_pass_unchanged(name):
    """A logit of -inf is a mask: its probability is 0 and the other gradients are what they were."""
    symbol, (x, label) = heads()[name], values(name)
    x[0, 1], x[1, 2], x[2, 0], x[3, 3] = -np.inf, np.inf, np.nan, 3e38
    scaled = from_graph(ScaleLoss()(to_graph(symbol)).graph)
    output, gradient = run(symbol, x, label)
    found, scaled_gradient = run(scaled, x, label, 8)
    assert np.array_equal(found, output, equal_nan=True)
    with np.errstate(over="ignore"):
        assert np.array_equal(scaled_gradient, gradient * 8, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "loss", "expected"),
    [
        ("float16", "MakeLoss(low) {grad_scale: 0.5}", 2.0**15),
        pytest.param("bfloat16", "make_loss(low)", 2.0**16, marks=pytest.mark.bfloat16),
    ],
    ids=["float16", "bfloat16"],
)
def test_a_low_precision_head_is_scaled_in_float32(dtype, loss, expected):
    """2**16 is no float16 number, but half of it is what the gradient has to be."""
    graph = from_text(f"x = null()\nlow = amp_cast(x) {{dtype: {dtype}}}\nloss = {loss}\nreturn loss")
    symbol = from_graph(ScaleLoss(Facts({(0, 0): "float32", (1, 0): dtype}))(graph).graph)
    grad = mx.nd.zeros((2,))
    args = {"x": mx.nd.array([1.0, 2.0]), "loss_scale": mx.nd.array([2.0**16])}
    executor = symbol.bind(mx.cpu(), args, {"x": grad}, {"x": "write", "loss_scale": "null"})
    executor.forward(is_train=True)
    executor.backward()
    assert grad.asnumpy().tolist() == [expected] * 2


@pytest.mark.parametrize("policy", ["O1", "O2", "float32"])
def test_erasing_restores_the_network(policy):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(mx.sym.LeakyReLU(data, name="act"), name="softmax")
    found = convert_graph(symbol, Policy.parse(policy), {"data": (2, 8)}, params=frozenset(["fc_weight", "fc_bias"]))
    scaled = ScaleLoss(found.facts)(found.graph).graph
    restored = from_graph(EraseCasts()(scaled).graph)
    assert json.loads(restored.tojson(remove_amp_cast=False)) == json.loads(symbol.tojson(remove_amp_cast=False))
    trained = from_graph(scaled)
    assert trained.list_outputs() == symbol.list_outputs()
    assert [a for a in trained.list_arguments() if a != "loss_scale"] == symbol.list_arguments()


def test_a_custom_operator_is_a_head_if_the_user_says_so():
    graph = from_text("x = null()\nc = Custom(x) {op_type: mine}\nreturn c")
    scaled = ScaleLoss(custom=frozenset(["c"]))(graph).graph
    assert scaled.nodes[scaled.nodes[-1].inputs[0].node].name == "c_scaled"
