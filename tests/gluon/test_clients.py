"""Nets as other libraries write them: inputs without a use, weights that are computed, numbers as inputs, parts."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

from mxmp.diagnose import measure_ranges
from mxmp.errors import ConvertError
from mxmp.gluon import Trainer, convert, report, restore

EPS = np.finfo(np.float16).eps
POLICIES = ["O1", "O2", "O3"]
X = mx.nd.array(np.linspace(-1, 1, 12).reshape(4, 3))
MASK = mx.nd.ones((4, 7))


def started(net):
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    return net


def difference(a, b):
    return abs(a - b).max().asscalar()


# ---------------------------------------------------------------------- inputs without a use

# MXNet says so of each hybridized net.
UNUSED = pytest.mark.filterwarnings("ignore:The .* input to HybridBlock is not used by any computation")


class Masked(gluon.HybridBlock):
    """A layer that is given a mask, and a label in training."""

    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=units)

    def hybrid_forward(self, F, x, mask, label=None):
        y = self.dense(x)
        return y if label is None or not autograd.is_training() else y - label


@UNUSED
@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_is_not_used(policy):
    net, label = started(Masked()), mx.nd.zeros((4, 2))
    expected = net(X, MASK)
    convert(net, policy)
    for given in ((MASK,), (MASK.astype("int32"), None), (MASK, label)):
        assert 0 < difference(net(X, *given), expected) < 8 * EPS
    assert report(net).casts > 0


@UNUSED
@pytest.mark.parametrize("policy", POLICIES)
def test_a_label_that_is_used_in_training_alone(policy):
    net, label = started(Masked()), mx.nd.ones((4, 2))
    expected = net(X, MASK)
    convert(net, policy)
    with autograd.record():
        y = net(X, MASK, label)
    y.backward()
    assert difference(y, expected - 1) < 8 * EPS
    assert difference(net(X, MASK, label), expected) < 8 * EPS
    np.testing.assert_allclose(net.dense.weight.grad().asnumpy(), np.tile(X.asnumpy().sum(0), (2, 1)), atol=8 * EPS)


@UNUSED
@pytest.mark.parametrize("policy", POLICIES)
def test_an_input_that_is_not_used_while_shapes_are_unknown(policy):
    """Where MXNet can initialize a net that is not hybridized."""
    net = started(Masked(units=0))
    twin = copy.deepcopy(net)
    convert(net, policy)
    found = net(X, MASK)
    twin(X, MASK)
    twin.dense.weight.set_data(net.dense.weight.data().astype("float32"))
    assert difference(found, twin(X, MASK)) < 8 * EPS


@UNUSED
def test_an_input_that_is_not_used_by_a_converted_net_within_another():
    class Outer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.inner = Masked()

        def hybrid_forward(self, F, x, mask):
            return self.inner(x, mask)

    net = started(Outer())
    expected = net(X, MASK)
    convert(net.inner, "O1")
    net.hybridize()
    assert 0 < difference(net(X, MASK), expected) < 8 * EPS


# ---------------------------------------------------------------------- weights that are computed


class DroppedParameter(gluon.Parameter):
    """A parameter whose values are dropped each time that it is read, as GluonNLP's WeightDropParameter."""

    def __init__(self, param, mode):
        super().__init__(param.name, shape=param.shape, dtype=param.dtype, init=param.init)
        self.mode = mode

    def data(self, ctx=None):
        return mx.nd.Dropout(self._check_and_get(self._data, ctx), p=0.5, mode=self.mode)


def dropping(net, mode):
    """Give the Dense layers of a net weights that are dropped."""
    for layer in net:
        dropped = DroppedParameter(layer.weight, mode)
        layer.params._params[dropped.name] = layer._reg_params["weight"] = dropped
        object.__setattr__(layer, "weight", dropped)
    return net


def dense(*units):
    net = nn.HybridSequential()
    net.add(*(nn.Dense(out, in_units=ins, use_bias=False) for ins, out in zip(units, units[1:])))
    return net


