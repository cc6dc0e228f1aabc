from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import StaleGradientError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import (
    DTYPES,
    backward,
    loss_of,
    param,
    sgd,
    snapshot,
    value,
)

# Misuse: every call out of turn is an error, and nothing is changed.


def in_block(call):
    def misuse(trainer, w):
        with autograd.record():
            loss = loss_of(w, 1)
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()
            call(trainer)

    return misuse


def in_window(call):
    def misuse(trainer, w):
        backward(trainer, w, 1)
        call(trainer)

    return misuse


def after_unscale(call):
    def misuse(trainer, w):
        backward(trainer, w, 1)
        trainer.unscale()
        call(trainer)

    return misuse


def unscaled_loss(call):
    def misuse(trainer, w):
        with autograd.record():
            loss = loss_of(w, 1)
        loss.backward()
        call(trainer)

    return misuse


def without_backward(call):
    return lambda trainer, w: call(trainer)


def scaled_without_backward(call):
    def misuse(trainer, w):
        with trainer.scale_loss(mx.nd.ones((1,))):
            pass
        call(trainer)

    return misuse


def open_block(trainer):
    with trainer.scale_loss(mx.nd.ones((1,))):
        pass


def raw_backward(w):
    with autograd.record():
        loss = loss_of(w, 1)
    loss.backward()


def backward_after_unscale(trainer, w):
    backward(trainer, w, 1)
    trainer.unscale()
    raw_backward(w)
    trainer.step(1)


def reduce_then_step(trainer, w):
    backward(trainer, w, 1)
    trainer.allreduce_grads()
    trainer.step(1)


def reduce_twice(trainer, w):
    backward(trainer, w, 1)
    trainer.allreduce_grads()
    trainer.allreduce_grads()


def scale_after_reduce(trainer, w):
    backward(trainer, w, 1)
    trainer.allreduce_grads()
    open_block(trainer)


def step(trainer):
    trainer.step(1)


def update(trainer):
    trainer.update(1)


def unscale(trainer):
    trainer.unscale()


def clip(trainer):
    trainer.clip_global_norm(1.0)


def clip_value(trainer):
    trainer.clip_value(1.0)


def reduce(trainer):
    trainer.allreduce_grads()


def set_scale(trainer):
    trainer.loss_scale = 4


def save(trainer):
    trainer.save_states("/nonexistent/file")


def load(trainer):
    trainer.load_states("/nonexistent/file")


def discard(trainer):
    trainer.discard_grads()


NOT_SCALED = "{}: the loss of this step was not scaled, .* Run backward as `with trainer.scale_loss"
NO_GRADIENT = "{}: no parameter has a gradient from after the last step; run backward first"
IN_BLOCK = "{} was called inside a scale_loss block, .*; end the block, then call {}"
MID_WINDOW = "{} came between backward and step, .*; call step first"

MISUSES = {
    "unscale twice": (after_unscale(unscale), "unscale: .* unscaled already; call unscale once"),
    "nested scale_loss": (in_block(open_block), "inside a scale_loss block of the same trainer; end the block"),
    "scale_loss after unscale": (after_unscale(open_block), "after the gradients were unscaled.*Call step first"),
    "scale_loss after allreduce": (scale_after_reduce, "after allreduce_grads.*Call update first"),
    "backward after unscale": (backward_after_unscale, "step: backward wrote the gradient of parameter 'w' after"),
    "step after allreduce_grads": (reduce_then_step, "would reduce again; call update"),
    "allreduce_grads twice": (reduce_twice, "reduced already; call update or step"),
    "allreduce_grads after unscale": (after_unscale(reduce), "reduced already; call update or step"),
    **{
        f"{name} {when}": (wrap(call), message.format(name, name))
        for when, wrap, message, calls in [
            (
                "in block",
                in_block,
                IN_BLOCK,
                "step update unscale clip_global_norm clip_value allreduce_grads discard_grads",
            ),
            (
                "without scaling",
                unscaled_loss,
                NOT_SCALED,
                "step update unscale clip_global_norm clip_value allreduce_grads",
            ),
            ("without backward", without_backward, NO_GRADIENT, "step update unscale clip_global_norm clip_value"),
            ("scaled only", scaled_without_backward, NO_GRADIENT, "step update unscale clip_global_norm clip_value"),
        ]
        for name, call in {
            "step": step,
            "update": update,
            "unscale": unscale,
            "clip_global_norm": clip,
            "clip_value": clip_value,
            "allreduce_grads": reduce,
            "discard_grads": discard,
        }.items()
        if name in calls.split()
    },
    **{
        f"{name} in mid-window": (wrap(call), MID_WINDOW.format(name))
        for wrap in (in_window, after_unscale)
        for name, call in {"setting loss_scale": set_scale, "save_states": save, "load_states": load}.items()
    },
}


