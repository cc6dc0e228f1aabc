from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import LossScaleError, NonFiniteLossError, StaleGradientError
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import DTYPES, KVSTORES, TWO, backward, loss_of, param, sgd, snapshot, value

# unscale.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("end", ["step", "skip", "loss", "discard", "floor"])
def test_the_original_arrays_come_back_whatever_happens(end, dtype):
    w = param([0.0], dtype)
    trainer = sgd(w, DynamicLossScale(init_scale=1, max_floor_skips=1 if end == "floor" else 9))
    original = w.list_grad()
    backward(trainer, w, np.nan if end == "loss" else 1)
    trainer.unscale()
    assert (w.list_grad()[0] is original[0]) == (dtype == "float32")
    if end == "step":
        assert trainer.step(1)
    elif end == "discard":
        trainer.discard_grads()
    elif end == "skip":
        w.grad()[:] = np.inf
        assert not trainer.step(1)
    else:
        w.grad()[:] = np.inf
        with pytest.raises((NonFiniteLossError, LossScaleError)):
            trainer.step(1)
    assert w._grad is original
    backward(trainer, w, 1)
    assert trainer.step(1)
    assert value(w.data()) == [-2 if end == "step" else -1]


def test_unscale_without_a_scale_shows_float32():
    w = param([1.0], "float16")
    trainer = sgd(w, None)
    with autograd.record():
        loss_of(w, 0.5).backward()
    trainer.unscale()
    assert (w.grad().dtype, w.grad().asscalar()) == (np.float32, 0.5)
    assert trainer.step(1)
    assert value(w.data()) == [0.5]


def test_without_a_kvstore_the_larger_norm_clips_all_contexts():
    w = param([0.0], ctx=TWO)
    trainer = sgd(w, kvstore=None)
    for x, ctx in zip((1, 3), TWO):
        backward(trainer, w, x, ctx)
    assert trainer.clip_global_norm(1.0) == 3
    trainer.step(1)
    np.testing.assert_allclose([w.data(ctx).asscalar() for ctx in TWO], [-1 / 3, -1], rtol=1e-6)


@pytest.mark.parametrize("order", ["clip alone", "unscale first"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_value_clips_true_gradients(dtype, order):
    w = param([0.0, 0.0, 0.0], dtype)
    trainer = sgd(w, 128)
    backward(trainer, w, [-3, 0.25, 2])
    if order == "unscale first":
        trainer.unscale()
    trainer.clip_value(0.5)
    assert w.grad().asnumpy().tolist() == [-0.5, 0.25, 0.5]
    assert trainer.step(1)
    assert value(w.data()).tolist() == [0.5, -0.25, -0.5]


@pytest.mark.parametrize("kvstore", KVSTORES)
def test_clip_value_over_contexts(kvstore):
    w = param([0.0], ctx=TWO)
    trainer = sgd(w, kvstore=kvstore)
    for x, ctx in zip((0.25, 3), TWO):
        backward(trainer, w, x, ctx)
    trainer.clip_value(0.5)
    trainer.step(1)
    assert [w.data(ctx).asscalar() for ctx in TWO] == ([-0.5, -0.5] if kvstore else [-0.25, -0.5])


@pytest.mark.parametrize("bad", [np.inf, np.nan], ids=str)
def test_clip_value_hides_no_overflow(bad):
    w = param([1.0, 1.0])
    trainer = sgd(w)
    backward(trainer, w, 1)
    w.data().grad[:1] = bad  # w.grad() would be a look, after which what is written is the user's
    trainer.clip_value(1.0)
    assert not trainer.step(1)
    assert w.data().asnumpy().tolist() == [1, 1]


def test_clip_value_of_row_sparse_gradients():
    w = param(np.zeros((3, 2)), grad_stype="row_sparse")
    trainer = sgd(w, 8)
    with autograd.record():
        loss = (mx.nd.Embedding(mx.nd.array([1, 1]), w.data(), input_dim=3, output_dim=2, sparse_grad=True) * 3).sum()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    trainer.clip_value(0.5)
    assert trainer.step(1)
    assert value(w.data()).tolist() == [[0, 0], [-0.5, -0.5], [0, 0]]


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("finite", [True, False], ids=["taken", "skipped"])
def test_update_checks_like_step(kvstore, finite):
    w = param([0.0], ctx=TWO)
    trainer = sgd(w, DynamicLossScale(init_scale=2.0**16), kvstore=kvstore)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    if not finite:
        w.grad(TWO[1])[:] = np.nan
    trainer.allreduce_grads()
    assert trainer.update(2) is finite
    expected = 0 if not finite else -1 if kvstore else -0.5
    assert [w.data(ctx).asscalar() for ctx in TWO] == [expected, expected]
    assert trainer.loss_scale.value == 2.0 ** (16 if finite else 15)


def test_unscale_after_allreduce_grads_does_not_reduce_again():
    w = param([0.0], ctx=TWO)
    trainer = sgd(w)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    trainer.allreduce_grads()
    trainer.unscale()
    assert [g.asscalar() for g in w.list_grad()] == [2, 2]
    trainer.update(1)
    assert w.data(TWO[0]).asscalar() == -2


def test_a_stale_gradient_is_an_error_that_names_the_parameter():
    a, b = param([0.0], name="used"), param([0.0], name="unused")
    trainer = sgd([a, b])
    backward(trainer, a, 1)
    before = snapshot(trainer)
    for _ in range(2):
        with pytest.raises(StaleGradientError, match=r"step: the gradient of parameter 'unused' on context cpu\(0\)"):
            trainer.step(1)
    assert snapshot(trainer) == before
    assert isinstance(StaleGradientError("x"), UserWarning)  # what gluon.Trainer raises
    assert trainer.step(1, ignore_stale_grad=True)
    assert (a.data().asscalar(), b.data().asscalar()) == (-1, 0)


@pytest.mark.parametrize("first", ["unscale", "clip"])
def test_stale_gradients_after_unscale(first):
    a, b = param([0.0], name="used"), param([0.0], name="unused")
    trainer = sgd([a, b])
    backward(trainer, [a, b], 1)
    trainer.step(1)
    backward(trainer, a, 1)
    if first == "unscale":
        trainer.unscale()
    else:
        assert trainer.clip_global_norm(10.0) == 1.0  # b's old gradient does not count
    with pytest.raises(StaleGradientError, match="'unused'"):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True)
    assert (a.data().asscalar(), b.data().asscalar()) == (-2, -1)


def test_a_stale_inf_is_no_overflow():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    trainer = sgd([a, b])
    b.grad()[:] = np.inf
    backward(trainer, a, 1)
    assert trainer.step(1, ignore_stale_grad=True)


def test_without_a_scale_stale_gradients_are_as_in_gluon():
    w = param([0.0])
    trainer = sgd(w, None)
    with pytest.raises(UserWarning):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True) is False
    assert w.data().asscalar() == 0


@pytest.mark.parametrize("end", [lambda t: t.step(1), lambda t: t.discard_grads()], ids=["step", "discard"])
def test_a_step_ends_though_a_gradient_is_gone(end):
    w = param([1.0], dtype="float16")
    trainer = sgd(w, 8)
    backward(trainer, w, [2.0])
    trainer.unscale()
    w.grad_req = "null"
    end(trainer)
    w.grad_req = "write"
    backward(trainer, w, [2.0])
    assert trainer.step(1)
