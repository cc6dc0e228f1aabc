"""Nets as users and other libraries write them: what they are given, made of and part of; casts, hooks and cells."""

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.contrib import rnn as contrib_rnn

from mxmp import Policy
from mxmp.errors import ConvertError
from mxmp.gluon import Trainer, cast, convert, freeze, report, restore
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.gluon.nets import Function, initialized, recorded, sequence
from tests.values import DTYPES, as_float32

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


# ---------------------------------------------------------------------- inputs without a use

# MXNet says so of each hybridized net.
UNUSED = pytest.mark.filterwarnings("ignore:The .* input to HybridBlock is not used by any computation")


def masked(net, F, x, mask, label=None):
    """A layer that is given a mask, and a label in training."""
    y = net.dense(x)
    return y if label is None or not autograd.is_training() else y - label


def with_mask(units=3):
    return Function(masked, dense=nn.Dense(2, in_units=units))


@UNUSED
@pytest.mark.parametrize("units", [3, 0])
@pytest.mark.parametrize("policy", POLICIES)
def test_inputs_that_are_not_used_or_in_training_alone(policy, units):
    net, label = started(with_mask(units)), mx.nd.ones((4, 2))
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
@pytest.mark.parametrize("inner, inputs, args", [(with_mask, [X, MASK], []), (Repeating, [X], [2])])
def test_a_converted_net_within_another_is_given_unused_inputs_and_numbers(inner, inputs, args):
    net = started(Function(lambda net, F, *given: net.inner(*given, *args), inner=inner()))
    expected = net(*inputs)
    convert(net.inner, "O1")
    net.hybridize()
    assert 0 < difference(net(*inputs), expected) < 16 * EPS


# ---------------------------------------------------------------------- parts


def whole(units=3, hidden=4):
    """Return a net of a part and a layer behind it."""
    part = sequence(nn.Dense(4, in_units=units), nn.BatchNorm(in_channels=hidden), nn.Activation("tanh"))
    return started(sequence(part, nn.Dense(2, in_units=hidden)))


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_part_of_a_converted_net_is_called_and_trained_by_itself(policy, hybridized):
    net, plain = convert(whole(), policy), whole()
    net(X)
    if hybridized:
        net.hybridize()
    for _ in range(2):
        features = net[0](X)
        assert difference(features, plain[0](X)) < 8 * EPS and features.dtype == np.float32
        assert difference(net[1](features), plain(X)) < 16 * EPS
        assert difference(net(X), plain(X)) < 16 * EPS
    assert difference(copy.deepcopy(net[0])(X), features) < 8 * EPS  # from the exact weights
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


IMAGES = mx.nd.array(np.random.RandomState(0).randn(2, 3, 8, 8))
FIRST_PARTS = {
    "a convolution": lambda: sequence(nn.Conv2D(4, 3, in_channels=3), nn.Dense(2)),
    "BatchNorm": lambda: sequence(nn.BatchNorm(in_channels=3), nn.Conv2D(4, 3, in_channels=3)),
    "a dense layer behind a convolution": lambda: sequence(sequence(nn.Conv2D(4, 3, in_channels=3), nn.Dense(5)), nn.Dense(2)),
}


@pytest.mark.bfloat16
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make_net", FIRST_PARTS.values(), ids=FIRST_PARTS)
def test_a_part_of_a_bfloat16_net_takes_the_dtypes_that_the_net_takes(make_net, dtype):
    net = initialized(make_net(), mx.init.Xavier())
    net(IMAGES)
    expected, images = net[0](IMAGES).asnumpy(), mx.nd.amp_cast(IMAGES, dtype=DTYPES[dtype])
    convert(net, "bfloat16")(images).wait_to_read()
    np.testing.assert_allclose(as_float32(net[0](images)), expected, rtol=0.05, atol=0.05)


@pytest.mark.bfloat16
@pytest.mark.parametrize("kind", [rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell])
def test_a_cell_of_a_bfloat16_net_can_be_called_by_itself(kind):
    cell, step = kind(4, input_size=3), mx.nd.ones((2, 3))
    net = initialized(sequence(cell, kind=rnn.HybridSequentialRNNCell), mx.init.Xavier())
    expected = cell(step, cell.begin_state(batch_size=2))[0].asnumpy()
    convert(net, "bfloat16")(step, net.begin_state(batch_size=2))
    np.testing.assert_allclose(cell(step, cell.begin_state(batch_size=2))[0].asnumpy(), expected, rtol=0.05, atol=0.05)


