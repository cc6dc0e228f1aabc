from __future__ import annotations

import logging
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.dtypes import to_numpy
from mxmp.errors import LossScaleError, NonFiniteLossError
from mxmp.gluon.trainer import Trainer
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.gluon.trainer_tools import (
    DTYPES,
    KVSTORES,
    TWO,
    backward,
    collapse,
    loss_of,
    param,
    sgd,
    snapshot,
    value,
)

# The plain loop, against mx.gluon.Trainer in float32.


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


def test_step_says_whether_it_updated():
    w = param([1.0])
    trainer = sgd(w)
    backward(trainer, w, 1)
    assert trainer.step(1) is True
    assert w.data().asscalar() == 0
    backward(trainer, w, 1)
    w.grad()[:] = np.inf
    assert trainer.step(1) is False
    assert w.data().asscalar() == 0


def test_counters_of_skipped_steps():
    w = param([1.0])
    trainer = sgd(w)
    seen = []
    for finite in (True, False, False, True, False):
        backward(trainer, w, 0)
        if not finite:
            w.grad()[:] = np.nan
        trainer.step(1)
        seen.append((trainer.last_step_skipped, trainer.consecutive_skips, trainer.skipped_steps))
    assert seen == [(False, 0, 0), (True, 1, 1), (True, 2, 2), (False, 0, 2), (True, 1, 3)]


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


@pytest.mark.parametrize("scale", [3.0, 0.1, 1000.0])
def test_scales_that_are_no_power_of_two_cost_a_rounding(scale):
    w = param([1.0])
    trainer = sgd(w, scale)
    backward(trainer, w, 0.7)
    trainer.step(1)
    assert w.data().asscalar() == pytest.approx(0.3, abs=4 * float(np.finfo(np.float32).eps))


def test_learning_rate_can_be_read_and_set():
    w = param([1.0])
    trainer = sgd(w)
    trainer.set_learning_rate(0.25)
    assert trainer.learning_rate == trainer.optimizer.lr == 0.25
    backward(trainer, w, 1)
    trainer.step(1)
    assert w.data().asscalar() == 0.75


def test_params_may_be_a_dict():
    w = param([1.0])
    trainer = sgd({"w": w})
    backward(trainer, w, 1)
    assert trainer.step(1)


def test_parameters_without_gradient_are_left_alone():
    w, frozen = param([1.0]), param([2.0], name="frozen", grad_req="null")
    trainer = sgd([w, frozen])
    backward(trainer, w, 1)
    trainer.unscale()
    trainer.clip_global_norm(10)
    assert trainer.step(1)
    assert frozen.data().asscalar() == 2.0


# The scale over time.


def overflow_above(limit, trainer, w):
    """Run one step whose gradients overflow iff the scale is above the limit."""
    backward(trainer, w, 1)
    if trainer.loss_scale.value > limit:
        w.grad()[:] = np.inf
    return trainer.step(1)


def test_a_new_scale_takes_effect_at_the_next_step():
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=2.0**16), lr=0.0)
    scales = []
    for _ in range(9):
        scales.append(math.log2(trainer.loss_scale.value))
        overflow_above(2.0**10, trainer, w)
    assert scales == [16, 15, 14, 13, 12, 11, 10, 10, 10]
    assert trainer.skipped_steps == 6


def test_the_default_scale_skips_one_step_to_find_its_level():
    w = param([1.0])
    trainer = sgd(w, lr=0.0)
    scales = []
    for _ in range(6):
        scales.append(math.log2(trainer.loss_scale.value))
        overflow_above(2.0**10, trainer, w)
    assert scales == [8, 9, 10, 11, 8, 8]
    assert trainer.skipped_steps == 1


def test_a_float16_gradient_overflows_by_itself_until_the_scale_fits():
    w = param([1.0], "float16")
    trainer = sgd(w, DynamicLossScale(init_scale=2.0**16))
    outcomes = []
    for _ in range(4):
        backward(trainer, w, 3.0)
        outcomes.append(trainer.step(1))
    # 3 * 65536 and 3 * 32768 exceed 65504, 3 * 16384 does not.
    assert outcomes == [False, False, True, True]
    assert value(w.data()) == [-5.0]


def test_the_scale_grows_after_the_interval():
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=4, growth_interval=2), lr=0.0)
    scales = []
    for _ in range(5):
        scales.append(trainer.loss_scale.value)
        backward(trainer, w, 1)
        trainer.step(1)
    assert scales == [4, 4, 8, 8, 16]


