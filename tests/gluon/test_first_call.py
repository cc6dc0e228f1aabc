"""The first call of a converted net: it converts the net as it is then, for the inputs that it is given."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import InferenceError
from mxmp.gluon import convert, precision, report, restore

X = mx.nd.array(np.random.RandomState(1).uniform(-1, 1, (2, 3, 8, 8)))


class Net(gluon.HybridBlock):
    """A convolution and a dense layer, with ``last`` behind them."""

    def __init__(self, last=None, **kwargs):
        super().__init__(**kwargs)
        self.factor = 1
        self.last = last
        with self.name_scope():
            self.conv = nn.Conv2D(4, 3, in_channels=3)
            self.norm = nn.BatchNorm(in_channels=4)
            self.dense = nn.Dense(4, in_units=4 * 6 * 6)

    def hybrid_forward(self, F, x):
        y = F.relu(self.norm(self.conv(x)))
        y = self.dense(y * self.factor if self.factor != 1 else y)
        return y if self.last is None else self.last(F, y)


def make(last=None):
    mx.random.seed(5)
    net = Net(last, prefix="net_")
    net.initialize(mx.init.Xavier())
    return net


def test_a_condition_that_shapes_decide_is_that_of_the_batch():
    rows = []
    for size in (2, 2000):
        net = convert(make(lambda F, y: F.mean(y, axis=0)), "O1")
        net(mx.nd.ones((size, 3, 8, 8)))
        rows.append(report(net).rows[-1].precision)
    assert rows == ["float16", "float32"]


def test_casts_stand_where_the_sizes_of_the_batch_make_them_cheapest():
    net = convert(make(lambda F, y: F.exp(F.slice_axis(y, axis=1, begin=0, end=1))), "O1")
    net(X)
    assert {row.op: row.precision for row in report(net).rows}["slice_axis"] == "float16"


def test_an_attribute_that_has_changed_since_counts():
    net, expected = convert(make(), "O1"), make()
    net.factor = expected.factor = 2
    np.testing.assert_array_equal(net(X).asnumpy(), convert(expected, "O1")(X).asnumpy())
    assert "_mul_scalar" in {row.op for row in report(net).rows}


def test_a_layer_that_has_come_since_counts():
    net = convert(make(), "O1")
    net.norm = nn.BatchNorm(in_channels=4, scale=False, prefix="net_other_")
    net.norm.initialize()
    assert net(X).shape == (2, 4)
    assert "net_other_fwd" in {row.name for row in report(net).rows}


def test_inputs_of_another_dtype_are_converted_for():
    net = convert(nn.HybridLambda(lambda F, x: F.relu(F.dot(F.cast(x, "float32"), F.ones((3, 3)))), prefix="n_"), "O1")
    assert net(mx.nd.ones((2, 3), dtype="int32")).asnumpy().tolist() == [[3.0] * 3] * 2


def test_a_region_is_converted_for():
    net = convert(make(), "O1")
    with precision("float32"):
        found = net(X)
    np.testing.assert_array_equal(found.asnumpy(), make()(X).asnumpy())
    assert (net(X) != found).asnumpy().any()


def test_the_report_has_the_sizes_of_the_call():
    net = convert(make(), "O1")
    assert report(net).activation_bytes is None
    net(X)
    assert report(net).activation_bytes is not None


def test_inputs_that_do_not_fit_are_refused_by_the_node_and_others_run():
    net = convert(make(), "O1")
    with pytest.raises(InferenceError, match="block 'net': node 'net_conv0_fwd': MXNet cannot infer its shapes"):
        net(mx.nd.ones((2, 5, 8, 8)))
    assert net(X).shape == (2, 4)


def test_a_copy_converts_for_itself():
    net = convert(make(), "O1")
    other = copy.deepcopy(net)
    assert (other(X) == net(X)).asnumpy().all() and report(other) == report(net)


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=["plain", "static"])
@pytest.mark.parametrize("name", ["conv0_weight", "batchnorm0_running_mean", "dense0_weight"])
def test_a_parameter_that_has_changed_since_counts(name, flags):
    net, other = convert(make(), "O1"), make()
    net.hybridize(**flags)
    for each in (net, other):
        each.collect_params()[f"net_{name}"].data()[:] += 0.5
    np.testing.assert_array_equal(net(X).asnumpy(), convert(other, "O1")(X).asnumpy())


def test_parameters_without_values_are_initialized_after_convert():
    net = convert(Net(prefix="net_"), "O1")
    net.initialize()
    assert net(X).shape == (2, 4)


def test_parameters_that_move_after_convert():
    net = convert(make(), "O1")
    net.collect_params().reset_ctx(mx.cpu(1))
    found = net(X.as_in_context(mx.cpu(1))).asnumpy()
    np.testing.assert_array_equal(found, convert(make(), "O1")(X).asnumpy())


def test_a_restored_net_runs_as_before():
    net = convert(make(), "O2")
    with autograd.record():
        net(X)
    np.testing.assert_array_equal(restore(convert(make(), "O1"))(X).asnumpy(), make()(X).asnumpy())
    assert {param.data().dtype for param in restore(net).collect_params().values()} == {np.float32}
