"""Gradients of a trainer between backward and step: unscaled, clipped, reduced, stale, and calls out of turn."""

import contextlib
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import LossScaleError, NonFiniteLossError, StaleGradientError, TrainerError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import (
    DTYPES,
    KVSTORES,
    TWO,
    backward,
    backward_everywhere,
    loss_of,
    param,
    run,
    run_backward,
    sgd,
    snapshot,
    trained,
    value,
)

# Unscaling.


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_that_an_interrupt_left_half_changed_are_refused_until_they_are_discarded(dtype, monkeypatch):
    w, trainer = trained(param([1.0, 2.0], dtype), 64)
    backward(trainer, w, 8)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr("mxmp.train.step.scale_in_place", None)
        trainer.unscale()
    for _ in range(2):
        with pytest.raises(TrainerError, match="interrupted"):
            trainer.step(1)
    trainer.discard_grads()
    backward(trainer, w, 0.5)
    assert trainer.step(1) and value(w.data()).tolist() == [0.5, 1.5]


ERRORS = {"loss": NonFiniteLossError, "floor": LossScaleError}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("end", ["step", "skip", "discard", *ERRORS])
def test_the_original_arrays_come_back_whatever_happens(end, dtype):
    w = param([0.0], dtype)
    trainer = sgd(w, DynamicLossScale(init_scale=1, max_floor_skips=1 if end == "floor" else 9))
    original = w.list_grad()
    backward(trainer, w, np.nan if end == "loss" else 1)
    trainer.unscale()
    assert (w.list_grad()[0] is original[0]) == (dtype == "float32")
    if end in ("skip", "loss", "floor"):
        w.grad()[:] = np.inf
    with pytest.raises(ERRORS[end]) if end in ERRORS else contextlib.nullcontext():
        assert trainer.discard_grads() is None if end == "discard" else trainer.step(1) is (end == "step")
    assert w._grad is original and run(trainer, w) and value(w.data()) == [-2 if end == "step" else -1]


def test_unscale_without_a_scale_shows_float32():
    w, trainer = trained(param([1.0], "float16"), None)
    plain_backward(w)
    trainer.unscale()
    assert (w.grad().dtype, w.grad().asscalar()) == (np.float32, 1)
    assert trainer.step(1) and value(w.data()) == [0]


@pytest.mark.parametrize("end", [lambda t: t.step(1), lambda t: t.discard_grads()], ids=["step", "discard"])
def test_a_step_ends_though_a_gradient_is_gone(end):
    w, trainer = trained(param([1.0], "float16"), 8)
    backward(trainer, w, 1)
    trainer.unscale()
    w.grad_req = "null"
    end(trainer)
    w.grad_req = "write"
    assert run(trainer, w)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numpy_arrays_of_mxnet_are_trained_with_a_context_that_has_no_batch(dtype):
    with mx.util.np_shape(True), mx.util.np_array(True):
        w = mx.gluon.Parameter("w", shape=(2,))
        w.initialize(mx.init.One(), ctx=TWO)
        w.cast(dtype)
        trainer = sgd(w, kvstore="device")
        for step in range(2):
            with autograd.record():
                loss = (mx.npx.cast(w.data(TWO[1]), dtype="float32") * mx.np.array([0.25, 0.5], ctx=TWO[1])).sum()
            run_backward(trainer, loss)
            if step:
                trainer.unscale()
                assert type(w.grad(TWO[1])) is mx.np.ndarray
                assert w.grad(TWO[0]).tolist() == [0.25, 0.5]
                assert trainer.clip_global_norm(9.0) == pytest.approx(math.sqrt(0.3125))
            assert trainer.step(1, ignore_stale_grad=True)
        assert [w.data(ctx).tolist() for ctx in TWO] == [[0.5, 0]] * 2


