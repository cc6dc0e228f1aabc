"""How many graphs a converted net makes and keeps, how they are launched, and what an op hook sees of them."""

import ctypes
import os
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.base import NDArrayHandle
from mxnet.gluon import nn

import mxmp
from mxmp.gluon import convert, export
from tests.gluon.nets import Function, initialized, operator_precisions, sequence
from tests.values import as_float32, name_of


def make(policy="O1"):
    """Return a layer whose mean over the batch may be in float16 for up to 1024 rows."""

    def centered(net, F, x):
        return F.relu(F.mean(net.dense(x), axis=0, keepdims=True) * 2)

    return convert(initialized(Function(centered, dense=nn.Dense(4, in_units=3))), policy)


def call(net, *sizes):
    for size in sizes:
        net(mx.nd.ones((size, 3)))


class Stopped(Exception):
    """Nothing can run in float16 on a CPU."""


class Operators(list):
    stops = False


@pytest.fixture
def operators(monkeypatch):
    """The flags of each cached operator that MXNet builds; where it ``stops``, none is built."""
    built, build = Operators(), mx.nd.CachedOp

    def noted(symbol, flags=()):
        built.append(dict(flags))
        if built.stops:
            raise Stopped
        return build(symbol, flags)

    monkeypatch.setattr(mx.nd, "CachedOp", noted)
    return built


def test_batch_sizes_of_the_same_verdicts_have_one_graph(operators):
    call(make(), *range(1, 102), 1)
    assert len(operators) == 1


def test_each_part_of_a_net_is_converted_once(operators):
    net = convert(initialized(sequence(*(nn.Dense(3, in_units=3) for _ in range(3)), kind=nn.Sequential)), "O2")
    call(net, 4, 4)
    assert len(operators) == 3


def test_a_net_that_is_converted_again_to_the_same_policy_keeps_its_graphs(operators):
    net = make()
    call(net, 4)
    call(convert(net, "O1"), 4)
    assert len(operators) == 1


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_shapes_with_other_verdicts_have_another_graph_and_the_last_is_exported(policy, operators, tmp_path):
    net, found, written = make(policy), [], set()
    for size in (4000, 8, 1024, 1025, 9):
        outputs = [net(mx.nd.ones((size, 3))).asnumpy()]
        with autograd.record():
            outputs.append(net(mx.nd.ones((size, 3))).asnumpy())
        assert outputs[0].shape == (1, 4) and np.array_equal(*outputs)  # training shares the graph of inference
        export(net, str(tmp_path / "net"))
        found.append(operator_precisions(net)["mean"])
        written.add((found[-1], (tmp_path / "net-symbol.json").read_text()))
    assert found == ["float32", "float16", "float16", "float32", "float16"]
    assert len(written) == len(dict(written)) == len({text for _, text in written}) == 2  # a text for each precision
    assert len(operators) == 2
    assert all("float16" in text for _, text in written)
    assert net.dense.weight.data().dtype == (np.float32 if policy == "O1" else np.float16)


def test_graphs_are_bounded(operators):
    """A number that is handed to a net is a constant of its graph."""
    net, x = convert(Function(lambda net, F, x, factor: F.dot(x, x) * factor), "O1"), mx.nd.ones((2, 2))
    for factor in range(40):
        net(x, factor)
    net(x, 39)
    assert len(operators) == 40
    net(x, 0)  # was dropped
    assert len(operators) == 41


@pytest.mark.parametrize("order", [("float32", "float64"), ("float64", "float32")])
def test_a_graph_is_for_inputs_of_its_dtypes(order):
    """A float64 product is left alone, whatever was called before."""
    net = convert(nn.HybridLambda(lambda F, x, w: F.dot(x, w), prefix="net_"), "O1")
    for dtype in order:
        found = net(mx.nd.array([[4097.0, 1.0]], dtype=dtype), mx.nd.ones((2, 1), dtype=dtype))
        assert found.dtype == np.dtype(dtype)
        assert found.asscalar() == (4098 if dtype == "float64" else 4096)


def test_verdicts_in_a_loop_follow_the_shapes(operators):
    def loop(net, F, x):
        def step(row, state):
            total = F.sum(F.dot(row, F.ones((2, 2))), axis=0)
            return total, [state[0] + total]

        return F.contrib.foreach(step, x, [F.zeros((2,))])[0]

    net = convert(Function(loop), "O1")
    for size, precision in ((4, "float16"), (2000, "float32"), (8, "float16"), (3000, "float32")):
        net(mx.nd.ones((3, size, 2)))
        assert operator_precisions(net)["sum"] == precision
    assert len(operators) == 2


