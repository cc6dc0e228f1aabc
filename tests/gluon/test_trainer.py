from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.dtypes import to_numpy
from mxmp.errors import LossScaleError, NonFiniteLossError
from mxmp.gluon.trainer import Trainer
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.gluon.trainer_tools import DTYPES, KVSTORES, TWO, backward, param, sgd, value


def network(ctx, hybridize):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=5, activation="tanh"))
    net.add(mx.gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Zero(), ctx=ctx)
    draw = np.random.RandomState(0)
    for p in net.collect_params().values():
        p.set_data(mx.nd.array(draw.randn(*p.shape)))
    if hybridize:
        net.hybridize()
    return net


def train(net, trainer, contexts, steps, scale):
    loss_fn = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    draw = np.random.RandomState(1)
    for _ in range(steps):
        x, y = draw.randn(4 * len(contexts), 5), draw.randint(0, 3, 4 * len(contexts))
        xs = mx.gluon.utils.split_and_load(mx.nd.array(x), contexts)
        ys = mx.gluon.utils.split_and_load(mx.nd.array(y), contexts)
        with autograd.record():
            losses = [loss_fn(net(a), b) for a, b in zip(xs, ys)]
        if scale:
            with trainer.scale_loss(losses) as scaled:
                autograd.backward(scaled)
        else:
            autograd.backward(losses)
        trainer.step(len(x))
    return [value(p.data(ctx)) for p in net.collect_params().values() for ctx in contexts]


@pytest.mark.behaviour("float32's training")
@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybrid"])
@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_in_float32_is_that_of_gluon_bit_for_bit(optimizer, contexts, kvstore, hybridize):
    contexts = TWO[:contexts]
    options = {"learning_rate": 0.05, "wd": 0.01, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    plain = network(contexts, hybridize)
    reference = mx.gluon.Trainer(
        plain.collect_params(), optimizer, dict(options), kvstore=kvstore, update_on_kvstore=False
    )
    expected = train(plain, reference, contexts, 10, scale=False)

    net = network(contexts, hybridize)
    trainer = Trainer(net.collect_params(), optimizer, dict(options), kvstore=kvstore)
    found = train(net, trainer, contexts, 10, scale=True)
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)
    assert trainer.skipped_steps == 0


@pytest.mark.behaviour("an exact scale")
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("update_on_kvstore", [None, True, False])
def test_without_a_loss_scale_the_loop_of_gluon_is_unchanged(contexts, update_on_kvstore):
    contexts = TWO[:contexts]
    nets = [network(contexts, False) for _ in range(2)]
    kwargs = {"update_on_kvstore": update_on_kvstore if len(contexts) > 1 else None}
    options = {"learning_rate": 0.05, "momentum": 0.9}
    reference = mx.gluon.Trainer(nets[0].collect_params(), "sgd", options, **kwargs)
    trainer = Trainer(nets[1].collect_params(), "sgd", options, loss_scale=None, **kwargs)
    expected = train(nets[0], reference, contexts, 5, scale=False)
    found = train(nets[1], trainer, contexts, 5, scale=False)
    for a, b in zip(found, expected):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_size_divides_the_gradient(dtype):
    w = param([8.0], dtype)
    trainer = sgd(w, 16)
    backward(trainer, w, 4)
    trainer.step(batch_size=2)
    assert value(w.data()) == [6.0]


def test_a_rescale_grad_of_the_user_is_kept():
    w = param([8.0])
    trainer = Trainer([w], "sgd", {"learning_rate": 1.0, "rescale_grad": 0.25})
    backward(trainer, w, 4)
    trainer.step(2)
    assert w.data().asscalar() == 7.5


def test_learning_rate_can_be_read_and_set():
    w = param([1.0])
    trainer = sgd({"w": w})  # as MXNet's trainer takes it
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == trainer.optimizer.lr == 0.25
    backward(trainer, w, 1)
    trainer.step(1)
    assert w.data().asscalar() == 0.75


def test_parameters_without_gradient_are_left_alone():
    w, frozen = param([1.0]), param([2.0], name="frozen", grad_req="null")
    trainer = sgd([w, frozen])
    backward(trainer, w, 1)
    trainer.unscale()
    trainer.clip_global_norm(10)
    assert trainer.step(1)
    assert frozen.data().asscalar() == 2.0


def overflow_above(limit, trainer, w):
    """Run one step whose gradients overflow iff the scale is above the limit."""
    backward(trainer, w, 1)
    if trainer.loss_scale.value > limit:
        w.grad()[:] = np.inf
    return trainer.step(1)


def test_the_default_scale_skips_one_step_to_find_its_level():
    w = param([1.0])
    trainer = sgd(w, lr=0.0)
    scales = []
    for _ in range(6):
        scales.append(math.log2(trainer.loss_scale.value))
        overflow_above(2.0**10, trainer, w)
    assert scales == [8, 9, 10, 11, 8, 8]
    assert trainer.skipped_steps == 1


