"""The first call of a converted net: it converts the net as it is then, for the inputs that it is given."""


import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.gluon import convert, report
from tests.gluon.nets import Function, initialized, operator_precisions

X = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (2, 3, 8, 8)))


def make(last=lambda F, y: y):
    """Return a convolution and a dense layer, with ``last`` behind them."""

    def forward(net, F, x):
        y = F.relu(net.norm(net.conv(x)))
        return last(F, net.dense(y * net.factor if net.factor != 1 else y))

    conv, norm = nn.Conv2D(4, 3, in_channels=3, prefix="conv_"), nn.BatchNorm(in_channels=4, prefix="norm_")
    net = Function(forward, conv=conv, norm=norm, dense=nn.Dense(4, in_units=4 * 6 * 6, prefix="dense_"))
    net.factor = 1
    return initialized(net, mx.init.Xavier(), seed=5)


def values(net, x=X):
    return net(x).asnumpy()


def test_casts_stand_where_the_sizes_of_the_batch_make_them_cheapest():
    net = convert(make(lambda F, y: F.exp(F.slice_axis(y, axis=1, begin=0, end=1))), "O1")
    net(X)
    assert operator_precisions(net)["slice_axis"] == "float16" and report(net).activation_bytes is not None


def added(name):
    def change(net):
        net.collect_params()[name].data()[:] += 0.5

    return change


def other_layer(net):
    net.norm = initialized(nn.BatchNorm(in_channels=4, scale=False, center=False, epsilon=1, prefix="other_"))


CHANGES = {
    "an attribute": lambda net: setattr(net, "factor", 2),
    "a layer": other_layer,
    "a weight": added("conv_weight"),
    "a statistic": added("norm_running_mean"),
    "a last weight": added("dense_weight"),
}


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_since_counts(change, flags):
    net, other = convert(make(), "O1"), make()
    net.hybridize(**flags)
    change(net), change(other)
    np.testing.assert_array_equal(values(net), values(convert(other, "O1")))
    assert not np.array_equal(values(net), values(convert(make(), "O1")))


def test_inputs_of_another_dtype_are_converted_for():
    net = convert(nn.HybridLambda(lambda F, x: F.relu(F.dot(F.cast(x, "float32"), F.ones((3, 3)))), prefix="n_"), "O1")
    assert net(mx.nd.ones((2, 3), dtype="int32")).asnumpy().tolist() == [[3.0] * 3] * 2


def test_parameters_may_move_between():
    net, expected = convert(make(), "O1"), values(convert(make(), "O1"))
    net.collect_params().reset_ctx(mx.cpu(1))
    np.testing.assert_array_equal(values(net, X.as_in_context(mx.cpu(1))), expected)