@pytest.mark.behaviour("sparse gradients")
def test_row_sparse_gradients_are_checked_unscaled_and_clipped():
    w, trainer = trained(param(np.ones((6, 2)), grad_stype="row_sparse"), DynamicLossScale(init_scale=2.0**20))

    def backward_of_rows(rows, head):
        with autograd.record():
            out = mx.nd.Embedding(mx.nd.array(rows), w.data(), input_dim=6, output_dim=2, sparse_grad=True)
            loss = (out * head).sum()
        run_backward(trainer, loss)

    backward_of_rows([1, 4], 0.5)
    assert trainer.step(1) and w.data().asnumpy()[:, 0].tolist() == [1, 0.5, 1, 1, 0.5, 1]
    backward_of_rows([1, 1], 2e32)  # each finite, 2e38; their sum is not
    assert not trainer.step(1) and w.data().asnumpy()[:, 0].tolist() == [1, 0.5, 1, 1, 0.5, 1]
    backward_of_rows([1], 0.25)
    assert trainer.clip_global_norm(math.sqrt(2) / 8) == pytest.approx(math.sqrt(2) / 4)
    assert w.grad().stype == "row_sparse" and trainer.step(1)
    np.testing.assert_allclose(w.data().asnumpy()[1], [0.375, 0.375], rtol=1e-6)
    backward_of_rows([2, 2], 3)
    trainer.clip_value(0.5)
    assert trainer.step(1) and w.data().asnumpy()[2].tolist() == [0.5, 0.5]


# Clipping.


@pytest.mark.parametrize("unscales", [False, True], ids=["clip alone", "unscale first"])
@pytest.mark.parametrize("dtype, kvstore", list(zip(DTYPES, KVSTORES)))
def test_clip_value_clips_true_gradients_summed_over_contexts(dtype, kvstore, unscales):
    w, trainer = trained(param([0.0, 0.0, 0.0], dtype, ctx=TWO), 128, kvstore=kvstore)
    backward_everywhere(trainer, w, ([-3, 0.25, 0.125], [0, 0.125, 2]))
    if unscales:
        trainer.unscale()
    trainer.clip_value(0.5)
    expected = [[-0.5, 0.375, 0.5]] * 2 if kvstore else [[-0.5, 0.25, 0.125], [0, 0.125, 0.5]]
    assert [w.grad(ctx).asnumpy().tolist() for ctx in TWO] == expected
    assert trainer.step(1)
    assert [(-value(w.data(ctx))).tolist() for ctx in TWO] == expected


def clipped_by_mxnet(limit, n):
    """Return the weights and the norm of a float32 loop of MXNet that clips the sum over n samples to n times a limit."""
    w, x = param(np.ones(3)), CLIPPED
    trainer = mx.gluon.Trainer([w], "sgd", {"learning_rate": 1.0})
    for _ in range(2):
        with autograd.record():
            loss = (w.data() * x).sum(axis=1)
        loss.backward()
        norm = mx.gluon.utils.clip_global_norm([w.grad()], limit * n)
        trainer.step(n)
    return w.data().asnumpy(), norm / n


