"""Copies of converted nets: teachers, averages of weights, nets sent to another process."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import ConvertError, PolicyError
from mxmp.gluon import cast, convert, report, restore, set_policy
from tests.gluon.nets import X, cnn, exact, exported, imported, precisions, recorded, train

POLICIES = ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
HOW = {"deepcopy": copy.deepcopy, "pickle": lambda net: pickle.loads(pickle.dumps(net))}
COPIES = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@COPIES
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_copy_has_exact_float32_values_is_converted_by_its_own_call_and_trains_alike(policy, is_trained, how):
    net = cnn(policy)
    if is_trained:
        train(net)
    before = exact(net)
    twin = how(how(net))
    assert {np.dtype(param.dtype) for param in twin.collect_params().values()} == {np.dtype("float32")}
    assert {type(param) for param in twin.collect_params().values()} == {gluon.Parameter}
    with pytest.raises(ConvertError, match="is converted at its first call"):
        report(twin)
    assert np.array_equal(twin(X).asnumpy(), net(X).asnumpy())
    assert same(exact(twin), before)
    assert report(twin) == report(net)
    train(twin)
    assert same(exact(net), before) and not same(exact(twin), before)
    train(net)
    assert same(exact(net), exact(twin))  # from the same weights by the same steps


@COPIES
def test_a_copy_is_refused_the_pattern_that_its_net_is(how):
    twin = how(convert(cnn(), "O1,name:typo=float32"))
    with pytest.raises(PolicyError, match="names: 'typo' matches no node"):
        twin(X)


@COPIES
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_net_is_copied_between_a_block_and_its_step(policy, contexts, how):
    contexts = [mx.cpu(index) for index in range(contexts)]
    net = cnn(policy, ctx=contexts)
    trainer = train(net, 1)
    with autograd.record():
        losses = [net(X.as_in_context(ctx)).square().mean() for ctx in contexts]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
    twin, before = how(net), exact(net)
    assert same(exact(twin), before)
    for ctx in contexts:
        np.testing.assert_array_equal(twin[3].weight.grad(ctx).asnumpy(), net[3].weight.grad(ctx).asnumpy())
    assert trainer.step(1)
    after = exact(net)
    twin.collect_params().reset_ctx(contexts)  # MXNet's copies of arrays are all on one CPU context
    train(twin, 1)
    assert same(exact(net), after) and not same(exact(twin), before)


@COPIES
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_restoring_either_leaves_the_other_converted(policy, how):
    net = cnn(policy)
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
    recorded(plain, X)
    assert plain[0].weight.grad().asnumpy().any()


@COPIES
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_a_symbol_block_is_copied(tmp_path, dtype, how):
    net = cnn()
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
    symbol, params = exported(cnn("mixed_bfloat16"), tmp_path)
    Path(symbol).write_text(Path(symbol).read_text().replace("__mxmp", "__other"))  # casts of the network's own
    block = imported((symbol, params))
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
    twin, part = how(net), how(net[0])
    assert np.array_equal(twin(x).asnumpy(), expected)
    assert twin[0].weight is twin[1].weight is not net[0].weight
    assert np.array_equal(part(part(x)).asnumpy(), expected)


@COPIES
def test_policies_of_blocks_are_kept(how):
    net = cnn()
    set_policy(net[0], "float32")
    convert(net, "O1")(X)
    twin = how(net)
    assert precisions(twin)["net_conv0"] == "float32" and precisions(twin)["net_dense0"] == "float16"
    set_policy(twin[0], None)
    assert precisions(convert(twin, "O1"))["net_conv0"] == "float16"


def test_a_block_in_the_net_may_have_been_called_by_itself():
    net = cnn()
    net.hybridize()
    net[0](X)
    convert(net, "O1")
    assert np.array_equal(copy.deepcopy(net)(X).asnumpy(), net(X).asnumpy())


def test_a_shallow_copy_is_not_converted():
    net = cnn("O1")
    net(X)
    other = copy.copy(net)
    with pytest.raises(ConvertError, match="is not converted"):
        report(other)
    restore(other)
    assert report(net).count


class Slow:
    """It takes its time to be copied: until a first call is over, if that does not wait."""

    copying, called = threading.Event(), threading.Event()

    def __reduce__(self):
        self.copying.set()
        assert not self.called.wait(0.3)
        return Slow, ()


@COPIES
def test_a_first_call_waits_for_a_copy_in_another_thread(how):
    """It adds attributes to blocks and parameters. Python does not copy a dictionary that grows meanwhile."""

    def call():
        assert Slow.copying.wait(10)
        outputs = net(X).asnumpy()
        Slow.called.set()
        return outputs

    Slow.copying.clear()
    Slow.called.clear()
    net = cnn("O2")
    net[0].note = Slow()
    with ThreadPoolExecutor() as pool:
        outputs = pool.submit(call)
        twin = how(net)
        assert np.array_equal(outputs.result(), twin(X).asnumpy())
