"""Copies of converted nets: teachers, averages of weights, nets sent to another process."""

from __future__ import annotations

import copy
import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp import amp
from mxmp.errors import ConvertError
from mxmp.gluon import Trainer, cast, convert, report, restore, set_policy

POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
X = mx.nd.array(np.random.RandomState(0).randn(4, 3, 6, 6))
HOW = {"deepcopy": copy.deepcopy, "pickle": lambda net: pickle.loads(pickle.dumps(net))}
COPIES = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


def make(seed=0):
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Activation("relu"), nn.Dense(2, in_units=64))
    net.initialize(mx.init.Xavier())
    return net


def values(net):
    """Return the exact values of a net's parameters, by name."""
    return {name: param._reduce().asnumpy() for name, param in net.collect_params().items()}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def train(net, steps=2):
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, loss_scale=128)
    for _ in range(steps):
        with autograd.record(), trainer.scale_loss((net(X) ** 2).mean()) as scaled:
            scaled.backward()
        assert trainer.step(1)


@COPIES
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hybridized", [False, True], ids=["plain", "hybridized"])
def test_a_copy_gives_the_same_and_trains_alike(policy, hybridized, how):
    net = convert(make(), policy)
    if hybridized:
        net.hybridize(static_alloc=True)
    train(net)
    expected, before = net(X).asnumpy(), values(net)
    twin = how(net)
    assert np.array_equal(twin(X).asnumpy(), expected) and same(values(twin), before)
    assert {row.precision for row in report(twin).rows} == {row.precision for row in report(net).rows}
    train(twin)
    assert same(values(net), before) and not same(values(twin), before)
    train(net)
    assert same(values(net), values(twin))  # from the same weights by the same steps


@COPIES
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_restoring_either_leaves_the_other_converted(policy, how):
    net = convert(make(), policy)
    net(X)
    low = net(X).asnumpy()
    plain = restore(how(net))
    other = how(net)
    assert all(param.dtype in (np.float32, "float32") for param in plain.collect_params().values())
    assert not np.array_equal(plain(X).asnumpy(), low)
    restore(net)
    assert np.array_equal(net(X).asnumpy(), plain(X).asnumpy())
    assert np.array_equal(other(X).asnumpy(), low)
    with autograd.record():
        plain(X).sum().backward()
    assert plain[0].weight.grad().asnumpy().any()


def test_a_teacher_follows_by_an_average_of_weights():
    student = convert(make(), "O2")
    student(X)
    teacher = copy.deepcopy(student)
    start = values(student)
    for _ in range(3):
        train(student, 1)
        for name, param in teacher.collect_params().items():
            value = 0.5 * param._reduce() + 0.5 * student.collect_params()[name]._reduce()
            param.set_data(value)
    end, between = values(student), values(teacher)
    name = student[0].weight.name
    assert not np.array_equal(between[name], start[name]) and not np.array_equal(between[name], end[name])
    assert teacher(X).shape == (4, 2)


@COPIES
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_a_symbol_block_is_copied(tmp_path, dtype, how):
    net = make()
    net.hybridize()
    net(X)
    net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    plain = block(X).asnumpy()
    cast(block, dtype)
    expected = block(X).asnumpy()
    twin = how(block)
    assert np.array_equal(twin(X).asnumpy(), expected)
    assert np.array_equal(restore(twin)(X).asnumpy(), plain)
    assert np.array_equal(block(X).asnumpy(), expected)


@pytest.mark.bfloat16
def test_pickle_keeps_the_casts_of_an_imported_block(tmp_path):
    """A symbol's own pickle drops every amp_cast, which is what a symbol in bfloat16 is made of."""
    net = convert(make(), "mixed_bfloat16")
    net(X)
    net.export(str(tmp_path / "net"))
    symbol = tmp_path / "net-symbol.json"
    symbol.write_text(symbol.read_text().replace("__mxmp", "__other"))  # casts of the network's own
    block = gluon.SymbolBlock.imports(str(symbol), ["data"], str(tmp_path / "net-0000.params"))
    expected = block(X).asnumpy()
    twin = pickle.loads(pickle.dumps(convert(block, "O1")))
    assert np.array_equal(restore(twin)(X).asnumpy(), expected)


class Parts(gluon.Block):
    """Two graphs that share a weight."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.HybridSequential()
            self.first.add(nn.Dense(3, in_units=3))
            self.second = nn.HybridSequential()
            self.second.add(nn.Dense(3, in_units=3, params=self.first[0].params))

    def forward(self, x):
        return self.second(self.first(x))


@COPIES
def test_parts_of_a_block_are_copied_together(how):
    net, x = Parts(), mx.nd.ones((2, 3))
    net.initialize()
    convert(net, "O2")
    expected = net(x).asnumpy()
    twin = how(net)
    assert np.array_equal(twin(x).asnumpy(), expected)
    assert twin.first[0].weight is twin.second[0].weight is not net.first[0].weight
    found = twin.first._mxmp_conversion.siblings
    assert found.conversions == [twin.first._mxmp_conversion, twin.second._mxmp_conversion]
    assert found.lock is not net.first._mxmp_conversion.siblings.lock


def test_a_part_is_copied_without_the_others():
    net = Parts()
    net.initialize()
    convert(net, "O1")
    net(mx.nd.ones((2, 3)))
    held = copy.deepcopy(net.first)._mxmp_conversion
    assert held.siblings.conversions == [held]


@COPIES
def test_policies_of_blocks_are_kept(how):
    net = make()
    set_policy(net[0], "float32")
    convert(net, "O1")
    net(X)
    twin = how(net)
    twin(X)
    rows = {row.op: row.precision for row in report(twin).rows}
    assert rows["Convolution"] == "float32" and rows["FullyConnected"] == "float16"
    assert convert(twin, "O1")._mxmp_conversion is twin._mxmp_conversion
    set_policy(twin[0], None)
    convert(twin, "O1")(X)
    assert {row.op: row.precision for row in report(twin).rows}["Convolution"] == "float16"


def test_a_block_in_the_net_may_have_been_called_by_itself():
    net = make()
    net.hybridize()
    net[0](X)
    convert(net, "O1")
    assert np.array_equal(copy.deepcopy(net)(X).asnumpy(), net(X).asnumpy())


def test_a_copy_may_be_copied():
    net = convert(make(), "O2")
    train(net)
    twin = copy.deepcopy(copy.deepcopy(net))
    train(twin)
    assert same(values(copy.deepcopy(twin)), values(twin))


def test_disable_gives_copies_back():
    net = make()
    net.hybridize()
    plain = net(X).asnumpy()
    amp.init()
    try:
        net(X)
        twin = copy.deepcopy(net)
        assert not np.array_equal(twin(X).asnumpy(), plain)
    finally:
        amp.disable()
    assert np.array_equal(twin(X).asnumpy(), plain)


def test_a_shallow_copy_is_not_converted():
    net = nn.Dense(2, in_units=3)
    net.initialize()
    other = copy.copy(convert(net, "O1"))
    with pytest.raises(ConvertError, match="is not converted"):
        report(other)
    restore(other)
    assert report(net).count


@pytest.mark.parametrize("how", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_restored_copy_has_no_parts(how):
    net = nn.HybridSequential()
    net.add(nn.Dense(2, in_units=3))
    net.initialize()
    other = how(convert(net, "O1"))
    restore(other)
    with pytest.raises(ConvertError, match="is not converted"):
        report(other[0])
    with pytest.raises(ConvertError, match="is part of a converted net"):
        report(net[0])