# ---------------------------------------------------------------------- parameters of another conversion


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", ["O2", "O3"])
def test_parameters_that_another_conversion_stored_low_name_the_block_to_convert(policy, hybridized):
    first = started(nn.Dense(3, in_units=3, prefix="first_"))
    second = nn.Dense(3, in_units=3, prefix="second_", params=first.params)
    expected = second(X)
    convert(first, policy)(X)
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


def test_a_parameter_that_no_operator_reads_is_told_of_and_kept():
    net = started(Function(lambda net, F, x: net.used(x), used=nn.Dense(3, in_units=3), unused=nn.Dense(2, in_units=3)))
    with pytest.warns(UserWarning, match="not used by any computation"):
        assert convert(net, "O1")(X).shape == (4, 3)
    assert len(net.collect_params().keys()) == 4


# ---------------------------------------------------------------------- what users run into


def make():
    layers = nn.Dense(4, in_units=3, prefix="first_"), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4, prefix="last_")
    return started(sequence(*layers, nn.Activation("sigmoid")))


@pytest.mark.parametrize("policy", ["O0", "float32"])
def test_the_report_of_a_float32_policy(policy):
    net = convert(make(), policy)
    net.hybridize()
    for _ in range(2):
        convert(net, policy)(X)
        rows = report(net)
        assert rows.policy == str(Policy.parse(policy)) and rows.casts == 0
        assert [row.op for row in rows.rows] == ["FullyConnected", "BatchNorm", "FullyConnected", "Activation"]
        assert {(row.precision, row.reason) for row in rows.rows} == {("float32", "the policy computes in float32")}
        convert(net, "O1", last_layer_fp32=True)(X)
        precisions = {row.name: row.precision for row in report(net).rows}
        assert precisions["first_fwd"] == "float16" and precisions["last_fwd"] == "float32"


@pytest.mark.parametrize("convert_it", [lambda net: convert(net, "O1"), lambda net: cast(net, "float16")])
def test_a_net_that_was_cast_is_converted_once_it_is_cast_back(convert_it):
    net = make()
    net.cast("float16")
    with pytest.raises(ConvertError, match=r"'first_weight' is float16 already.*mxmp\.gluon\.cast\(net"):
        convert_it(net)
    net.cast("float32")
    assert convert_it(net)(X).dtype == np.float32
    assert convert(net, "O1")(X).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", np.float32])
