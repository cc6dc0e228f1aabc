from __future__ import annotations

import contextlib
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.errors import StaleGradientError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import backward, loss_of, param, sgd, snapshot, value

# Misuse that only a trainer knows: every call out of turn is an error, and nothing is changed.

ONE = mx.nd.ones((1,))
CALLS = {
    "step": lambda t: t.step(1),
    "update": lambda t: t.update(1),
    "unscale": lambda t: t.unscale(),
    "clip_global_norm": lambda t: t.clip_global_norm(1.0),
    "clip_value": lambda t: t.clip_value(1.0),
    "allreduce_grads": lambda t: t.allreduce_grads(),
    "discard_grads": lambda t: t.discard_grads(),
    "scale_loss": lambda t: t.scale_loss(ONE).__enter__(),
}


def in_block(trainer, w):
    with autograd.record(), trainer.scale_loss(loss_of(w, 1)) as scaled:
        scaled.backward()
        yield


def not_scaled(trainer, w):
    with autograd.record():
        loss_of(w, 1).backward()
    yield


def nothing_run(trainer, w):
    yield


def only_scaled(trainer, w):
    with trainer.scale_loss(ONE):
        pass
    yield


def reduced(trainer, w):
    backward(trainer, w, 1)
    trainer.allreduce_grads()
    yield


def unscaled(trainer, w):
    backward(trainer, w, 1)
    trainer.unscale()
    yield


def written_again(trainer, w):
    for state in (unscaled, not_scaled):
        next(state(trainer, w))
    yield


LATER = "step update unscale clip_global_norm clip_value"
NO_GRADIENT = "{0}: no parameter has a gradient from after the last step; run backward first"
MISUSES = [
    (in_block, f"{LATER} allreduce_grads discard_grads", "{0} was called inside a scale_loss block, .* then call {0}"),
    (not_scaled, f"{LATER} allreduce_grads", "{0}: the loss of this step was not scaled, .* Run backward as `with"),
    (nothing_run, LATER, NO_GRADIENT),
    (only_scaled, LATER, NO_GRADIENT),
    (reduced, "allreduce_grads", "reduced already; call update or step"),
    (reduced, "scale_loss", "after allreduce_grads.*Call update first"),
    (unscaled, "allreduce_grads", "reduced already; call update or step"),
    (written_again, "step", "step: backward wrote the gradient of parameter 'w' after"),
]


@pytest.mark.behaviour("forgotten calls")
@pytest.mark.parametrize("kvstore", [None, "device"])
@pytest.mark.parametrize(
    ("state", "call", "message"),
    [(state, call, message.format(call)) for state, calls, message in MISUSES for call in calls.split()],
)
def test_misuse_is_an_error_and_changes_nothing(state, call, message, kvstore):
    w = param([1.0], "float16")
    trainer = sgd(w, DynamicLossScale(init_scale=16, growth_interval=1), kvstore=kvstore)
    backward(trainer, w, 1)
    trainer.step(1)
    before, scale = snapshot(trainer), trainer.loss_scale
    with pytest.raises(TrainerError, match=message):
        with contextlib.contextmanager(state)(trainer, w):
            CALLS[call](trainer)
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


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
def test_discard_grads_discards_a_backward_after_unscale_too(stype):
    w = param(np.ones((2, 1)), grad_stype=stype)
    trainer = sgd(w, None)
    for x in (1, 100):
        with autograd.record():
            (mx.nd.Embedding(mx.nd.array([0]), w.data(), 2, 1, sparse_grad=stype != "default") * x).sum().backward()
        if x == 1:
            trainer.unscale()
    trainer.discard_grads()
    with pytest.raises(StaleGradientError):
        trainer.step(1)


@pytest.mark.parametrize(
    "call, name", [("step", "batch_size"), ("clip_global_norm", "max_norm"), ("clip_value", "max_value")]
)
@pytest.mark.parametrize("number", [0, -1.0, math.nan, None, "1", True])
def test_what_is_no_positive_number_is_refused(call, name, number):
    w = param([1.0])
    trainer = sgd(w, 8)
    backward(trainer, w, 1)
    with pytest.raises(TrainerError, match=f"{call}: {name}={number!r}; expected a positive number"):
        getattr(trainer, call)(number)
    assert trainer.step(1)
