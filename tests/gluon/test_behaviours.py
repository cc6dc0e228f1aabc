"""What a user can check of nets and their trainer, by public names only. docs/behaviours.md lists it."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

import mxmp
from mxmp.errors import LossScaleError
from mxmp.loss_scale import DynamicLossScale
from tests.freeze import freeze
from tests.perceptron import X, make, values
from tests.symbol.small import dtypes_of


@pytest.mark.behaviour(38)
@pytest.mark.parametrize("hybridized", [False, True])
def test_a_net_is_converted_in_place_and_computes_in_low_precision(hybridized):
    net = make()
    net.hybridize(hybridized)
    before, params = net(X).asnumpy(), dict(net.collect_params())
    assert mxmp.gluon.convert(net, "O1") is net
    after = net(X)
    assert after.dtype == np.float32 and 0 < np.abs(after.asnumpy() - before).max() < 0.02
    assert all(net.collect_params()[name] is param for name, param in params.items())


@pytest.mark.behaviour(39)
@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("hybridized", [False, True])
def test_restore_gives_the_float32_net_back_bit_for_bit(policy, hybridized):
    net = make()
    net.hybridize(hybridized)
    before = freeze([values(net), net(X)])
    mxmp.gluon.convert(net, policy)
    assert freeze([values(net), net(X)]) != before
    mxmp.gluon.restore(net)
    assert freeze([values(net), net(X)]) == before


@pytest.mark.behaviour(40)
def test_a_float32_region_holds_for_the_calls_in_it():
    net = make()
    exact = net(X).asnumpy()
    mxmp.gluon.convert(net, "O1")
    with mxmp.gluon.precision("float32"):
        inside = net(X).asnumpy()
    np.testing.assert_array_equal(inside, exact)
    assert not np.array_equal(net(X).asnumpy(), exact)


@pytest.mark.behaviour(42)
def test_saved_parameters_are_the_float32_masters(tmp_path):
    """Updates of 2**-14 are less than half of the last place of 1 in float16; twenty of them are not."""
    net = mxmp.gluon.convert(make(), "O2")
    net(X)
    net[1].bias.set_data(mx.nd.ones(3))
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 2.0**-14}, loss_scale=8)
    for _ in range(20):
        with autograd.record(), trainer.scale_loss(net(X).sum()) as scaled:
            scaled.backward()
        assert trainer.step(4)
    net.save_parameters(str(tmp_path / "net.params"))
    plain = make(seed=1)
    plain.load_parameters(str(tmp_path / "net.params"))
    moved = 1 - plain.collect_params()["net_dense1_bias"].data().asnumpy()
    assert dtypes_of({"": plain[1].bias.data()}) == {"": "float32"}
    np.testing.assert_array_equal(moved, [20 * 2.0**-14] * 3)


def backward_apart(net):
    """Return a trainer of a net on two contexts that train apart; the gradients of the second are twice as large."""
    contexts = [mx.cpu(0), mx.cpu(1)]
    net.collect_params().reset_ctx(contexts)
    for ctx in contexts:
        net(X.as_in_context(ctx))
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore=None, loss_scale=8)
    with autograd.record():
        losses = [net(X.as_in_context(ctx)).sum() * factor for ctx, factor in zip(contexts, [1, 2])]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
    return trainer


@pytest.mark.parametrize("clips", [False, True])
def test_without_a_kvstore_each_context_is_updated_by_its_own_gradients(clips):
    net = make()
    trainer = backward_apart(net)
    if clips:
        trainer.clip_global_norm(1.0)
    assert trainer.step(4)
    one, other = (bias.asnumpy() for bias in net[1].bias.list_data())
    assert other.tolist() == (2 * one).tolist() != [0] * 3
    assert (one.tolist() == [-1] * 3) is not clips


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_file_has_the_mean_of_contexts_that_train_apart(policy, tmp_path):
    net, plain = mxmp.gluon.convert(make(), policy), make(seed=1)
    assert backward_apart(net).step(4)
    net.save_parameters(str(tmp_path / "net.params"))
    plain.load_parameters(str(tmp_path / "net.params"))
    for saved, param in zip(plain.collect_params().values(), net.collect_params().values()):
        one, other = (mxmp.gluon.exact_value(param, ctx).asnumpy() for ctx in param.list_ctx())
        np.testing.assert_array_equal(saved.data().asnumpy(), (one + other) / 2)
    assert not np.array_equal(one, other)


def test_of_several_bad_gradients_at_the_floor_the_first_is_named():
    """A trainer has its parameters in the order of their names."""
    net, scale = make(), DynamicLossScale(init_scale=1, min_scale=1, max_floor_skips=1)
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=scale)
    with autograd.record(), trainer.scale_loss(net(X).sum()) as scaled:
        scaled.backward()
    for param in net.collect_params().values():
        param.grad()[:] = np.inf
    with pytest.raises(LossScaleError, match="'net_dense0_bias'"):
        trainer.step(4)
