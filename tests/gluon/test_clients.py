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
from tests.gluon.nets import recorded, sequence

EPS = np.finfo(np.float16).eps
POLICIES = ["O1", "O2", "O3"]
X = mx.nd.array(np.linspace(-1, 1, 12).reshape(4, 3))
MASK = mx.nd.ones((4, 7))


def started(net):
    """Return a net with the same, large values every time."""
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1))
    return net


def difference(a, b):
    return abs(a - b).max().asscalar()


class Around(gluon.HybridBlock):
    """A net that hands its inputs, and further ones, to another."""

    def __init__(self, inner, *args):
        super().__init__()
        self.inner, self.args = inner, args

    def hybrid_forward(self, F, *inputs):
        return self.inner(*inputs, *self.args)


# ---------------------------------------------------------------------- inputs without a use

# MXNet says so of each hybridized net.
UNUSED = pytest.mark.filterwarnings("ignore:The .* input to HybridBlock is not used by any computation")


class Masked(gluon.HybridBlock):
    """A layer that is given a mask, and a label in training."""

    def __init__(self, units=3):
        super().__init__()
        self.dense = nn.Dense(2, in_units=units)

    def hybrid_forward(self, F, x, mask, label=None):
        y = self.dense(x)
        return y if label is None or not autograd.is_training() else y - label


@UNUSED
@pytest.mark.parametrize("units", [3, 0])
@pytest.mark.parametrize("policy", POLICIES)
def test_inputs_that_are_not_used_or_in_training_alone(policy, units):
    net, label = started(Masked(units)), mx.nd.ones((4, 2))
    twin = copy.deepcopy(net)
    convert(net, policy)(X, MASK)
    twin(X, MASK)  # MXNet can initialize it, as it is not hybridized
    twin.dense.weight.set_data(net.dense.weight.data().astype("float32"))
    expected = twin(X, MASK)
    for inputs in ((MASK,), (MASK.astype("int32"), None), (MASK, label)):
        assert 0 < difference(net(X, *inputs), expected) < 8 * EPS
    assert report(net).casts > 0
    assert difference(recorded(net, X, MASK, label), expected - 1) < 8 * EPS
    np.testing.assert_allclose(net.dense.weight.grad().asnumpy(), np.tile(X.asnumpy().sum(0), (2, 1)), atol=8 * EPS)


# ---------------------------------------------------------------------- weights that are computed


class DroppedParameter(gluon.Parameter):
    """A parameter whose values are dropped each time that it is read, as GluonNLP's WeightDropParameter."""

    def __init__(self, param, mode):
        super().__init__(param.name, shape=param.shape, dtype=param.dtype, init=param.init)
        self.mode = mode

    def data(self, ctx=None):
        return mx.nd.Dropout(self._check_and_get(self._data, ctx), p=0.5, mode=self.mode)


def dropping(layer, name="weight", mode="training"):
    """Give a layer a weight that is dropped."""
    dropped = DroppedParameter(layer._reg_params[name], mode)
    layer.params._params[dropped.name] = layer._reg_params[name] = dropped
    object.__setattr__(layer, name, dropped)
    return started(layer)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_weight_that_is_always_dropped_is_dropped_anew_in_each_call(policy, static):
    net = dropping(nn.Dense(64, in_units=3, use_bias=False), mode="always")
    net.hybridize(static_alloc=static, static_shape=static)
    convert(net, policy)
    results = [net(mx.nd.ones((1, 3))).asnumpy() for _ in range(8)]
    weight = net.weight._data[0].asnumpy().astype(np.float64)
    sums = [2 * (weight * bits).sum(1) for bits in np.ndindex(2, 2, 2)]
    for result in results:  # each output is twice the sum of some of its three weights
        assert (np.min(abs(result[0] - sums), axis=0) < 16 * EPS).all()
    assert len({result.tobytes() for result in results}) == 8


