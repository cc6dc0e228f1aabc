"""Verdicts on steps that fail for a reason that is known, and on healthy ones: none is invented."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from tests.diagnose.nets import (
    INF,
    NAN,
    PURE,
    SOFTMAX,
    Applied,
    attention,
    chain,
    data,
    dense,
    ended,
    layer,
    linear,
    looped,
    of_module,
    of_symbol,
    of_trainer,
)

X = mx.sym.var("data")
HIGH, RANGE, BROKEN, DATA, PARAMS = (
    "scale too high",
    "activation out of range",
    "float32 model broken",
    "data",
    "parameters",
)
HEALTHY = "no fault found"


HUNDREDS = mx.nd.full((4, 4), 100)


def root_of_zeros():
    return Applied(lambda F, x: F.sqrt(F.relu(x * 0 - 1), name="root") + 1)


def holding(value, shape=(4, 6), row=2):
    found = data(shape)
    found[row] = value
    return found


def with_norm(x, name="bn", **options):
    return mx.sym.BatchNorm(x, name=name, fix_gamma=False, **options)


FAILURES = {
    # Forward: out of float16's range whatever the scale.
    "squares": (
        lambda: of_symbol(
            ended(mx.sym.square(linear(X, "fc"), name="sq")), "O1,op:square=float16", params={"fc_bias": 300.0}
        ),
        RANGE,
        "sq",
    ),
    "exp": (
        lambda: of_symbol(ended(mx.sym.exp(linear(X, "fc"), name="e")), PURE, params={"fc_bias": 12.0}),
        RANGE,
        "e",
    ),
    "attention scores": (
        lambda: of_symbol(
            attention(factor=1000.0), "O1,op:batch_dot=float16", batch={"data": data((2, 5, 6), scale=10)}
        ),
        RANGE,
        "attention_scores",
    ),
    "a dense layer of a trainer": (
        lambda: of_trainer(dense(4, 2), data(scale=1e4), init=9.0),
        RANGE,
        "net_dense0_fwd",
    ),
    "several outputs": (
        lambda: of_trainer(
            Applied(lambda F, x: (x, F.square(x * 400, name="sq"))),
            mx.nd.ones((4, 6)),
            [mx.nd.zeros((4, 4))],
            lambda out, y: gluon.loss.L2Loss()(out[0], y[0]) + out[1].sum(axis=1),
            "O1,op:square=float16",
            watch_loss=False,
        ),
        RANGE,
        "net_sq",
    ),
    "a module": (
        lambda: of_module(
            ended(mx.sym.square(linear(X, "fc") * 500, name="sq")), "O1,op:square=float16", x=mx.nd.ones((4, 6)) * 3
        ),
        RANGE,
        "sq",
    ),
    "a loop": (
        lambda: of_symbol(
            looped(100.0), batch={"state": mx.nd.ones((6, 4)), "data": data((4, 6))}, params={"inner_weight": 1.0}
        ),
        RANGE,
        "_foreach",
    ),
    "the first of two blocks": (
        lambda: of_trainer(chain(layer("first", 1000.0), layer("second", 0.3)), HUNDREDS),
        RANGE,
        "first_fwd",
    ),
    "the second of two blocks": (
        lambda: of_trainer(chain(layer("first", 1.0), layer("second", 1000.0)), HUNDREDS, watch_loss=False),
        RANGE,
        "second_fwd",
    ),
    # Backward, at scale 1 already.
    "large weights, backward": (
        lambda: of_trainer(
            Applied(lambda F, x: F.FullyConnected(x * 1e-4, F.ones((2, 4)) * 6e4, num_hidden=2, no_bias=True) * 1e4),
            mx.nd.ones((4, 6)),
            policy="O1",
            scale=1.0001,
        ),
        "gradient out of range",
        "",
    ),
    # The scale.
    "scale 2**23, trainer": (lambda: of_trainer(dense(4, 2), data(), scale=2.0**24), HIGH, "net_dense1_fwd"),
    "scale too high by a factor of 2": (
        lambda: of_module(linear_head(), scale=2.0**16, x=mx.nd.ones((4, 6)), params={"last_weight": 1 / 6.0}),
        HIGH,
        "last",
    ),
    "scale 2**24, two blocks": (
        lambda: of_trainer(chain(layer("first", 0.3), layer("second", 0.3)), data((4, 4)), scale=2.0**24),
        HIGH,
        "second_fwd",
    ),
    "two contexts": (
        lambda: of_module(ended(linear(X, "fc")), scale=2.0**24, contexts=[mx.cpu(0), mx.cpu(1)]),
        HIGH,
        "last",
    ),
    # Float32 itself.
    "division by zero": (
        lambda: of_symbol(ended(mx.sym.broadcast_div(X, mx.sym.relu(-mx.sym.abs(X)), name="ratio"))),
        BROKEN,
        "ratio",
    ),
    "log of 0": (lambda: of_symbol(ended(mx.sym.log(mx.sym.relu(X), name="logarithm"))), BROKEN, "logarithm"),
    "sqrt backward at 0": (
        lambda: of_symbol(
            ended(mx.sym.sqrt(mx.sym.relu(linear(X, "fc"), name="zeros"), name="root")), params={"fc_bias": -50.0}
        ),
        BROKEN,
        "root",
    ),
    "0 * inf": (
        lambda: of_symbol(
            ended(mx.sym.broadcast_mul(mx.sym.zeros_like(X), mx.sym.exp(X * 200, name="e"), name="product"))
        ),
        BROKEN,
        "e",
    ),
    "weights of 1e30": (
        lambda: of_trainer(dense(4, 4, 2), data(), init=1e30),
        BROKEN,
        "net_dense1_fwd",
    ),
    "a loss of its own": (
        lambda: of_trainer(
            dense(4, 2), mx.nd.ones((4, 6)), None, lambda out, y: mx.nd.log(out - out), watch_loss=False
        ),
        BROKEN,
        "",
    ),
    "the second of two blocks, in float32": (
        lambda: of_trainer(chain(layer("first", 0.3), root_of_zeros()), HUNDREDS, policy="O1"),
        BROKEN,
        "net_root",
    ),
    # Data and parameters.
    "a NaN image, two blocks": (
        lambda: of_trainer(chain(layer("first", 0.3), layer("second", 0.3)), holding(NAN, (4, 4))),
        DATA,
        "data",
    ),
    "an inf label, two blocks": (
        lambda: of_trainer(chain(layer("first", 0.3), layer("second", 0.3)), HUNDREDS, holding(INF, (4, 4))),
        DATA,
        "label",
    ),
    "a NaN weight, two blocks": (
        lambda: of_trainer(
            chain(layer("first", 0.3), layer("second", 0.3)), HUNDREDS, before=lambda net: net[0].weight.set_data(mx.nd.full((4, 4), NAN))
        ),
        PARAMS,
        "first_weight",
    ),
    "a NaN image": (lambda: of_trainer(dense(4, 2), holding(NAN)), DATA, "data"),
    "an inf label, module": (
        lambda: of_module(ended(linear(X, "fc")), label=holding(INF, (4, 2))),
        DATA,
        "out_label",
    ),
    "a NaN weight": (
        lambda: of_trainer(dense(4, 2), data(), before=lambda net: net[0].weight.set_data(mx.nd.full((4, 6), NAN))),
        PARAMS,
        "net_dense0_weight",
    ),
    "an inf running mean": (
        lambda: of_symbol(
            ended(with_norm(linear(X, "fc"), use_global_stats=True)), params={"bn_moving_mean": INF, "bn_gamma": 1.0}
        ),
        PARAMS,
        "bn_moving_mean",
    ),
}


def linear_head():
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(X, num_hidden=1, no_bias=True, name="last"), name="out")


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_gets_its_verdict_and_names_the_node(name):
    make, kind, node = FAILURES[name]
    verdict = make()
    assert (verdict.kind, verdict.node is not None) == (kind, True), verdict
    assert verdict.node.name.startswith(node), verdict


def test_a_cast_is_mended_by_keeping_what_it_casts_and_scales_below_1_are_tried():
    steep = of_trainer(dense(2), mx.nd.ones((4, 6)), None, lambda out, y: out * 1e6, watch_loss=False, scale=1.0001)
    assert steep.node.keep == ("net_dense0_fwd",) and steep.finite_scale == 1 / 64 and "at 0.015625" in steep.text


@pytest.mark.parametrize("scale", [2.0**16, 2.0**15, 2.0**14])
def test_the_largest_scale_is_named_at_which_the_step_is_finite(scale):
    """The scale falls by a factor of 8 first, then grows by 4 or 2."""
    high = of_module(linear_head(), scale=scale, x=mx.nd.ones((4, 6)), params={"last_weight": 1 / 6.0})
    assert high.kind == HIGH and high.scale == scale
    assert high.finite_scale == 2.0**13


def conv_net():
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(4, 3, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.MaxPool2D(), gluon.nn.Dense(3))
    return net


MASK = np.triu(np.full((1, 5, 5), -INF, np.float32), 1)


def constant_mask():
    row = mx.sym.reshape(mx.sym.arange(0, 5), shape=(1, 5, 1))
    column = mx.sym.reshape(mx.sym.arange(0, 5), shape=(1, 1, 5))
    hidden = mx.sym.broadcast_greater(column, row)
    return mx.sym.where(hidden, mx.sym.ones((1, 5, 5)) * -INF, mx.sym.zeros((1, 5, 5)))


SOUND = {
    "digits MLP": lambda: of_trainer(dense(16, 10), data((8, 64)), mx.nd.arange(8), SOFTMAX, init=mx.init.Xavier()),
    "digits MLP in O3": lambda: of_trainer(
        dense(16, 10), data((8, 64)), mx.nd.arange(8), SOFTMAX, "O3", init=mx.init.Xavier()
    ),
    "float32": lambda: of_symbol(ended(linear(X, "fc")), "O0"),
    "conv net with BatchNorm": lambda: of_trainer(
        conv_net(), data((4, 3, 8, 8)), mx.nd.arange(4) % 3, SOFTMAX, init=mx.init.Xavier()
    ),
    "two blocks": lambda: of_trainer(chain(layer("first", 0.3), layer("second", 0.3)), data((4, 4))),
    "LSTM": lambda: of_trainer(gluon.rnn.LSTM(8, prefix="net_"), data((5, 4, 6)), init=mx.init.Xavier()),
    "attention": lambda: of_symbol(attention(), "O1,op:batch_dot=float16", batch={"data": data((2, 5, 6))}),
    "attention, -inf mask given": lambda: of_symbol(
        attention(mx.sym.var("mask")), batch={"data": data((2, 5, 6)), "mask": mx.nd.array(MASK)}
    ),
    "attention, -inf mask in float16": lambda: of_symbol(
        attention(mx.sym.var("mask")),
        "O1,op:batch_dot=float16,op:broadcast_add=float16",
        batch={"data": data((2, 5, 6)), "mask": mx.nd.array(MASK)},
    ),
    "attention, constant -inf mask": lambda: of_symbol(attention(constant_mask()), batch={"data": data((2, 5, 6))}),
    "attention, -1e9 mask becomes -inf": lambda: of_symbol(
        attention(mx.sym.var("mask")),
        "O1,op:batch_dot=float16,op:broadcast_add=float16",
        batch={"data": data((2, 5, 6)), "mask": mx.nd.array(np.maximum(MASK, -1e9))},
    ),
    "values of 60000": lambda: of_symbol(
        ended(linear(X, "fc") * 1e-4), PURE, batch={"data": mx.nd.full((4, 6), 1e4)}, params={"fc_weight": 1.0}, scale=1
    ),
    "subnormal gradients": lambda: of_symbol(ended(linear(X, "fc") * 1e-6), PURE),
    "loss head and nothing else": lambda: of_symbol(mx.sym.SoftmaxOutput(X, name="softmax")),
    "parameter under a loss head": lambda: of_symbol(
        mx.sym.LinearRegressionOutput(mx.sym.var("w", shape=(4, 6)), X, name="head")
    ),
    "module": lambda: of_module(ended(linear(X, "fc"))),
    "module, two contexts": lambda: of_module(ended(linear(X, "fc")), contexts=[mx.cpu(0), mx.cpu(1)]),
    "running statistics in inference": lambda: of_symbol(
        ended(with_norm(linear(X, "fc"), use_global_stats=True)), params={"bn_moving_var": 2.0, "bn_gamma": 1.0}
    ),
    "inf that is clipped in float32 too": lambda: of_symbol(
        ended(mx.sym.clip(mx.sym.log(mx.sym.BlockGrad(mx.sym.relu(X))), a_min=-5, a_max=5))
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_fault_is_found_in_a_healthy_step(name):
    verdict = SOUND[name]()
    assert (verdict.kind, verdict.overrides) == (HEALTHY, ""), verdict
    assert verdict.node is None or name == "attention, -1e9 mask becomes -inf", verdict


def test_an_operator_that_makes_nan_of_a_computed_mask_is_named_and_not_the_mask():
    mask = mx.sym.log(mx.sym.zeros((1, 4)), name="mask")
    masked = mx.sym.broadcast_add(linear(X, "fc"), mask, name="masked")
    verdict = of_symbol(ended(mx.sym.elemwise_sub(masked, masked, name="lost")), "O1")
    assert (verdict.kind, verdict.node.name) == (BROKEN, "lost")


def test_nan_in_the_data_is_told_besides_another_fault():
    cleaned = mx.sym.where(mx.sym.broadcast_equal(X, X), X, mx.sym.ones_like(X))
    squares = ended(mx.sym.square(linear(cleaned, "fc"), name="sq"))
    verdict = of_symbol(squares, "O1,op:square=float16", batch={"data": holding(NAN)}, params={"fc_bias": 300.0})
    assert verdict.kind == RANGE and "Besides, " in str(verdict)


def test_inf_that_an_earlier_net_gives_on_purpose_is_no_bad_data():
    masked = Applied(lambda F, x: F.broadcast_add(x, F.log(F.zeros((1, 4)))))
    lost = Applied(lambda F, x: F.elemwise_sub(x, x, name="lost"))
    lost.dense = gluon.nn.Dense(4, in_units=4, prefix="next_")
    verdict = of_trainer(chain(masked, lost), data())
    assert (verdict.kind, verdict.node.op) == (BROKEN, "elemwise_sub")