@pytest.mark.behaviour("forgotten calls")
@pytest.mark.parametrize("kvstore", [None, "device"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("misuse", "message"), MISUSES.values(), ids=MISUSES)
def test_misuse_is_an_error_and_changes_nothing(misuse, message, dtype, kvstore):
    w = param([1.0], dtype)
    trainer = sgd(w, DynamicLossScale(init_scale=16, growth_interval=1), kvstore=kvstore)
    backward(trainer, w, 1)
    trainer.step(1)
    before, scale = snapshot(trainer), trainer.loss_scale
    with pytest.raises(TrainerError, match=message):
        misuse(trainer, w)
    assert snapshot(trainer) == before
    assert trainer.loss_scale is scale
    assert (trainer.skipped_steps, trainer.optimizer.num_update) == (0, 1)
    # And there is a way on.
    trainer.discard_grads()
    backward(trainer, w, 1)
    assert trainer.step(1)
    assert value(w.data()) == [-1]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (3.0, "scale_loss: loss is a float; expected an NDArray"),
        ([mx.nd.ones((1,)), [None]], r"scale_loss: loss\[1\]\[0\] is a NoneType"),
        (mx.nd.ones((1,), dtype="int32"), "scale_loss: loss has dtype int32; expected a float"),
    ],
)
def test_scale_loss_refuses_what_is_no_loss(loss, message):
    trainer = sgd(param([1.0]))
    with pytest.raises(TrainerError, match=message):
        with trainer.scale_loss(loss):
            pass


@pytest.mark.parametrize("max_norm", [0, -1.0, math.nan])
def test_clip_global_norm_refuses_norms_that_are_not_positive(max_norm):
    with pytest.raises(TrainerError, match="max_norm=.*; expected a positive number"):
        sgd(param([1.0])).clip_global_norm(max_norm)


@pytest.mark.parametrize("max_value", [0, -1.0, math.nan])
def test_clip_value_refuses_values_that_are_not_positive(max_value):
    with pytest.raises(TrainerError, match="max_value=.*; expected a positive number"):
        sgd(param([1.0])).clip_value(max_value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_discard_grads_starts_anew(dtype):
    w = param([0.0], dtype)
    trainer = sgd(w)
    backward(trainer, w, 0.5)
    trainer.unscale()
    trainer.discard_grads()
    with pytest.raises(StaleGradientError):
        trainer.step(1)
    backward(trainer, w, 0.25)
    assert trainer.step(1)
    assert value(w.data()) == [-0.25]


@pytest.mark.parametrize("size", [0, -1, "8"])
def test_batch_size_must_be_positive(size):
    w = param([1.0])
    trainer = sgd(w, 1)
    backward(trainer, w, 1)
    with pytest.raises(TrainerError, match=f"step: batch_size={size!r}; expected a positive number"):
        trainer.step(size)
    assert trainer.step(1)


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_discard_grads_discards_a_backward_after_unscale_too(stype):
    w = param(np.ones((2, 1)), grad_stype=stype)
    trainer = sgd(w, None)
    for x in (1, 100):
        with autograd.record():
            loss = (mx.nd.Embedding(mx.nd.array([0]), w.data(), 2, 1, sparse_grad=stype != "default") * x).sum()
        loss.backward()
        if x == 1:
            trainer.unscale()
    trainer.discard_grads()
    with pytest.raises(StaleGradientError):
        trainer.step(1)


@pytest.mark.parametrize("call", ["step", "clip_global_norm", "clip_value"])
@pytest.mark.parametrize("number", [None, "1", True])
def test_what_is_no_number_is_refused(call, number):
    w = param([1.0])
    trainer = sgd(w, 8)
    backward(trainer, w, 1)
    with pytest.raises(TrainerError, match=f"{call}: .*={number!r}; expected a positive number"):
        getattr(trainer, call)(number)