@pytest.mark.parametrize("policy", POLICIES)
def test_a_weight_that_is_dropped_in_training_infers_whole_and_is_trained_where_it_is_kept(policy):
    net, x = dropping(nn.Dense(64, in_units=3, use_bias=False)), mx.nd.ones((1, 3))
    expected = net(x)
    trainer = Trainer(convert(net, policy).collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    for _ in range(2):
        assert difference(net(x), expected) < 64 * EPS
    before = net.weight._data[0].asnumpy()
    with autograd.record(), trainer.scale_loss(net(x)) as scaled:
        autograd.backward(scaled)
    trainer.step(1)
    change = net.weight._data[0].asnumpy().astype(np.float64) - before
    kept = abs(change) > 1
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(change, np.where(kept, -2, 0), atol=8 * EPS)  # kept values are doubled
    np.testing.assert_allclose(scaled.asnumpy()[0] / 8, 2 * (before * kept).sum(1), atol=32 * EPS)


@pytest.mark.parametrize("policy", ["O0", *POLICIES])
def test_recurrent_weights_that_are_dropped(policy):
    """As in GluonNLP's AWD language model."""
    net, data = dropping(rnn.LSTM(4, input_size=3), "l0_h2h_weight"), mx.nd.ones((5, 2, 3))
    expected = net(data)
    convert(net, policy)
    assert difference(net(data), expected) < 64 * EPS
    with autograd.record():
        assert difference(net(data), net(data)) > 16 * EPS


# ---------------------------------------------------------------------- numbers as inputs


class Repeating(gluon.HybridBlock):
    """A net whose own ``forward`` hands over numbers and a text."""

    act_type = "tanh"

    def __init__(self, units=6):
        super().__init__()
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
def test_numbers_are_constants_of_the_graph_and_another_is_another_graph(policy, units):
    plain, net = started(Repeating()), convert(started(Repeating(units)), policy)
    for call in (net, lambda x: recorded(net, x)):
        assert difference(call(X), plain(X)) < 16 * EPS
        plain.act_type = net.act_type = "relu"
    if policy != "O0":
        assert report(net).casts > 0
        with pytest.raises(ConvertError, match="MXNet cannot infer its shapes"):
            net(X, 3)


@UNUSED
@pytest.mark.parametrize("inner, inputs, args", [(Masked, [X, MASK], []), (Repeating, [X], [2])])
def test_a_converted_net_within_another_is_given_unused_inputs_and_numbers(inner, inputs, args):
    net = started(Around(inner(), *args))
    expected = net(*inputs)
    convert(net.inner, "O1")
    net.hybridize()
    assert 0 < difference(net(*inputs), expected) < 16 * EPS


def test_ranges_of_a_net_that_hands_over_numbers_are_measured():
    net = started(Repeating())
    assert measure_ranges(net, [X])[f"{net.name}_dense0_fwd_output"] > 0


# ---------------------------------------------------------------------- parts


def whole(units=3, hidden=4):
    """Return a net of a part and a layer behind it."""
    part = sequence(nn.Dense(4, in_units=units), nn.BatchNorm(in_channels=hidden), nn.Activation("tanh"))
    return started(sequence(part, nn.Dense(2, in_units=hidden)))


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_of_a_converted_net_is_called_and_trained_by_itself(policy, hybridized):
    net, plain = convert(whole(), policy), whole()
    if hybridized:
        net.hybridize()
    for _ in range(2):
        features = net[0](X)
        assert difference(features, plain[0](X)) < 8 * EPS and features.dtype == np.float32
        assert difference(net[1](features), plain(X)) < 16 * EPS
        assert difference(net(X), plain(X)) < 16 * EPS
    assert difference(copy.deepcopy(net[0])(X), features) == 0
    for each in (net, plain):
        recorded(lambda x, each=each: each[1](each[0](x)), X)
    for param, expected in zip(net.collect_params().values(), plain.collect_params().values()):
        if param.grad_req != "null":
            assert difference(param.grad().astype("float32"), expected.grad()) < 32 * EPS
    assert difference(restore(net)[0](X), plain[0](X)) < 8 * EPS


@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_is_called_before_the_net_has_shapes(policy):
    net = convert(whole(units=0, hidden=0), policy)
    features = net[0](X)
    assert difference(net[1](features), net(X)) < 16 * EPS


# ---------------------------------------------------------------------- parameters of another conversion


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", ["O2", "O3"])
def test_parameters_that_another_conversion_stored_low_name_the_block_to_convert(policy, hybridized):
    first = started(nn.Dense(3, in_units=3, prefix="first_"))
    second = nn.Dense(3, in_units=3, prefix="second_", params=first.params)
    expected = second(X)
    convert(first, policy)
    if hybridized:
        second.hybridize()
    message = (
        r"block 'second' \(\w+\) reads parameter 'first_(weight|bias)', which the conversion of another "
        r"block stores in float16\. Convert block 'second' too: mxmp\.gluon\.convert\(net, policy\)"
    )
    for _ in range(2):
        with pytest.raises(ConvertError, match=message):
            second(X)
    convert(second, policy)
    for net in (first, second):
        assert difference(net(X), expected) < 8 * EPS


@pytest.mark.parametrize("policy", ["O2", "O3"])
def test_a_hybridized_net_around_a_converted_one_reads_parameters_as_they_are_stored(policy):
    net = started(sequence(nn.Dense(3, in_units=3), sequence(nn.Dense(3, in_units=3), nn.Dense(2, in_units=3))))
    expected = net(X)
    convert(net[1], policy)
    net.hybridize()
    assert 0 < difference(recorded(net, X), expected) < 64 * EPS
    assert net[1][0].weight.grad().dtype == net[1][0].weight.data().dtype == np.float16


class Partly(nn.HybridSequential):
    def hybrid_forward(self, F, x):
        return self[0](x)


def test_a_parameter_that_no_operator_reads_is_told_of_and_kept():
    net = convert(started(sequence(nn.Dense(3, in_units=3), nn.Dense(2, in_units=3), kind=Partly)), "O1")
    with pytest.warns(UserWarning, match="not used by any computation"):
        assert net(X).shape == (4, 3)
    assert len(net.collect_params().keys()) == 4