def test_loss_scale_is_a_value_object():
    assert sgd(param([1.0]), 8).loss_scale == StaticLossScale(8)
    assert sgd(param([1.0]), None).loss_scale == NoOpLossScale()
    assert sgd(param([1.0])).loss_scale == DynamicLossScale()


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("spec", ["statisch", 0, -1, math.nan])
def test_a_wrong_loss_scale_is_refused(spec):
    with pytest.raises(LossScaleError):
        sgd(param([1.0]), spec)


@pytest.mark.behaviour("any bad value")
def test_mixed_dtypes_are_checked_together():
    params = [param([1.0], dtype, name=dtype) for dtype in DTYPES]
    for i in range(3):
        trainer = sgd(params, 1)
        backward(trainer, params, 1)
        assert trainer.step(1)
        backward(trainer, params, 1)
        params[i].grad()[:] = mx.nd.amp_cast(mx.nd.array([np.inf]), dtype=to_numpy(DTYPES[i]))
        assert not trainer.step(1)


@pytest.mark.behaviour("sparse gradients")
def test_row_sparse_gradients_are_checked_and_unscaled():
    w = param(np.ones((6, 2)), grad_stype="row_sparse")
    trainer = sgd(w, DynamicLossScale(init_scale=2.0**20))

    def run(rows, head):
        with autograd.record():
            out = mx.nd.Embedding(mx.nd.array(rows), w.data(), input_dim=6, output_dim=2, sparse_grad=True)
            loss = (out * head).sum()
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    run([1, 4], 0.5)
    assert trainer.step(1)
    expected = np.ones((6, 2))
    expected[[1, 4]] = 0.5
    np.testing.assert_array_equal(w.data().asnumpy(), expected)

    run([1, 1], 2e32)  # each finite, 2e38; their sum is not
    assert not trainer.step(1)
    np.testing.assert_array_equal(w.data().asnumpy(), expected)

    run([1], 0.25)
    assert trainer.clip_global_norm(math.sqrt(2) / 8) == pytest.approx(math.sqrt(2) / 4)
    assert w.grad().stype == "row_sparse"
    assert trainer.step(1)
    np.testing.assert_allclose(w.data().asnumpy()[1], [0.375, 0.375], rtol=1e-6)


def test_parameters_may_be_initialized_late():
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.One())
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record(), trainer.scale_loss(net(mx.nd.array([[1.0, 2.0, 3.0]]))) as scaled:
        scaled.backward()
    assert trainer.step(1)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), [[0, -1, -2]] * 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_arrays_of_mxnet(dtype):
    with mx.util.np_shape(True), mx.util.np_array(True):
        w = mx.gluon.Parameter("w", shape=(2,))
        w.initialize(mx.init.One())
        w.cast(dtype)
        trainer = sgd(w)
        for step in range(2):
            with autograd.record():
                loss = (mx.npx.cast(w.data(), dtype="float32") * mx.np.array([0.25, 0.5])).sum()
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
            if step:
                trainer.unscale()
                assert type(w.grad()) is mx.np.ndarray
                assert w.grad().tolist() == [0.25, 0.5]
                assert trainer.clip_global_norm(9.0) == pytest.approx(math.sqrt(0.3125))
            assert trainer.step(1)
        assert w.data().tolist() == [0.5, 0]


@pytest.mark.parametrize("bad", ["gradient", "loss", "loss, clipped"])
def test_batch_norm_outlives_a_forward_pass_that_overflows(bad, caplog):
    """An activation beyond float16 makes the running statistics NaN; every later average would be NaN too."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)

    def forward(x):
        with autograd.record(), trainer.scale_loss((net(x) ** 2).mean()) as scaled:
            scaled.backward()

    x = mx.nd.array(np.random.RandomState(0).rand(8, 3))
    forward(x)
    assert trainer.step(1)
    before = [net[1].running_mean.data().asnumpy(), net[1].running_var.data().asnumpy()]
    if bad == "gradient":
        forward(x)
        for statistics in (net[1].running_mean, net[1].running_var):
            statistics.data()[:] = np.nan  # as an activation beyond float16 makes them
        net[0].weight.grad()[:] = np.inf
        assert not trainer.step(1)
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # of them alone, none of the skip
    else:
        forward(x * np.inf)
        with pytest.raises(NonFiniteLossError):
            trainer.clip_global_norm(1.0) if "clipped" in bad else trainer.step(1)
    np.testing.assert_array_equal([net[1].running_mean.data().asnumpy(), net[1].running_var.data().asnumpy()], before)
    forward(x)
    assert trainer.step(1)


def test_statistics_that_another_pass_destroyed_are_put_back_though_the_step_is_taken():
    """As a generator's pass through the discriminator does: BatchNorm in training does not read its own statistics."""
    net = mx.gluon.nn.BatchNorm(in_channels=3)
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)
    net.running_mean.data()[:] = np.nan
    with autograd.record(), trainer.scale_loss(net(mx.nd.random.uniform(shape=(4, 3))).sum()) as scaled:
        scaled.backward()
    assert trainer.step(1)
    assert net.running_mean.data().asnumpy().tolist() == [0, 0, 0]