CLIPPED = mx.nd.array(np.random.RandomState(0).uniform(0, 3, (4, 3)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scale", [None, 1, 128, "dynamic"], ids=str)
@pytest.mark.parametrize("limit", [0.5, 100.0], ids=["clips", "does not clip"])
def test_a_batch_size_clips_the_norm_of_the_mean_gradient(limit, scale, dtype):
    w = param(np.ones(3), dtype)
    trainer = sgd(w, scale)
    for _ in range(2):
        with autograd.record():
            loss = (w.data().astype("float32") * CLIPPED).sum(axis=1)
        run_backward(trainer, loss)
        norm = trainer.clip_global_norm(limit, batch_size=4)
        assert trainer.step(4)
    weights, expected = clipped_by_mxnet(limit, 4)
    eps = np.finfo(dtype).eps  # a gradient in float16 is rounded once a step, the weight too
    np.testing.assert_allclose(value(w.data()), weights, atol=4 * eps * 6)
    assert norm == pytest.approx(expected, rel=4 * eps)


def test_a_batch_size_clips_by_the_gradient_that_the_optimizer_gets():
    """With ``rescale_grad`` too, by which an optimizer multiplies."""
    w = param([0.0, 0.0])
    trainer = Trainer([w], "sgd", {"learning_rate": 1.0, "rescale_grad": 0.5}, loss_scale=128)
    backward(trainer, w, [24.0, 32.0])
    assert trainer.clip_global_norm(1.0, batch_size=4) == 5.0  # 40 / 4 / 2
    assert trainer.step(4)
    np.testing.assert_allclose(value(w.data()), [-0.6, -0.8], rtol=1e-6)


def test_a_batch_size_clips_the_elements_of_the_mean_gradient():
    w, trainer = trained(param([0.0, 0.0]))
    backward(trainer, w, [-8.0, 1.0])
    trainer.clip_value(0.5, batch_size=4)
    assert w.grad().asnumpy().tolist() == [-2.0, 1.0]
    assert trainer.step(4) and value(w.data()).tolist() == [0.5, -0.25]


def test_clip_value_hides_no_overflow():
    w, trainer = trained(param([1.0, 1.0]))
    backward(trainer, w, 1)
    w.data().grad[:1] = np.inf  # w.grad() would be a look, after which what is written is the user's
    trainer.clip_value(1.0)
    assert not trainer.step(1) and value(w.data()).tolist() == [1, 1]


# Reducing.


@pytest.mark.parametrize("kvstore, unscales", [(None, False), ("local", True), ("device", False)])
@pytest.mark.parametrize("finite", [True, False], ids=["taken", "skipped"])
def test_update_checks_like_step_and_reduces_once(kvstore, unscales, finite):
    w, trainer = trained(param([0.0], ctx=TWO), DynamicLossScale(init_scale=2.0**16), kvstore=kvstore)
    backward_everywhere(trainer, w, (1, 1))
    if not finite:
        w.grad(TWO[1])[:] = np.nan
    trainer.allreduce_grads()
    if unscales:
        trainer.unscale()
    assert trainer.update(2) is finite and trainer.loss_scale.value == 2.0 ** (16 if finite else 15)
    assert [value(w.data(ctx)) for ctx in TWO] == [0 if not finite else -1 if kvstore else -0.5] * 2


# Stale gradients.


@pytest.mark.parametrize("first", ["step", "unscale", "clip"])
def test_a_stale_gradient_is_an_error_that_names_the_parameter(first):
    """One of a parameter without a gradient is none."""
    used, unused = param([0.0], name="used"), param([0.0], name="unused")
    trainer = sgd([used, unused, param([2.0], name="frozen", grad_req="null")])
    assert run(trainer, [used, unused])
    unused.grad()[:] = np.inf  # which is no overflow
    backward(trainer, used, 1)
    before = snapshot(trainer)
    if first == "unscale":
        trainer.unscale()
    elif first == "clip":
        assert trainer.clip_global_norm(10.0) == 1.0  # the old gradient does not count
    for _ in range(2):
        with pytest.raises(StaleGradientError, match=r"step: the gradient of parameter 'unused' on context cpu\(0\)"):
            trainer.step(1)
    assert snapshot(trainer) == before and isinstance(StaleGradientError("x"), UserWarning)  # as gluon.Trainer raises
    assert trainer.step(1, ignore_stale_grad=True)
    assert [value(p.data()) for p in trainer._params] == [-2, -1, 2]


def test_without_a_scale_stale_gradients_are_as_in_gluon():
    w, trainer = trained(param([0.0]), None)
    with pytest.raises(UserWarning):
        trainer.step(1)
    assert trainer.step(1, ignore_stale_grad=True) is False
    assert w.data().asscalar() == 0


CALLS = {
    "step": lambda t: None,
    "unscale": lambda t: t.unscale(),
    "clip_global_norm": lambda t: t.clip_global_norm(100.0),
    "clip_value": lambda t: t.clip_value(100.0),
    "look": lambda t: t._params[0].grad(TWO[1]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype, kvstore", [("float32", "device"), ("float16", "local"), ("bfloat16", "device")])
def test_a_context_without_a_batch_is_an_error_or_adds_nothing(dtype, kvstore, call):
    """The last batches of an epoch may not reach every context; what lies on the others is an old sum."""
    w, trainer = trained(param([0.0], dtype, ctx=TWO), DynamicLossScale(init_scale=8), kvstore=kvstore)
    assert not run(trainer, w, bad=np.inf)
    for _ in range(2):
        backward(trainer, w, 1, TWO[1])
        call(trainer)
        with pytest.raises(StaleGradientError, match=r"parameter 'w' on context cpu\(0\)"):
            trainer.step(1)
        assert trainer.step(1, ignore_stale_grad=True)
    assert [value(w.data(ctx)).tolist() for ctx in TWO] == [[-2], [-2]]


@pytest.mark.parametrize("loss_scale", [8, 0.25])
def test_parameters_with_gradients_on_different_contexts_are_clipped_together(loss_scale):
    first, second = (param([0.0], ctx=TWO, name=name) for name in "ab")
    trainer = sgd([first, second], loss_scale, kvstore="device")
    backward(trainer, first, 3, TWO[0])
    backward(trainer, second, 4, TWO[1])
    assert trainer.clip_global_norm(1.0) == pytest.approx(5)
    assert trainer.step(1, ignore_stale_grad=True)
    assert [value(p.data(ctx)) for ctx in TWO for p in (first, second)] == [pytest.approx(-0.6), pytest.approx(-0.8)] * 2


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_discard_grads_discards_a_backward_after_unscale_too(stype):
    w, trainer = trained(param(np.ones((2, 1)), grad_stype=stype), None)
    for x in (1, 100):
        with autograd.record():
            (mx.nd.Embedding(mx.nd.array([0]), w.data(), 2, 1, sparse_grad=stype != "default") * x).sum().backward()
        if x == 1:
            trainer.unscale()
    trainer.discard_grads()
    with pytest.raises(StaleGradientError):
        trainer.step(1)


# Gradients of several blocks.


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeroing_unscaled_gradients_zeroes_what_the_next_backward_adds_to(dtype):
    w, trainer = trained(param([0.0], dtype, grad_req="add"), 64)
    backward(trainer, w, 4)
    trainer.unscale()
    w.zero_grad()
    trainer.discard_grads()
    backward(trainer, w, 2)
    assert trainer.step(1) and value(w.data()) == [-2]


@pytest.mark.parametrize("call", ["save_states", "load_states"])
def test_without_scale_loss_too_nothing_is_saved_between_backward_and_step(call, tmp_path):
    w, fname = param([0.0], grad_req="add"), str(tmp_path / "states")
    trainer = sgd(w, None)
    plain_backward(w)
    with pytest.raises(TrainerError, match=f"^{call} came in the middle of an accumulation window: .*'w'"):
        getattr(trainer, call)(fname)
    assert trainer.step(1)
    trainer.save_states(fname)
    trainer.load_states(fname)


# Calls out of turn, which only a trainer knows: each is an error, and nothing is changed.


def plain_backward(w):
    with autograd.record():
        loss_of(w, 1).backward()


def backward_again(trainer, w):
    with contextlib.suppress(TrainerError):
        backward(trainer, w, 2)


OUT_OF_TURN = {
    "step": lambda t, w: t.step(1),
    "update": lambda t, w: t.update(1),
    "unscale": lambda t, w: t.unscale(),
    "clip_global_norm": lambda t, w: t.clip_global_norm(100.0),
    "clip_value": lambda t, w: t.clip_value(100.0),
    "allreduce_grads": lambda t, w: t.allreduce_grads(),
    "discard_grads": lambda t, w: t.discard_grads(),
    "scale_loss": lambda t, w: t.scale_loss(mx.nd.ones((1,))).__enter__(),
    "add_params": lambda t, w: t.add_params([param([1.0], name="new")]),
    "scaled": lambda t, w: backward(t, w, 1),
    "not scaled": lambda t, w: plain_backward(w),
    "look": lambda t, w: w.grad(),
    "scaled again": backward_again,
}
LATER = "step, update, unscale, clip_global_norm, clip_value"
UNSCALED = "step: backward wrote the gradient of parameter 'w' after the gradients were unscaled"
OVERWRITTEN = "{0}: a backward overwrote the gradient of parameter 'w'.*If that gradient is not wanted, call discard_grads"
MISUSES = [  # what came before, the calls that are then out of turn, and the message
    ("block", f"{LATER}, allreduce_grads, discard_grads", "{0} was called inside a scale_loss block, .* then call {0}"),
    ("not scaled", f"{LATER}, allreduce_grads", "{0}: the loss of this step was not scaled, .* Run backward as `with"),
    ("", LATER, "{0}: no parameter has a gradient from after the last step; run backward first"),
    ("scaled, allreduce_grads", "allreduce_grads", "reduced already; call update or step"),
    ("scaled, allreduce_grads", "scale_loss", "after allreduce_grads.*Call update first"),
    ("scaled, unscale", "allreduce_grads", "reduced already; call update or step, or discard_grads to leave that step out"),
    ("scaled, unscale", "unscale", "{0}: .* unscaled already; .* to leave a step out call discard_grads"),
    ("scaled, clip_global_norm", "scale_loss, scaled", "scale_loss came after .*; to leave that step out call discard_grads"),
    ("scaled, clip_global_norm", "add_params", "{0} came between backward and step, .*, or discard_grads to give them up"),
    ("scaled, allreduce_grads", "scaled", "after allreduce_grads.*, or discard_grads to leave that step out"),
    ("scaled, unscale, not scaled", "step", UNSCALED),
    ("scaled, look, unscale, not scaled", "step", UNSCALED),
    ("scaled", "scaled", OVERWRITTEN.format("scale_loss")),
    ("scaled, scaled again", "step", OVERWRITTEN),
    ("scaled", "add_params", "add_params came between backward and step"),
]


@pytest.mark.parametrize("call", ["step", "update"])
def test_a_step_without_a_backward_changes_nothing_where_there_is_no_loss_scale_as_the_error_says(call):
    w = param([1.0])
    with pytest.raises(TrainerError, match=f"leave {call} out. Only a trainer with loss_scale=None .*ignore_stale_grad"):
        getattr(Trainer([w], "sgd", kvstore=None), call)(1)
    assert getattr(Trainer([w], "sgd", kvstore=None, loss_scale=None), call)(1, ignore_stale_grad=True) is False
    assert value(w.data()) == [1]


@pytest.mark.behaviour("forgotten calls")
@pytest.mark.parametrize("kvstore", [None, "device"])
@pytest.mark.parametrize(
    ("before", "call", "message"),
    [(before, call, message.format(call)) for before, calls, message in MISUSES for call in calls.split(", ")],
)
def test_misuse_is_an_error_and_changes_nothing(before, call, message, kvstore):
    w, trainer = trained(param([1.0], "float16"), DynamicLossScale(init_scale=16, growth_interval=1), kvstore=kvstore)
    assert run(trainer, w)
    state = snapshot(trainer), trainer.loss_scale
    with pytest.raises(TrainerError, match=message), contextlib.ExitStack() as stack:
        if before == "block":
            stack.enter_context(trainer.scale_loss(loss_of(w, 1)))
        elif before:
            for name in before.split(", "):
                OUT_OF_TURN[name](trainer, w)
        OUT_OF_TURN[call](trainer, w)
    assert (snapshot(trainer), trainer.loss_scale) == state
    assert (trainer.skipped_steps, trainer.optimizer.num_update) == (0, 1)
    trainer.discard_grads()  # and there is a way on
    assert run(trainer, w) and value(w.data()) == [-1]
