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
    twin = how(how(net))
    assert np.array_equal(twin(X).asnumpy(), expected) and same(values(twin), before)
    assert {row.precision for row in report(twin).rows} == {row.precision for row in report(net).rows}
    train(twin)
    assert same(values(net), before) and not same(values(twin), before)
    train(net)
    assert same(values(net), values(twin))  # from the same weights by the same steps
    assert same(values(how(twin)), values(twin))


@COPIES
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_restoring_either_leaves_the_other_converted(policy, how):
    net = convert(make(), policy)
    low = net(X).asnumpy()
    plain, other = restore(how(net)), how(net)
    assert all(param.dtype in (np.float32, "float32") for param in plain.collect_params().values())
    assert not np.array_equal(plain(X).asnumpy(), low)
    with pytest.raises(ConvertError, match="is not converted"):
        report(plain[0])
    with pytest.raises(ConvertError, match="is part of a converted net"):
        report(net[0])
    restore(net)
    assert np.array_equal(net(X).asnumpy(), plain(X).asnumpy())
    assert np.array_equal(other(X).asnumpy(), low)
    with autograd.record():
        plain(X).sum().backward()
    assert plain[0].weight.grad().asnumpy().any()


def exported(net, folder):
    net(X)
    net.export(str(folder / "net"))
    return folder / "net-symbol.json"


def imported(symbol):
    params = symbol.parent / "net-0000.params"
    return gluon.SymbolBlock.imports(str(symbol), ["data"], str(params))


@COPIES
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_a_symbol_block_is_copied(tmp_path, dtype, how):
    net = make()
    net.hybridize()
    block = imported(exported(net, tmp_path))
    plain = block(X).asnumpy()
    expected = cast(block, dtype)(X).asnumpy()
    twin = how(block)
    assert np.array_equal(twin(X).asnumpy(), expected)
    assert np.array_equal(restore(twin)(X).asnumpy(), plain)
    assert np.array_equal(block(X).asnumpy(), expected)


@pytest.mark.bfloat16
def test_pickle_keeps_the_casts_of_an_imported_block(tmp_path):
    """A symbol's own pickle drops every amp_cast, which is what a symbol in bfloat16 is made of."""
    symbol = exported(convert(make(), "mixed_bfloat16"), tmp_path)
    symbol.write_text(symbol.read_text().replace("__mxmp", "__other"))  # casts of the network's own
    block = imported(symbol)
    expected = block(X).asnumpy()
    twin = pickle.loads(pickle.dumps(convert(block, "O1")))
    assert np.array_equal(restore(twin)(X).asnumpy(), expected)


@COPIES
def test_parts_of_a_block_are_copied_together_and_one_without_the_other(how):
    net, x = nn.Sequential(), mx.nd.ones((2, 3))
    net.add(nn.Dense(3, in_units=3))
    net.add(nn.Dense(3, in_units=3, params=net[0].params))
    net.initialize()
    expected = convert(net, "O2")(x).asnumpy()
    twin = how(net)
    assert np.array_equal(twin(x).asnumpy(), expected)
    assert twin[0].weight is twin[1].weight is not net[0].weight
    siblings = twin[0]._mxmp_conversion.siblings
    assert siblings.conversions == [twin[0]._mxmp_conversion, twin[1]._mxmp_conversion]
    assert siblings.lock is not net[0]._mxmp_conversion.siblings.lock
    part = copy.deepcopy(net[0])._mxmp_conversion
    assert part.siblings.conversions == [part]


@COPIES
def test_policies_of_blocks_are_kept(how):
    net = make()
    set_policy(net[0], "float32")
    convert(net, "O1")(X)
    twin = how(net)
    assert precisions(twin)["Convolution"] == "float32" and precisions(twin)["FullyConnected"] == "float16"
    assert convert(twin, "O1")._mxmp_conversion is twin._mxmp_conversion
    set_policy(twin[0], None)
    assert precisions(convert(twin, "O1"))["Convolution"] == "float16"


def precisions(net):
    net(X)
    return {row.op: row.precision for row in report(net).rows}


def test_a_block_in_the_net_may_have_been_called_by_itself():
    net = make()
    net.hybridize()
    net[0](X)
    convert(net, "O1")
    assert np.array_equal(copy.deepcopy(net)(X).asnumpy(), net(X).asnumpy())


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
    net = convert(make(), "O1")
    other = copy.copy(net)
    with pytest.raises(ConvertError, match="is not converted"):
        report(other)
    restore(other)
    assert report(net).count