@pytest.mark.parametrize("policy", ["O0", *POLICIES])
def test_a_weight_that_is_dropped_in_training_infers_whole(policy):
    net = started(dropping(dense(3, 8, 2), "training"))
    expected = net(X)
    convert(net, policy)
    assert difference(net(X), expected) < 64 * EPS
    assert difference(net(X), expected) < 64 * EPS


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_weight_that_is_always_dropped_is_dropped_anew_in_each_call(policy, static):
    net = started(dropping(dense(3, 64), "always"))
    net.hybridize(static_alloc=static, static_shape=static)
    convert(net, policy)
    one = mx.nd.ones((1, 3))
    results = [net(one).asnumpy() for _ in range(8)]
    weight = net[0].weight._data[0].asnumpy().astype(np.float64)
    sums = {bits: 2 * (weight * bits).sum(1) for bits in map(tuple, np.ndindex(2, 2, 2))}
    for result in results:  # each output is twice the sum of some of its three weights
        assert (np.min([abs(result[0] - each) for each in sums.values()], axis=0) < 16 * EPS).all()
    assert len({result.tobytes() for result in results}) == 8


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dropped_weight_is_trained_where_it_is_not_dropped(policy):
    net = convert(started(dropping(dense(3, 64), "training")), policy)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    weight = net[0].weight
    before = weight._data[0].asnumpy()
    with autograd.record():
        y = net(mx.nd.ones((1, 3)))
    with trainer.scale_loss(y) as scaled:
        autograd.backward(scaled)
    trainer.step(1)
    change = weight._data[0].asnumpy().astype(np.float64) - before
    kept = abs(change) > 1
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(change, np.where(kept, -2, 0), atol=8 * EPS)  # kept values are doubled
    np.testing.assert_allclose(y.asnumpy()[0], 2 * (before * kept).sum(1), atol=32 * EPS)


@pytest.mark.parametrize("policy", POLICIES)
def test_recurrent_weights_that_are_dropped(policy):
    """As in GluonNLP's AWD language model."""
    net = rnn.LSTM(4, input_size=3)
    dropped = DroppedParameter(net.l0_h2h_weight, "training")
    net.params._params[dropped.name] = net._reg_params["l0_h2h_weight"] = dropped
    started(net)
    data = mx.nd.ones((5, 2, 3))
    expected = net(data)
    convert(net, policy)
    assert difference(net(data), expected) < 64 * EPS
    mx.random.seed(3)
    with autograd.record():
        first, second = net(data), net(data)
    assert difference(first, second) > 64 * EPS


# ---------------------------------------------------------------------- numbers as inputs


class Repeating(gluon.HybridBlock):
    """A net whose own ``forward`` hands over numbers and a text."""

    act_type = "tanh"

    def __init__(self, units=6, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=units)

    def forward(self, x, times=2):
        return super().forward(x, times, [self.act_type, x + 1, None, 0.5])

    def hybrid_forward(self, F, x, times, others):
        act_type, shifted, missing, half = others
        assert missing is None
        y = F.Activation(self.dense(F.tile(x, reps=(1, times))), act_type=act_type)
        return half * y + shifted


@pytest.mark.parametrize("units", [6, 0])
@pytest.mark.parametrize("policy", ["O0", *POLICIES])
def test_numbers_are_constants_of_the_graph(policy, units):
    net = started(Repeating())
    expected = net(X)
    restarted = started(Repeating(units))
    convert(restarted, policy)
    assert difference(restarted(X), expected) < 16 * EPS


@pytest.mark.parametrize("policy", POLICIES)
def test_another_number_is_another_graph(policy):
    net = started(Repeating())
    net.act_type = "relu"
    expected = net(X)
    net.act_type = "tanh"
    convert(net, policy)
    net(X)
    net.act_type = "relu"
    with autograd.record():
        y = net(X)
    y.backward()
    assert difference(y, expected) < 16 * EPS and report(net).casts > 0
    with pytest.raises(ConvertError, match="MXNet cannot infer its shapes"):
        net(X, 3)


