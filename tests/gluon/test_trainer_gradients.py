from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.dtypes import to_numpy
from mxmp.errors import LossScaleError, NonFiniteLossError, StaleGradientError
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import (
    DTYPES,
    KVSTORES,
    LOW,
    TWO,
    backward,
    loss_of,
    param,
    sgd,
    snapshot,
    value,
)

# unscale.


@pytest.mark.parametrize("dtype", DTYPES)
def test_unscale_shows_true_gradients_in_float32(dtype):
    w = param([1.0], dtype)
    trainer = sgd(w)
    backward(trainer, w, 2.0**-10)
    original = w.grad()
    trainer.unscale()
    assert w.grad().dtype == np.float32
    assert w.grad().asscalar() == 2.0**-10
    assert (w.grad() is original) == (dtype == "float32")


@pytest.mark.parametrize("dtype", LOW)
def test_unscale_flushes_nothing_to_zero(dtype):
    w = param([1.0], dtype)
    trainer = sgd(w, 2.0**16)
    backward(trainer, w, 1e-3 / 65536)
    assert value(w.grad())[0] == pytest.approx(1e-3, rel=2.0**-8)
    trainer.unscale()
    assert w.grad().asscalar() == pytest.approx(1e-3 / 65536, rel=2.0**-8)
    assert np.float16(1e-3 / 65536) == 0


@pytest.mark.parametrize("dtype", LOW)
def test_the_original_arrays_come_back_after_the_step(dtype):
    w = param([0.0], dtype)
    trainer = sgd(w, 8)
    original = w.list_grad()
    for step in (1, 2):
        backward(trainer, w, 1)
        trainer.unscale()
        assert w.list_grad()[0] is not original[0]
        trainer.step(1)
        assert w._grad is original
        assert value(w.data()) == [-step]
        assert value(original[0]) == [8]  # autograd writes here, and the copy never came back


@pytest.mark.parametrize("end", ["skip", "loss", "discard", "floor"])
def test_the_original_arrays_come_back_whatever_happens(end):
    w = param([0.0], "float16")
    trainer = sgd(w, DynamicLossScale(init_scale=1, max_floor_skips=1 if end == "floor" else 9))
    original = w.list_grad()
    backward(trainer, w, np.nan if end == "loss" else 1)
    trainer.unscale()
    if end == "discard":
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
    assert value(w.data()) == [-1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_step_uses_gradients_changed_after_unscale(dtype):
    w = param([0.0, 0.0], dtype)
    trainer = sgd(w, 2.0**10)
    backward(trainer, w, [5.0, 0.25])
    trainer.unscale()
    grad = w.grad()
    mx.nd.clip(grad, -1, 1, out=grad)
    assert trainer.step(1)
    assert value(w.data()).tolist() == [-1, -0.25]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, np.nan], ids=str)
def test_an_inf_before_unscale_skips_even_if_it_was_clipped_away(dtype, bad):
    w = param([1.0, 1.0], dtype)
    trainer = sgd(w)
    backward(trainer, w, 0)
    w.grad()[0] = mx.nd.amp_cast(mx.nd.array([bad]), dtype=to_numpy(dtype))
    trainer.unscale()
    w.grad()[:] = 1.0
    assert not trainer.step(1)
    assert value(w.data()).tolist() == [1, 1]


def test_an_inf_made_after_unscale_skips():
    w = param([1.0])
    trainer = sgd(w)
    backward(trainer, w, 1)
    trainer.unscale()
    w.grad()[:] /= 0
    assert not trainer.step(1)