@pytest.mark.parametrize("kind", [nn.HybridSequential, nn.Sequential])
@pytest.mark.parametrize("policy", ["O0", "O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_cast_to_float32_leaves_a_net_with_float32_parameters_converted(policy, kind, dtype):
    """Every script of GluonCV casts its net to the dtype of an option, which is float32 by default."""
    net = convert(started(sequence(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4), kind=kind)), policy)
    for block in net._children.values() if kind is nn.Sequential else [net]:
        block.hybridize()
    net.cast(dtype)
    expected, rows = net(X), report(net).rows
    values = {name: param.data() for name, param in net.collect_params().items()}
    net.cast(dtype)
    assert np.array_equal(net(X).asnumpy(), expected.asnumpy()) and report(net).rows == rows
    assert all(param.data() is values[name] for name, param in net.collect_params().items()) or policy == "O0"


def test_a_cast_to_float32_leaves_a_frozen_float32_block_fused():
    net = make()
    net.hybridize()
    net(X)
    block = freeze(net, "float32")
    expected, operator = block(X).asnumpy(), block._cached_op
    block.cast("float32")
    assert np.array_equal(block(X).asnumpy(), expected) and block._cached_op is operator


def sequential(cell):
    for each in (rnn.LSTMCell(4, input_size=3), rnn.DropoutCell(0.0), rnn.LSTMCell(4, input_size=4)):
        cell.add(each)
    return cell


def convolution(name, dimensions):
    options = dict(hidden_channels=4, i2h_kernel=3, h2h_kernel=3, i2h_pad=1)
    return lambda: getattr(contrib_rnn, name)((3, *[8] * dimensions), **options)


CELLS = {
    "RNN": lambda: rnn.RNNCell(4, input_size=3),
    "LSTM": lambda: rnn.LSTMCell(4, input_size=3),
    "GRU": lambda: rnn.GRUCell(4, input_size=3),
    "Dropout": lambda: rnn.DropoutCell(0.0),
    "Zoneout": lambda: rnn.ZoneoutCell(rnn.RNNCell(4, input_size=3)),
    "Residual": lambda: rnn.ResidualCell(rnn.RNNCell(3, input_size=3)),
    "Bidirectional": lambda: rnn.BidirectionalCell(rnn.RNNCell(4, input_size=3), rnn.RNNCell(4, input_size=3)),
    "Sequential": lambda: sequential(rnn.SequentialRNNCell()),
    "HybridSequential": lambda: sequential(rnn.HybridSequentialRNNCell()),
    "VariationalDropout": lambda: contrib_rnn.VariationalDropoutCell(rnn.LSTMCell(4, input_size=3)),
    "LSTMP": lambda: contrib_rnn.LSTMPCell(4, 3, input_size=3),
    **{f"Conv{n}D{kind}": convolution(f"Conv{n}D{kind}Cell", n) for n, kind in [(1, "RNN"), (2, "LSTM"), (3, "GRU")]},
}


@pytest.mark.parametrize("merge", [None, True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells_unroll(name, merge):
    def unroll():
        outputs, _ = cell.unroll(5, x, layout="NTC", merge_outputs=merge)
        return (mx.nd.stack(*outputs, axis=1) if isinstance(outputs, list) else outputs).asnumpy()

    cell = CELLS[name]()
    cell.initialize()
    size = (8,) * int(name[4]) if name.startswith("Conv") else ()
    x = mx.nd.array(np.random.RandomState(0).randn(2, 5, 3, *size))
    expected = unroll()
    convert(cell, "O1")
    np.testing.assert_allclose(unroll(), expected, atol=5e-3)


def test_a_converted_net_and_its_copies_say_what_they_are():
    net = make()
    plain = repr(net)
    convert(net, "O1")
    for each in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(each) == f"{plain}\nconverted by mxmp: {Policy.parse('O1')}"
        assert isinstance(each, nn.HybridSequential)
        assert type(each).__name__ == type(each).__qualname__ == "HybridSequential"
        part = each[:1]  # HybridSequential makes it by type(net)
        assert "converted" not in repr(part) and repr(pickle.loads(pickle.dumps(part))) == repr(part)
        assert repr(restore(each)) == plain and type(each) is nn.HybridSequential


def test_a_trainer_says_what_it_is():
    trainer = Trainer(make()[0].collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=128)
    assert repr(trainer) == (
        "Trainer(2 parameters, SGD, learning_rate=0.1, loss_scale=StaticLossScale(value=128.0), skipped_steps=0)"
    )


@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("in_channels", [0, 3])
def test_a_net_that_was_called_too_early_runs_once_it_is_initialized(policy, in_channels):
    net, x = convert(nn.Conv2D(2, 3, in_channels=in_channels), policy), mx.nd.ones((1, 3, 8, 8))
    with pytest.raises(RuntimeError, match="has not been initialized"):
        net(x)
    net.initialize()
    assert net(x).shape == (1, 2, 6, 6)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_zero_grad_of_all_parameters_knows_their_dtype(dtype):
    """MXNet's operator for many arrays has no bfloat16, and fails at a later wait."""
    net = sequence(make(), nn.BatchNorm(in_channels=2))
    net[1].initialize()
    cast(net, dtype)(X)
    params = net.collect_params()
    gradients = [param.grad() for param in params.values() if param.grad_req != "null"]
    for grad in gradients:
        grad[:] = 1
    params.zero_grad()
    assert not any(mx.nd.amp_cast(grad, dtype="float32").asnumpy().any() for grad in gradients)
    assert sum(grad.dtype == DTYPES[dtype] for grad in gradients) == 4
    assert list(net.collect_params(".*weight").keys()) == [name for name in params if "weight" in name]


def test_a_part_belongs_to_each_conversion_that_holds_it():
    shared = started(nn.Dense(4, in_units=3))
    nets = [convert(sequence(shared), "O2") for _ in range(2)]
    for net in nets:
        net(X)
    restore(nets[1])
    assert shared(X).dtype == np.float32  # called by itself, on weights that the other net stores low


def test_convert_again_takes_in_what_was_put_into_a_net():
    outer = convert(sequence(make()), "O1")
    outer(X)
    outer[0].add(nn.Dense(2, in_units=2, weight_initializer="zeros"))
    outer[0][-1].initialize()
    assert not np.any(convert(outer, "O1")(X).asnumpy())


# ---------------------------------------------------------------------- blocks with parameters of their own


class GraphConv(gluon.Block):
    """A layer that is no HybridBlock, as DGL's: its parameter and its product are its own."""

    def __init__(self):
        super().__init__(prefix="conv_")
        self.drop = nn.Dropout(0.0, prefix="drop_")
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(3, 2))

    def forward(self, x):
        return self.drop(mx.nd.dot(x, self.weight.data()))


SCALES = {
    "O0": NoOpLossScale(),
    "float32": NoOpLossScale(),
    "O1": DynamicLossScale(),
    "O1,loss_scale=8": StaticLossScale(8.0),
}
OWNERS = {
    "a net": lambda net: Trainer(net, "sgd"),
    "its parameters": lambda net: Trainer(net.collect_params(), "sgd"),
    "adopted": lambda net: Trainer.adopt(gluon.Trainer(net.collect_params(), "sgd")),
}


KINDS = {"with a plain block's parameter": GraphConv, "with converted parameters": lambda: nn.Dense(2, in_units=3)}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", SCALES)
def test_a_trainer_has_the_loss_scale_of_its_nets_policy(policy, kind, owner):
    net = convert(started(KINDS[kind]()), policy)
    trainer = OWNERS[owner](net)
    assert trainer.loss_scale == SCALES[policy]
    with autograd.record():
        loss = net(X).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
    assert trainer.step(4)
    if policy != "O1,loss_scale=8":
        convert(net, "O1,loss_scale=8")
        assert OWNERS[owner](net).loss_scale == StaticLossScale(8.0)
    assert OWNERS[owner](restore(net)).loss_scale == DynamicLossScale()


def test_restore_leaves_the_policy_of_another_net_with_the_same_parameters():
    one = convert(nn.Dense(2, in_units=3), "O1,loss_scale=128")
    other = convert(nn.Dense(2, in_units=3, params=one.params), "O1,loss_scale=64")
    restore(one)
    assert Trainer(started(other), "sgd").loss_scale == StaticLossScale(64)


class Graphs(gluon.Block):
    """Plain layers, in a container, and one that is converted."""

    def __init__(self):
        super().__init__(prefix="graphs_")
        self.layers, self.head = sequence(GraphConv(), kind=nn.Sequential), nn.Dense(2, in_units=2, prefix="head_")

    def forward(self, x):
        return self.head(mx.nd.relu(self.layers(x)))


def test_the_report_names_the_blocks_that_no_conversion_reaches():
    net = convert(started(Graphs()), "O1")
    net(X)
    (note,) = report(net).notes
    assert note == (
        "No conversion reaches these blocks, whose operators run in float32: 'graphs' (Graphs), 'conv' (GraphConv, with "
        "conv_weight). To convert them too, write plain Blocks as HybridBlocks, and convert the whole net."
    )
    assert note in " ".join(str(report(net)).split())
    assert not report(net.head).notes
    whole = convert(make(), "O1")
    whole(X)
    assert "No conversion" not in str(report(whole))
    convert(net, "O0").hybridize()
    net(X)
    assert not report(net).notes


def test_the_report_names_a_layer_that_was_not_converted_beside_one_that_was():
    net = sequence(make(), started(nn.Dense(2, prefix="other_")), kind=nn.Sequential)
    convert(net[0], "O1")
    net(X)
    (note,) = report(net).notes
    assert "float32: 'other' (Dense, with other_weight, other_bias)." in note
