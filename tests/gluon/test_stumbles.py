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
from tests.gluon.nets import sequence, started

X = mx.nd.ones((2, 3))


def make():
    layers = nn.Dense(4, in_units=3, prefix="first_"), nn.BatchNorm(in_channels=4), nn.Dense(2, in_units=4, prefix="last_")
    return started(sequence(*layers, nn.Activation("sigmoid")))


@pytest.mark.parametrize("policy", ["O0", "float32"])
def test_the_report_of_a_float32_policy(policy):
    net = convert(make(), policy)
    for _ in range(2):
        rows = report(net)
        assert rows.policy == str(Policy.parse(policy)) and rows.casts == 0 and rows.count == {"float32": 4}
        assert [row.op for row in rows.rows] == ["FullyConnected", "BatchNorm", "FullyConnected", "Activation"]
        assert {row.reason for row in rows.rows} == {"the policy computes in float32"}
        convert(net, "O1", last_layer_fp32=True)(X)
        precisions = {row.name: row.precision for row in report(net).rows}
        assert precisions["first_fwd"] == "float16" and precisions["last_fwd"] == "float32"
        assert convert(net, "O1,last_layer_fp32=True")._mxmp_conversion is net._mxmp_conversion
        assert convert(net, policy)(X).shape == (2, 2)


class TwoInputs(gluon.HybridBlock):
    """A net whose inputs cannot be guessed."""

    def hybrid_forward(self, F, pair):
        return F.dot(pair[0], pair[1])


def test_the_float32_report_of_a_net_whose_inputs_are_unknown():
    net = convert(TwoInputs(), "O0")
    net.hybridize()
    net([X, X.T])
    assert [row.precision for row in report(net).rows] == ["float32"]


@pytest.mark.parametrize("convert_it", [lambda net: convert(net, "O1"), lambda net: cast(net, "float16")])
def test_a_net_that_was_cast_is_converted_once_it_is_cast_back(convert_it):
    net = make()
    net.cast("float16")
    with pytest.raises(ConvertError, match=r"'first_weight' is float16 already.*mxmp\.gluon\.cast\(net"):
        convert_it(net)
    net.cast("float32")
    assert convert_it(net)(X).dtype == np.float32
    assert convert(net, "O1")(X).dtype == np.float32


def test_a_hook_of_the_outermost_net_gets_arrays():
    net, seen = make(), []
    net.register_forward_hook(lambda block, args, out: seen.append(out.asnumpy()))
    outputs = convert(net, "O1")(X).asnumpy()
    assert len(seen) == 1 and np.array_equal(seen[0], outputs)


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


def test_a_dropout_cell_drops_when_it_trains():
    cell, x = convert(rnn.DropoutCell(0.5), "O1"), mx.nd.ones((2, 5, 30))
    assert np.array_equal(cell.unroll(5, x, merge_outputs=True)[0].asnumpy(), x.asnumpy())
    with autograd.record():
        outputs, states = cell.unroll(5, x, merge_outputs=True)
    assert set(np.unique(outputs.asnumpy())) == {0, 2} and states == []


def test_a_converted_net_and_its_copies_say_what_they_are():
    net = make()
    plain = repr(net)
    convert(net, "O1")
    for each in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(each) == f"{plain}\nconverted by mxmp: {Policy.parse('O1')}"
        kind = type(each)
        assert isinstance(each, nn.HybridSequential)
        assert (kind.__name__, kind.__qualname__) == ("HybridSequential", "HybridSequential")
        part = each[:1]  # HybridSequential makes it by type(net)
        assert "converted" not in repr(part) and repr(pickle.loads(pickle.dumps(part))) == repr(part)
        empty = kind.__new__(kind)
        empty._children = {}
        assert repr(empty) == "HybridSequential(\n\n)"
        assert repr(restore(each)) == plain and type(each) is type(kind()) is nn.HybridSequential


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_zero_grad_of_all_parameters_knows_their_dtype(dtype):
    """MXNet's operator for many arrays has no bfloat16, and fails at a later wait."""
    net = sequence(make(), nn.BatchNorm(in_channels=2))
    net[1].initialize()
    cast(net, dtype)
    params = net.collect_params()
    gradients = [param.grad() for param in params.values() if param.grad_req != "null"]
    for grad in gradients:
        grad[:] = 1
    params.zero_grad()
    assert not any(mx.nd.amp_cast(grad, dtype="float32").asnumpy().any() for grad in gradients)
    assert sum(grad.dtype == to_numpy(dtype) for grad in gradients) == 4
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
