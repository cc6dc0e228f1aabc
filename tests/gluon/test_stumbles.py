"""What users run into when they convert a net: float32 policies, casts before, hooks that fail, cells that unroll."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.contrib import rnn as contrib_rnn

from mxmp import Policy
from mxmp.dtypes import to_numpy
from mxmp.errors import ConvertError
from mxmp.gluon import Trainer, cast, convert, report, restore

X = mx.nd.ones((2, 3))


def make(norm=False):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3, prefix="first_"))
        if norm:
            net.add(nn.BatchNorm(in_channels=4))
        net.add(nn.Dense(2, in_units=4, prefix="last_"), nn.Activation("sigmoid"))
    net.initialize()
    return net


@pytest.mark.parametrize("policy", ["O0", "float32"])
def test_the_report_of_a_float32_policy(policy):
    net = convert(make(), policy)
    found = report(net)
    assert found.policy == str(Policy.parse(policy)) and found.casts == 0
    assert [row.op for row in found.rows] == ["FullyConnected", "FullyConnected", "Activation"]
    assert set(found.count) == {"float32"} and {row.reason for row in found.rows} == {"the policy computes in float32"}


def test_a_float32_policy_in_place_of_another():
    net = convert(make(), "O1")
    net(X)
    expected = restore(make())(X).shape
    convert(net, "O0")
    assert net(X).shape == expected and set(report(net).count) == {"float32"}
    convert(net, "O1")(X)
    assert "float16" in report(net).count


class TwoInputs(gluon.HybridBlock):
    """A net whose inputs cannot be guessed."""

    def hybrid_forward(self, F, pair):
        first, second = pair
        return F.dot(first, second)


def test_the_float32_report_of_a_net_whose_inputs_are_unknown():
    net = convert(TwoInputs(), "O0")
    with pytest.raises(ConvertError, match="hybridize it and run one batch"):
        report(net)
    net.hybridize()
    net([X, X.T])
    assert [row.precision for row in report(net).rows] == ["float32"]


def test_fields_of_the_policy_as_keywords():
    net = convert(make(), "O1", last_layer_fp32=True)
    net(X)
    rows = {row.name: row.precision for row in report(net).rows}
    assert rows["net_first_fwd"] == "float16" and rows["net_last_fwd"] == "float32"
    assert convert(net, "O1,last_layer_fp32=True")._mxmp_conversion is net._mxmp_conversion


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("convert_it", [lambda net: convert(net, "O1"), lambda net: cast(net, "float16")])
def test_a_net_that_was_cast_names_our_cast(norm, convert_it):
    net = make(norm)
    net.cast("float16")
    with pytest.raises(ConvertError, match=r"'net_first_weight' is float16 already.*mxmp\.gluon\.cast\(net"):
        convert_it(net)
    net.cast("float32")
    assert convert_it(net)(X).shape == (2, 2)


def test_a_net_that_was_cast_after_a_conversion_is_known_by_its_own_parameters():
    net = cast(make(), "float16")
    net(X)
    assert convert(net, "O1")(X).dtype == np.float32


def failing(block, *args):
    raise ValueError("too bad")


def test_a_block_that_fails_is_blamed_although_it_has_a_hook():
    class Broken(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x.no_such_thing()

    net = nn.HybridSequential()
    net.add(Broken(prefix="broken_"))
    net[0].register_forward_pre_hook(lambda block, args: None)
    convert(net, "O1")
    with pytest.raises(ConvertError, match="block 'broken' .*hybrid_forward must work on symbols"):
        net(X)


def test_a_hook_of_the_outermost_net_gets_arrays():
    net, seen = make(), []
    net.register_forward_hook(lambda block, args, out: seen.append(out.asnumpy()))
    convert(net, "O1")
    found = net(X).asnumpy()
    assert len(seen) == 1 and np.array_equal(seen[0], found)


def sequential(kind):
    cell = kind()
    for each in (rnn.LSTMCell(4, input_size=3), rnn.DropoutCell(0.0), rnn.LSTMCell(4, input_size=4)):
        cell.add(each)
    return cell


def convolution(name, dimensions):
    shape = (3, *(8 for _ in range(dimensions)))
    options = dict(input_shape=shape, hidden_channels=4, i2h_kernel=3, h2h_kernel=3, i2h_pad=1)
    return lambda: getattr(contrib_rnn, name)(**options)


CELLS = {
    "RNN": lambda: rnn.RNNCell(4, input_size=3),
    "LSTM": lambda: rnn.LSTMCell(4, input_size=3),
    "GRU": lambda: rnn.GRUCell(4, input_size=3),
    "Dropout": lambda: rnn.DropoutCell(0.0),
    "Zoneout": lambda: rnn.ZoneoutCell(rnn.RNNCell(4, input_size=3)),
    "Residual": lambda: rnn.ResidualCell(rnn.RNNCell(3, input_size=3)),
    "Bidirectional": lambda: rnn.BidirectionalCell(rnn.RNNCell(4, input_size=3), rnn.RNNCell(4, input_size=3)),
    "Sequential": lambda: sequential(rnn.SequentialRNNCell),
    "HybridSequential": lambda: sequential(rnn.HybridSequentialRNNCell),
    "VariationalDropout": lambda: contrib_rnn.VariationalDropoutCell(rnn.LSTMCell(4, input_size=3)),
    "LSTMP": lambda: contrib_rnn.LSTMPCell(4, 3, input_size=3),
    **{f"Conv{n}D{kind}": convolution(f"Conv{n}D{kind}Cell", n) for n in (1, 2, 3) for kind in ("RNN", "LSTM", "GRU")},
}


@pytest.mark.parametrize("merge", [None, True, False])
@pytest.mark.parametrize("name", CELLS)
def test_cells_unroll(name, merge):
    cell = CELLS[name]()
    cell.initialize()
    size = (8,) * int(name[4]) if name.startswith("Conv") else ()
    x = mx.nd.array(np.random.RandomState(0).randn(2, 5, 3, *size))

    def unroll():
        outputs, _ = cell.unroll(5, x, layout="NTC", merge_outputs=merge)
        return (mx.nd.stack(*outputs, axis=1) if isinstance(outputs, list) else outputs).asnumpy()

    expected = unroll()
    convert(cell, "O1")
    np.testing.assert_allclose(unroll(), expected, atol=5e-3)


def test_a_dropout_cell_drops_when_it_trains():
    cell = convert(rnn.DropoutCell(0.5), "O1")
    x = mx.nd.ones((2, 5, 30))
    assert np.array_equal(cell.unroll(5, x, merge_outputs=True)[0].asnumpy(), x.asnumpy())
    with autograd.record():
        outputs, states = cell.unroll(5, x, merge_outputs=True)
    assert set(np.unique(outputs.asnumpy())) == {0, 2} and states == []


def test_a_converted_net_says_what_it_is():
    net = make()
    plain, kind = repr(net), type(net)
    convert(net, "O1")
    assert repr(net) == f"{plain}\nconverted by mxmp: {Policy.parse('O1')}"
    assert isinstance(net, kind) and type(net).__name__ == kind.__name__
    assert repr(restore(net)) == plain and type(net) is kind


def test_copies_of_a_converted_net_say_what_they_are():
    net = convert(make(), "O2")
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(twin) == repr(net)
        assert type(restore(twin)) is nn.HybridSequential


def test_what_a_converted_nets_class_makes_is_not_converted():
    net = make()
    kind = type(net)
    convert(net, "O1")
    assert type(type(net)()) is kind and type(net).__qualname__ == kind.__qualname__
    part = net[:1]  # HybridSequential makes it by type(net)
    assert "converted" not in repr(part) and "converted by mxmp" in repr(net)
    assert repr(pickle.loads(pickle.dumps(part))) == repr(part)


def test_a_converted_net_without_its_attributes_has_a_repr():
    net = convert(make(), "O1")
    empty = type(net).__new__(type(net))
    empty._children = {}
    assert repr(empty) == "HybridSequential(\n\n)"


def test_a_trainer_says_what_it_is():
    net = convert(make(), "O1")
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=128)
    assert repr(trainer) == (
        "Trainer(4 parameters, SGD, learning_rate=0.1, loss_scale=StaticLossScale(value=128.0), skipped_steps=0)"
    )


@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
@pytest.mark.parametrize("in_channels", [0, 3])
def test_a_net_that_was_called_too_early_runs_once_it_is_initialized(policy, in_channels):
    net = convert(nn.Conv2D(2, 3, in_channels=in_channels), policy)
    x = mx.nd.ones((1, 3, 8, 8))
    with pytest.raises(RuntimeError, match="has not been initialized"):
        net(x)
    net.initialize()
    assert net(x).shape == (1, 2, 6, 6)


@pytest.mark.parametrize("wrap", [False, True], ids=["layers", "nested"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_zero_grad_of_all_parameters_knows_their_dtype(dtype, wrap):
    """MXNet's operator for many arrays has no bfloat16, and fails at a later wait."""
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.Dense(2, in_units=3))
    outer = net
    if wrap:
        outer = nn.HybridSequential()
        outer.add(net, nn.BatchNorm(in_channels=2))
    outer.initialize()
    cast(outer, dtype)
    params = outer.collect_params()
    for param in params.values():
        if param.grad_req != "null":
            param.grad()[:] = 1
    params.zero_grad()
    gradients = [param.grad() for param in params.values() if param.grad_req != "null"]
    assert {str(mx.nd.amp_cast(each, dtype="float32").asnumpy().any()) for each in gradients} == {"False"}
    assert sum(each.dtype == to_numpy(dtype) for each in gradients) == 4
    assert list(outer.collect_params(".*weight").keys()) == [name for name in params if "weight" in name]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "uint8", "int32"])
def test_an_input_of_another_dtype_is_named_with_the_cast(dtype, hybridized):
    net = nn.Dense(4, in_units=3)
    net.initialize()
    convert(net, "O1").hybridize(hybridized)
    with pytest.raises(ConvertError, match=rf"Input 'data' is {dtype}: give x\.astype\('float32'\)"):
        net(mx.nd.ones((2, 3), dtype=dtype))


def test_a_part_belongs_to_each_conversion_that_holds_it():
    shared, nets = nn.Dense(4, in_units=3), [nn.HybridSequential(), nn.HybridSequential()]
    shared.initialize()
    for net in nets:
        net.add(shared)
        convert(net, "O2")(X)
    restore(nets[1])
    assert shared(X).dtype == np.float32  # called by itself, on weights that the other net stores low


def test_convert_again_takes_in_what_was_put_into_a_net():
    outer = nn.HybridSequential()
    outer.add(make())
    convert(outer, "O1")(X)
    new = nn.Dense(2, in_units=2, weight_initializer="zeros")
    new.initialize()
    outer[0].add(new)
    assert not np.any(convert(outer, "O1")(X).asnumpy())
