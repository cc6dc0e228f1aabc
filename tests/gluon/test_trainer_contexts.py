"""Parameters on several contexts, of several dtypes, under every optimizer."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import LossScaleError, StaleGradientError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import DTYPES, KVSTORES, TWO, backward, param, value
from tests.masters.test_optimizer import OPTIMIZERS, make

VALUES = np.array([[0.5, -1.25], [1.5, 0.75]])  # exact in every dtype


def parameters(dtypes, contexts=TWO):
    return [param(VALUES, dtype, ctx=contexts, name=f"{dtype}_weight") for dtype in dtypes]


def trainer_of(params, optimizer="sgd", kvstore="device", **scale):
    return Trainer(params, make(optimizer), kvstore=kvstore, loss_scale=DynamicLossScale(init_scale=2.0**8, **scale))


def fill(array, number):
    array[:] = mx.nd.amp_cast(mx.nd.full(array.shape, number, ctx=array.ctx), dtype=array.dtype)


@pytest.mark.behaviour("a NaN on one replica")
@pytest.mark.parametrize("kvstore", KVSTORES)
def test_a_nan_that_stays_on_one_context_is_named(kvstore):
    params = parameters(["float32", "float16"])
    trainer = trainer_of(params, kvstore=kvstore, max_floor_skips=2)
    with pytest.raises(LossScaleError, match="2 steps in a row .* first bad gradient: 'float16_weight' at step 10"):
        for _ in range(20):  # 8 to the floor, 2 at it
            for ctx in TWO:
                backward(trainer, params, 0.5, ctx)
            fill(params[1].grad(TWO[1]), np.nan)
            trainer.step(1)


def test_without_a_kvstore_updates_too_small_for_float16_add_up_on_each_context():
    """Each context has masters of its own, from the first step on."""
    params = parameters(["float16"])
    trainer = Trainer(params, "sgd", {"learning_rate": 2.0**-14}, kvstore=None, loss_scale=8)
    for _ in range(20):
        for ctx, gradient in zip(TWO, (1, 2)):
            backward(trainer, params, gradient, ctx)
        assert trainer.step(1)
    for array, gradient in zip(params[0].list_data(), (1, 2)):
        np.testing.assert_array_equal(array.asnumpy(), np.float16(VALUES - 20 * gradient * 2.0**-14))


@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_are_those_of_a_run_on_one_context_with_the_sum(optimizer, kvstore):
    """Bit for bit, with float16 and float32 gradients mixed, and a skipped step among them."""

    def run(contexts, shares):
        mx.random.seed(5)  # SGLD draws noise
        params = parameters(["float32", "float16"], contexts)
        trainer = trainer_of(params, optimizer, kvstore)
        for step in range(6):
            for ctx, share in zip(contexts, shares):
                backward(trainer, params, share * 2.0**-step, ctx)
            if step == 3:
                fill(params[1].grad(contexts[-1]), np.inf)
            assert trainer.step(1) == (step != 3)
        return params

    (alone, alone_low), params = run(TWO[:1], [0.75]), run(TWO, [0.25, 0.5])
    for p, expected in zip(params, (alone, alone_low)):
        for ctx in TWO:
            np.testing.assert_array_equal(value(p.data(ctx)), value(expected.data()), err_msg=f"{p.name} on {ctx}")
    assert not np.array_equal(value(alone.data()), VALUES)


@pytest.mark.parametrize("call", ["step", "unscale", "clip_global_norm", "clip_value"])
@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_context_without_a_batch_adds_nothing(dtype, kvstore, call):
    """The last batches of an epoch may not reach every context; what lies on the others is an old sum."""
    w = param([0.0], dtype, ctx=TWO)
    trainer = Trainer([w], "sgd", {"learning_rate": 1.0}, kvstore=kvstore, loss_scale=DynamicLossScale(init_scale=8))
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    fill(w.grad(TWO[0]), np.inf)
    assert not trainer.step(1)
    for _ in range(2):
        backward(trainer, w, 1, TWO[1])
        if call != "step":
            getattr(trainer, call)(*[100.0][: call.startswith("clip")])
        assert trainer.step(1, ignore_stale_grad=True)
    assert [value(w.data(ctx)).tolist() for ctx in TWO] == [[-2], [-2]]


@pytest.mark.parametrize("loss_scale", [8, 0.25])
def test_parameters_with_gradients_on_different_contexts_are_clipped_together(loss_scale):
    first, second = (param([0.0], ctx=TWO, name=name) for name in "ab")
    trainer = Trainer([first, second], "sgd", {"learning_rate": 1.0}, kvstore="device", loss_scale=loss_scale)
    backward(trainer, first, 3, TWO[0])
    backward(trainer, second, 4, TWO[1])
    assert trainer.clip_global_norm(1.0) == pytest.approx(5)
    assert trainer.step(1, ignore_stale_grad=True)
    for ctx in TWO:
        assert value(first.data(ctx)) == pytest.approx(-0.6) and value(second.data(ctx)) == pytest.approx(-0.8)


@pytest.mark.parametrize("call", ["unscale", "clip_global_norm"])
def test_a_context_without_a_batch_is_an_error_whatever_came_before_the_step(call):
    w = param([0.0], ctx=TWO)
    trainer = Trainer([w], "sgd", {"learning_rate": 1.0}, kvstore="device", loss_scale=8)
    backward(trainer, w, 1, TWO[1])
    getattr(trainer, call)(*[100.0][: call.startswith("clip")])
    with pytest.raises(StaleGradientError, match=r"parameter 'w' on context cpu\(0\)"):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True)
    assert [value(w.data(ctx)).tolist() for ctx in TWO] == [[-1], [-1]]


def test_a_context_without_a_batch_under_set_np():
    with mx.util.np_shape(True), mx.util.np_array(True):
        w = mx.gluon.Parameter("w", shape=(1,))
        w.initialize(mx.init.Zero(), ctx=TWO)
        trainer = Trainer([w], "sgd", {"learning_rate": 1.0}, kvstore="device", loss_scale=8)
        with autograd.record(), trainer.scale_loss(w.data(TWO[1]).sum()) as scaled:
            scaled.backward()
        assert trainer.step(1, ignore_stale_grad=True)
        assert [float(w.data(ctx)) for ctx in TWO] == [-1, -1]