def test_a_later_call_is_a_lookup_and_an_operator():
    """At most 40 of our functions are called, of a net of a convolution, BatchNorm, relu, pooling and a dense layer."""
    layers = nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu", prefix="relu_"), nn.MaxPool2D(), nn.Dense(4)
    net = convert(initialized(sequence(*layers)), "O2")
    net.hybridize()
    x, called = mx.nd.ones((2, 3, 16, 16)), []
    net(x)

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(os.path.dirname(mxmp.__file__)):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        net(x)
    finally:
        sys.setprofile(before)
    assert 0 < len(called) <= 40, called


VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"
ONE, TWO = {"forward_bulk_size": 9}, {VARIABLE: "4", f"{VARIABLE}_BWD": "7"}
BULKS = {
    "they grow as casts are added": (True, {}, {}, (75, 75)),
    "a size that the user gave stays": (True, {}, ONE, (9, 75)),
    "sizes from the environment grow": (True, TWO, {}, (20, 35)),
    "off stays off": (True, {VARIABLE: "0"}, {}, (0, 0)),
    "on a CPU they are MXNet's": (False, TWO, ONE, (9, None)),
}


@pytest.mark.parametrize("gpu, environment, given, expected", BULKS.values(), ids=BULKS)
def test_sizes_of_bulks_of_one_operator_and_its_four_casts(gpu, environment, given, expected, operators, monkeypatch):
    """A converted net is launched on a GPU in as many bulks as the float32 net."""
    operators.stops = True
    for name in (VARIABLE, f"{VARIABLE}_FWD", f"{VARIABLE}_BWD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    net, x = convert(initialized(nn.Dense(4, in_units=3)), "O1"), mx.nd.ones((2, 3))
    net.hybridize(static_alloc=True, **given)
    monkeypatch.setattr("mxmp.gluon.conversion.on_cpu", lambda: not gpu)
    with pytest.raises(Stopped):
        net(x)
    assert operators[0]["static_alloc"] is True
    assert (operators[0].get("forward_bulk_size"), operators[0].get("backward_bulk_size")) == expected


# ---------------------------------------------------------------------- op hooks


X = mx.nd.array(np.random.RandomState(0).randn(2, 3, 6, 6))
HIDDEN = {"Convolution", "BatchNorm", "Activation", "Pooling"}


def layers():
    first = nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu", prefix="net_relu_")
    return initialized(sequence(*first, nn.MaxPool2D(), nn.Dense(2, in_units=16, prefix="out_")), mx.init.Xavier())


def observe(net, monitor_all=False):
    """Return what an op hook sees of a call, (name, operator, dtype, value), and the call's output."""
    seen = []

    def callback(name, op, handle):
        array = mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle), writable=False)
        seen.append((name.decode(), op.decode(), name_of(array.dtype), as_float32(array)))

    net.hybridize()
    net.register_op_hook(callback, monitor_all)
    return seen, net(X).asnumpy()


# MXNet warns whatever net.hybridize was given: it takes its pairs (name, value) for values.
@pytest.mark.filterwarnings("ignore:register_op_hook is experimental:UserWarning")
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("policy", ["O1", "O2", "O3", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_hook_sees_the_operators_that_run(policy, records):
    net = layers()
    wanted, _ = observe(net)
    convert(net, policy)
    with autograd.record(train_mode=False) if records else autograd.pause():
        expected = net(X).asnumpy()
        found, output = observe(net)
        assert len(observe(net, monitor_all=True)[0]) > len(found)
    assert np.array_equal(output, expected)  # the hook changes nothing
    assert {"Cast", "amp_cast"} & {op for _, op, *_ in found}
    own, before = ({(name, op) for name, op, *_ in each if op in HIDDEN} for each in (found, wanted))
    assert own == before and {op for _, op in own} == HIDDEN
    name, _, dtype, value = found[-1]
    assert name in ("out_fwd_output", "out_fwd_0") and dtype == "float32"
    np.testing.assert_array_equal(value, output)
    convolution = next(dtype for _, op, dtype, _ in found if op == "Convolution")
    assert convolution == ("bfloat16" if policy == "mixed_bfloat16" else "float32")  # float16 is emulated