def test_each_step_unscales_with_the_scale_of_its_own_window():
    w = param([0.0])
    trainer = sgd(w, DynamicLossScale(init_scale=4, growth_interval=1))
    for expected in (-1, -2, -3):
        backward(trainer, w, 1)
        trainer.step(1)
        assert w.data().asscalar() == expected


@pytest.mark.parametrize("spec", [None, 128, "dynamic", DynamicLossScale(init_scale=2)])
def test_loss_scale_can_be_set_between_steps(spec):
    w = param([0.0])
    trainer = sgd(w, 8)
    trainer.loss_scale = spec
    backward(trainer, w, 1)
    trainer.step(1)
    assert w.data().asscalar() == -1


def test_loss_scale_is_a_value_object():
    assert sgd(param([1.0]), 8).loss_scale == StaticLossScale(8)
    assert sgd(param([1.0]), None).loss_scale == NoOpLossScale()
    assert sgd(param([1.0])).loss_scale == DynamicLossScale()


@pytest.mark.parametrize("spec", ["statisch", 0, -1, math.nan])
def test_a_wrong_loss_scale_is_refused(spec):
    with pytest.raises(LossScaleError):
        sgd(param([1.0]), spec)


# Skipping.


def scheduler():
    return mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nadam", "lamb"])
def test_a_skipped_step_leaves_no_trace(optimizer, dtype, bad):
    options = {"wd": 0.1, "lr_scheduler": scheduler(), "learning_rate": 0.1}
    if optimizer == "sgd":
        options["momentum"] = 0.9
    w, v = param([1.0, 2.0], dtype), param([3.0], name="v")
    trainer = Trainer([w, v], optimizer, options, loss_scale=1024)
    for _ in range(2):
        backward(trainer, [w, v], 0.5)
        assert trainer.step(1)
    before = snapshot(trainer)
    rate = trainer.learning_rate
    backward(trainer, [w, v], 0.5)
    w.grad()[1] = bad
    assert not trainer.step(1)
    assert snapshot(trainer) == before
    assert trainer.learning_rate == rate


def test_a_skipped_first_step_makes_no_states():
    w = param([1.0])
    trainer = Trainer([w], "adam")
    backward(trainer, w, 1)
    w.grad()[:] = np.inf
    trainer.step(1)
    assert trainer._updaters[0].states == {}
    assert trainer.optimizer.num_update == 0


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("where", TWO, ids=str)
def test_an_inf_on_any_context_skips_on_all(kvstore, where):
    w = param([1.0], ctx=TWO)
    trainer = sgd(w, kvstore=kvstore)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    w.grad(where)[:] = np.inf
    assert not trainer.step(1)
    assert [w.data(ctx).asscalar() for ctx in TWO] == [1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_a_sum_over_contexts_that_overflows_skips(kvstore, dtype):
    big = {"float16": 60000.0}.get(dtype, 3e38)
    w = param([1.0], dtype, ctx=TWO)
    trainer = sgd(w, 1, kvstore=kvstore)
    for ctx in TWO:
        backward(trainer, w, 0, ctx)
        w.grad(ctx)[:] = big
    assert not trainer.step(1)


def test_huge_finite_gradients_raise_no_alarm():
    w = param([0.0, 0.0])
    trainer = sgd(w, 1, lr=1e-38)
    backward(trainer, w, 0)
    w.grad()[:] = 3e38
    assert trainer.step(1)


def test_mixed_dtypes_are_checked_together():
    params = [param([1.0], dtype, name=dtype) for dtype in DTYPES]
    for i in range(3):
        trainer = sgd(params, 1)
        backward(trainer, params, 1)
        assert trainer.step(1)
        backward(trainer, params, 1)
        params[i].grad()[:] = mx.nd.amp_cast(mx.nd.array([np.inf]), dtype=to_numpy(DTYPES[i]))
        assert not trainer.step(1)


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


@pytest.mark.parametrize("order", ["step", "unscale", "clip"])
def test_a_scale_below_one_is_checked_after_unscaling(order):
    w = param([0.0])
    trainer = sgd(w, 2.0**-10, lr=1e-30)
    backward(trainer, w, 0)
    w.grad()[:] = 1e37  # finite, but times 2**10 it is not
    if order == "unscale":
        trainer.unscale()
    elif order == "clip":
        trainer.clip_global_norm(1.0)
    assert not trainer.step(1)
    assert w.data().asscalar() == 0


# What happens at the floor, and what the log says.


def test_the_floor_raises_with_the_name_of_the_first_bad_parameter():
    good, bad = param([1.0], name="fc0_weight"), param([1.0], "float16", name="fc1_weight")
    trainer = sgd([good, bad], DynamicLossScale(init_scale=2, max_floor_skips=3))
    backward(trainer, [good, bad], 1)
    trainer.step(1)
    with pytest.raises(LossScaleError) as caught:
        for _ in range(10):
            backward(trainer, [good, bad], 1)
            bad.grad()[:] = np.nan
            trainer.step(1)
    assert str(caught.value) == (
        "gradients non-finite for 3 steps in a row and the scale is at min_scale=1.0; first bad "
        "gradient: 'fc1_weight' at step 5. Lower the learning rate, or keep the layer in "
        "float32 by an override of the policy."
    )
    assert trainer.skipped_steps == trainer.consecutive_skips == 4
    assert good.data().asscalar() == 0


def test_training_can_go_on_after_the_floor_raised():
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=1, max_floor_skips=1))
    with pytest.raises(LossScaleError):
        collapse(trainer, w, 1)
    backward(trainer, w, 1)
    assert trainer.step(1)
    assert w.data().asscalar() == 0