@pytest.mark.parametrize("kvstore", ["local", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_unscale_reduces_over_contexts_once(kvstore, dtype):
    w = param([0.0], dtype, ctx=TWO)
    trainer = sgd(w, 16, kvstore=kvstore)
    for x, ctx in zip((1, 2), TWO):
        backward(trainer, w, x, ctx)
    trainer.unscale()
    assert [g.asscalar() for g in w.list_grad()] == [3, 3]
    trainer.step(1)
    assert [value(w.data(ctx)).tolist() for ctx in TWO] == [[-3], [-3]]


def test_unscale_without_a_scale_shows_float32():
    w = param([1.0], "float16")
    trainer = sgd(w, None)
    with autograd.record():
        loss = loss_of(w, 0.5)
    loss.backward()
    trainer.unscale()
    assert (w.grad().dtype, w.grad().asscalar()) == (np.float32, 0.5)
    assert trainer.step(1)
    assert value(w.data()) == [0.5]


# clip_global_norm.


def clipped_by_gluon(arrays, max_norm):
    arrays = [mx.nd.array(a) for a in arrays]
    norm = mx.gluon.utils.clip_global_norm(arrays, max_norm)
    return norm, [a.asnumpy() for a in arrays]


@pytest.mark.parametrize("max_norm", [0.5, 1e6], ids=["clipped", "within"])
@pytest.mark.parametrize("scale", [None, 1, 2.0**12, "dynamic"], ids=str)
def test_clip_global_norm_is_that_of_gluon_at_any_scale(scale, max_norm):
    draw = np.random.RandomState(5)
    grads = [draw.randn(3).astype(np.float32), draw.randn(2, 4).astype(np.float32)]
    params = [param(np.zeros(g.shape), name=f"p{i}") for i, g in enumerate(grads)]
    trainer = sgd(params, scale)
    with autograd.record():
        losses = [loss_of(p, g) for p, g in zip(params, grads)]
    with trainer.scale_loss(losses) as scaled:
        autograd.backward(scaled)
    norm = trainer.clip_global_norm(max_norm)
    expected_norm, expected = clipped_by_gluon(grads, max_norm)
    rtol = 10 * float(np.finfo(np.float32).eps)  # gluon adds 1e-8 to the norm and sums in another order
    assert type(norm) is float
    assert norm == pytest.approx(expected_norm, rel=rtol)
    for p, e in zip(params, expected):
        np.testing.assert_allclose(p.grad().asnumpy(), e, rtol=rtol)
    assert trainer.step(1)
    for p, e in zip(params, expected):
        np.testing.assert_allclose(p.data().asnumpy(), -e, rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_global_norm_does_not_overflow_in_low_precision(dtype):
    w = param(np.zeros(1000), dtype)
    trainer = sgd(w, 1)
    backward(trainer, w, 512.0)  # squares of 2**18 exceed float16, their sum even more so
    assert trainer.clip_global_norm(1.0) == pytest.approx(512 * math.sqrt(1000), rel=1e-6)
    assert trainer.step(1)


def test_clip_global_norm_of_squares_beyond_float32():
    w = param([0.0, 0.0])
    trainer = sgd(w, 1)
    backward(trainer, w, 3e38)
    assert trainer.clip_global_norm(1.0) == pytest.approx(3e38 * math.sqrt(2), rel=1e-6)
    assert trainer.step(1)
    np.testing.assert_allclose(w.data().asnumpy(), -np.sqrt(0.5), rtol=1e-6)


def test_clip_global_norm_after_unscale_and_changes():
    w = param([0.0, 0.0])
    trainer = sgd(w)
    backward(trainer, w, [3.0, 4.0])
    trainer.unscale()
    w.grad()[:] *= 2
    assert trainer.clip_global_norm(5.0) == pytest.approx(10)
    assert trainer.step(1)
    np.testing.assert_allclose(w.data().asnumpy(), [-3, -4], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_without_a_scale_clip_global_norm_checks_no_more_than_step(bad):
    """Nothing is clipped or skipped, as `step` alone would do."""
    a, b = param([1.0], name="a"), param([1.0], name="b")
    trainer = sgd([a, b], None)
    backward(trainer, [a, b], 1)
    b.grad()[:] = bad
    assert not np.isfinite(trainer.clip_global_norm(0.5))
    assert trainer.step(1) is True and trainer.skipped_steps == 0
    assert a.data().asscalar() == 0 and not np.isfinite(b.data().asscalar())


def test_clip_global_norm_twice_clips_further():
    w = param([0.0])
    trainer = sgd(w)
    backward(trainer, w, 8.0)
    assert trainer.clip_global_norm(4.0) == 8
    assert trainer.clip_global_norm(2.0) == 4
    trainer.step(1)
    assert w.data().asscalar() == -2


@pytest.mark.parametrize("scale", [1, "dynamic"], ids=str)
@pytest.mark.parametrize("bad", [np.inf, np.nan], ids=str)
def test_clip_global_norm_of_bad_gradients_skips(bad, scale):
    w = param([1.0, 1.0])
    trainer = sgd(w, scale)
    backward(trainer, w, 1)
    w.grad()[0] = bad
    norm = trainer.clip_global_norm(1.0)
    assert not math.isfinite(norm)
    assert not trainer.step(1)
    assert w.data().asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("kvstore", KVSTORES)
def test_clip_global_norm_over_contexts(kvstore):
    w = param([0.0], ctx=TWO)
    trainer = sgd(w, kvstore=kvstore)
    for x, ctx in zip((1, 3), TWO):
        backward(trainer, w, x, ctx)
    norm = trainer.clip_global_norm(1.0)
    trainer.step(1)
    found = [w.data(ctx).asscalar() for ctx in TWO]
    if kvstore:  # one reduced gradient of 4 on both
        assert (norm, found) == (4, [-1, -1])
    else:  # two gradients; the larger sets the coefficient for both
        assert norm == 3
        np.testing.assert_allclose(found, [-1 / 3, -1], rtol=1e-6)


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
    w.grad()[0] = bad
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


@pytest.fixture
def host_reads(monkeypatch):
    """Count what waits for the device or copies from it."""
    reads = []
    for name in ("asnumpy", "wait_to_read"):
        original = getattr(mx.nd.NDArray, name)

        def counted(self, name=name, original=original):
            reads.append(name)
            return original(self)

        monkeypatch.setattr(mx.nd.NDArray, name, counted)
    return reads


# Host reads.


@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("calls", "reads"),
    [((), 1), (("unscale",), 1), (("clip",), 1), (("unscale", "clip"), 1)],
    ids=["step", "unscale", "clip", "unscale and clip"],
)
@pytest.mark.parametrize("finite", [True, False], ids=["taken", "skipped"])
def test_a_step_reads_once(calls, reads, dtype, contexts, finite, host_reads):
    params = [param([0.0], dtype, ctx=TWO[:contexts], name=f"p{i}") for i in range(3)]
    trainer = sgd(params, 16)
    for _ in range(2):
        for ctx in TWO[:contexts]:
            backward(trainer, params, 0.5, ctx)
        if not finite:
            params[1].list_grad()[-1][:] = mx.nd.amp_cast(mx.nd.array([np.inf]), dtype=to_numpy(dtype))
        del host_reads[:]
        if "unscale" in calls:
            trainer.unscale()
        assert host_reads == []
        if "clip" in calls:
            trainer.clip_global_norm(1.0)
            assert len(host_reads) == reads
        assert trainer.step(1) == finite
        assert len(host_reads) == reads


def test_without_a_scale_a_step_never_reads(host_reads):
    w = param([0.0], "float16")
    trainer = sgd(w, None)
    for _ in range(2):
        with autograd.record():
            loss = loss_of(w, 1)
        loss.backward()
        trainer.step(1)
    assert host_reads == []


def test_scale_loss_never_reads(host_reads):
    w = param([0.0], ctx=TWO, grad_req="add")
    trainer = sgd(w)
    for ctx in TWO * 3:
        backward(trainer, w, 1, ctx)
    assert host_reads == []


# update after allreduce_grads.


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


# Stale gradients.


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