def test_numbers_reach_a_converted_net_within_another():
    class Outer(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.inner = Repeating()

        def hybrid_forward(self, F, x):
            return self.inner(x, 2)

    net = started(Outer())
    expected = net(X)
    convert(net.inner, "O1")
    net.hybridize()
    assert 0 < difference(net(X), expected) < 16 * EPS


def test_ranges_of_a_net_that_hands_over_numbers_are_measured():
    net = started(Repeating())
    assert measure_ranges(net, [X])[f"{net.name}_dense0_fwd_output"] > 0


# ---------------------------------------------------------------------- parts


class Whole(gluon.HybridBlock):
    def __init__(self, units=3, hidden=4, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential()
            self.features.add(nn.Dense(4, in_units=units), nn.BatchNorm(in_channels=hidden), nn.Activation("tanh"))
            self.output = nn.Dense(2, in_units=hidden)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_of_a_converted_net_is_called_by_itself(policy, hybridized):
    net = started(Whole())
    expected, features = net(X), net.features(X)
    convert(net, policy)
    if hybridized:
        net.hybridize()
    for _ in range(2):
        found = net.features(X)
        assert difference(found, features) < 8 * EPS and found.dtype == np.float32
        assert difference(net.output(found), expected) < 16 * EPS
        assert difference(net(X), expected) < 16 * EPS
    assert difference(copy.deepcopy(net.features)(X), features) < 8 * EPS
    restore(net)
    assert difference(net.features(X), features) < 8 * EPS


@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_is_called_before_the_net_has_shapes(policy):
    net = convert(started(Whole(units=0, hidden=0)), policy)
    features = net.features(X)
    assert difference(net.output(features), net(X)) < 16 * EPS


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_that_is_called_by_itself_is_trained(policy, hybridized):
    net, plain = started(Whole()), started(Whole())
    convert(net, policy)
    if hybridized:
        net.hybridize()
    for each in (net, plain):
        with autograd.record():
            y = each.output(each.features(X))
        y.backward()
    for param, expected in zip(net.collect_params().values(), plain.collect_params().values()):
        if param.grad_req != "null":
            assert difference(param.grad().astype("float32"), expected.grad()) < 32 * EPS


# ---------------------------------------------------------------------- parameters of another conversion


def tied():
    """Return two nets that share a layer's parameters."""
    first = nn.HybridSequential(prefix="first_")
    with first.name_scope():
        first.add(nn.Dense(3, in_units=3))
    second = nn.HybridSequential(prefix="second_")
    with second.name_scope():
        second.add(nn.Dense(3, in_units=3, params=first[0].params))
    return started(first), second


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", ["O2", "O3"])
def test_parameters_that_another_conversion_stored_low_name_the_block_to_convert(policy, hybridized):
    first, second = tied()
    expected = second(X)
    convert(first, policy)
    if hybridized:
        second.hybridize()
    message = (
        r"block 'second\w*' \(\w+\) reads parameter 'first_dense0_(weight|bias)', which the conversion of another "
        r"block stores in float16\. Convert block 'second' too: mxmp\.gluon\.convert\(net, policy\)"
    )
    for _ in range(2):
        with pytest.raises(ConvertError, match=message):
            second(X)
    convert(second, policy)
    assert difference(second(X), expected) < 8 * EPS
    assert difference(first(X), expected) < 8 * EPS


@pytest.mark.parametrize("policy", ["O2", "O3"])
def test_a_hybridized_net_around_a_converted_one_reads_parameters_as_they_are_stored(policy):
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=3), dense(3, 3, 2))
    started(net)
    expected = net(X)
    convert(net[1], policy)
    net.hybridize()
    with autograd.record():
        y = net(X)
    y.backward()
    assert 0 < difference(y, expected) < 64 * EPS
    assert net[1][0].weight.grad().dtype == np.float16


def test_what_a_user_reads_is_as_it_is_stored():
    net = convert(started(dense(3, 2)), "O2")
    net[0](X)
    assert net[0].weight.data().dtype == np.float16


def test_a_parameter_that_no_operator_reads_is_told_of_and_kept():
    class Partly(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Dense(3, in_units=4), nn.Dense(2, in_units=4)

        def hybrid_forward(self, F, x):
            return self.used(x)

    net = Partly()
    net.initialize()
    convert(net, "O1")
    with pytest.warns(UserWarning, match="not used by any computation"):
        assert net(mx.nd.ones((2, 4))).shape == (2, 3)
    assert len(net.collect_params().keys()) == 4
