"""Loss heads with a loss scale: same values, scaled gradients."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.passes import Facts, ScaleLoss
from mxmp.rules import RULES
from mxmp.symbol import from_graph, to_graph
from tests.graph.text import from_text, to_text
from tests.passes.graphs import step
from tests.rules.op_examples import EXAMPLES
from tests.rules.run_examples import Bound

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
    nodes = ScaleLoss()(from_text("x = null()\na = make_loss(x)\nb = MakeLoss(x)\nreturn a, b")).graph.nodes
    assert [node.op for node in nodes].count("broadcast_mul") == 1 and nodes[-1].inputs == nodes[-2].inputs


def test_the_loss_heads_are_those_that_ignore_the_gradient_of_their_output():
    """MXNet itself is asked, for every operator that has a rule: which gives a gradient although it gets none."""
    found = set()
    for example in EXAMPLES:
        if example.differentiable and example.data_ports:
            bound = Bound(example, "float32")
            if "_head_grad_" not in bound.executor.debug_str():  # no backward operator reads the gradient of an output
                found |= {example.op for gradient in bound.run(example.arrays(), np.zeros_like)[1] if np.any(gradient)}
    assert found == {rule.op for rule in RULES if rule.loss_head}


X, LABEL = mx.sym.var("x"), mx.sym.var("label")
HEADS = {
    "SoftmaxOutput": mx.sym.SoftmaxOutput(X, LABEL),
    "LinearRegressionOutput": mx.sym.LinearRegressionOutput(X, LABEL),
    "LogisticRegressionOutput": mx.sym.LogisticRegressionOutput(X, LABEL),
    "MAERegressionOutput": mx.sym.MAERegressionOutput(X, LABEL),
    "SVMOutput": mx.sym.SVMOutput(X, LABEL),
    "MakeLoss": mx.sym.MakeLoss(mx.sym.square(X - LABEL), grad_scale=0.3),
    "make_loss": mx.sym.make_loss(mx.sym.square(X - LABEL)),
}


@pytest.mark.parametrize("name", HEADS)
def test_values_are_exact_and_gradients_scaled_bit_for_bit(name):
    """Also of what is not finite: a logit of -inf is a mask, and the other gradients are what they were."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(5, 4)) * 3, rng.normal(size=(5, 4))
    y = rng.integers(0, 4, 5) if name in ("SoftmaxOutput", "SVMOutput") else y
    wide = x.copy()
    wide[0, 1], wide[1, 2], wide[2, 0], wide[3, 3] = -np.inf, np.inf, np.nan, 3e38
    scaled = from_graph(ScaleLoss()(to_graph(HEADS[name])).graph)
    for data, exponent in [*((x, exponent) for exponent in (-5, 0, 7, 16, 24)), (wide, 3)]:
        inputs = {"x": data, "label": y}
        (output,), gradients = step(HEADS[name], inputs, wrt=["x"])
        (found,), scaled_gradients = step(scaled, {**inputs, "loss_scale": [2.0**exponent]}, wrt=["x"])
        np.testing.assert_array_equal(found, output)
        assert np.any(gradients["x"])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(scaled_gradients["x"], np.ldexp(gradients["x"], exponent))


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
    _, gradients = step(symbol, {"x": [1.0, 2.0], "loss_scale": [2.0**16]}, wrt=["x"])
    assert gradients["x"].tolist() == [expected] * 2


def test_a_custom_operator_is_a_head_if_the_user_says_so():
    graph = from_text("x = null()\nc = Custom(x) {op_type: mine}\nreturn c")
    scaled = ScaleLoss(custom=frozenset(["c"]))(graph).graph
    assert scaled.nodes[scaled.nodes[-1].inputs[0].node].name == "c_scaled"