@pytest.mark.parametrize("at_floor", ["warn", "hold"])
def test_the_floor_need_not_raise(at_floor):
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=1, max_floor_skips=2, at_floor=at_floor))
    collapse(trainer, w, 6)
    assert trainer.loss_scale.value == 1
    assert trainer.skipped_steps == 6


def test_skips_are_logged_with_the_scale_before_and_after(caplog):
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=2, growth_interval=1))
    with caplog.at_level(logging.INFO, logger="mxmp"):
        collapse(trainer, w, 2)
        backward(trainer, w, 1)
        trainer.step(1)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "step 1 skipped, its gradients are not finite: DynamicLossScale 2 -> 1; 1 skipped in a row, 1 in all",
        ),
        ("INFO", "step 3 taken, after 2 skipped in a row: DynamicLossScale 1 -> 2"),
    ]


# A loss that is not finite itself.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("before_step", [None, "unscale", "clip_global_norm"])
def test_a_bad_loss_is_an_error_and_changes_nothing(bad, before_step):
    w = param([1.0])
    trainer = sgd(w, lr=0.5)
    backward(trainer, w, 1)
    trainer.step(1)
    before, scale = snapshot(trainer), trainer.loss_scale
    backward(trainer, w, bad)
    with pytest.raises(NonFiniteLossError, match="the loss itself is NaN or inf, before any scaling; no loss"):
        if before_step == "unscale":
            trainer.unscale()
        elif before_step:
            trainer.clip_global_norm(1.0)
        trainer.step(1)
    assert snapshot(trainer) == before
    assert trainer.loss_scale is scale
    assert trainer.skipped_steps == 0
    backward(trainer, w, 1)
    assert trainer.step(1)


def test_one_bad_loss_among_several_is_found():
    w = param([1.0], ctx=TWO)
    trainer = sgd(w)
    with autograd.record():
        good, bad = loss_of(w, 1, TWO[0]), loss_of(w, np.nan, TWO[1])
    with trainer.scale_loss([good, (bad,)]) as scaled:
        autograd.backward([scaled[0], scaled[1][0]])
    with pytest.raises(NonFiniteLossError):
        trainer.step(1)


def test_a_bad_loss_of_an_earlier_window_is_remembered():
    w = param([1.0], grad_req="add")
    trainer = sgd(w)
    backward(trainer, w, np.nan)
    backward(trainer, w, 1)
    with pytest.raises(NonFiniteLossError):
        trainer.step(1)


# Networks of other kinds.


def test_parameters_may_be_initialized_late():
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.One())
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record():
        loss = net(mx.nd.array([[1.0, 2.0, 3.0]]))
    with trainer.scale_loss(loss) as scaled:
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
def test_batch_norm_outlives_a_forward_pass_that_overflows(bad):
    """An activation beyond float16 makes the running statistics NaN; every later average would be NaN too."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)

    def forward(x):
        with autograd.record():
            loss = (net(x) ** 2).mean()
            with trainer.scale_loss(loss) as scaled:
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
    with autograd.record():
        with trainer.scale_loss(net(mx.nd.random.uniform(shape=(4, 3))).sum()) as scaled:
            scaled.backward()
    assert trainer.step(1)
    assert net.running_mean.data().asnumpy().tolist() == [0, 0, 0]
