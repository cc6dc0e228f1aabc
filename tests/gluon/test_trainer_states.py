from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import StateError
from mxmp.gluon.trainer import Trainer
from mxmp.loss_scale import DynamicLossScale, LossScale
from tests.gluon.trainer_tools import (
    DTYPES,
    TWO,
    backward,
    collapse,
    param,
    sgd,
    snapshot,
)

# Saving and loading.

SAVED = {
    "sgd": {"momentum": 0.9, "wd": 0.01},
    "adam": {},
}


def fresh_run(optimizer, dtype, contexts, values=None, kvstore="device"):
    weights = [np.linspace(-1, 1, 6), np.linspace(0.1, 0.2, 4)] if values is None else values
    params = [param(w, dtype, ctx=contexts, name=f"p{i}") for i, w in enumerate(weights)]
    steps = mx.lr_scheduler.MultiFactorScheduler(step=[2, 5], factor=0.5, base_lr=0.05)
    options = {**SAVED[optimizer], "learning_rate": 0.05, "lr_scheduler": steps}
    scale = DynamicLossScale(init_scale=2.0**12, growth_interval=3, hysteresis=2)
    return params, Trainer(params, optimizer, options, kvstore, loss_scale=scale)


def run_steps(params, trainer, contexts, numbers):
    for number in numbers:
        for ctx in contexts:
            backward(trainer, params, math.sin(number) * 0.3, ctx)
        if number in (3, 4, 9):
            params[0].list_grad()[-1][1] = mx.nd.amp_cast(
                mx.nd.array([np.nan]), dtype=params[0].grad(contexts[0]).dtype
            )
        trainer.step(2)


def everything(trainer):
    return snapshot(trainer), trainer._scaler.to_dict()


def test_a_default_scale_resumes_its_warm_up(tmp_path):
    fname, w = str(tmp_path / "states"), param([1.0])
    whole, resumed = sgd(w, lr=0.0), sgd(w, lr=0.0)
    seen = []
    for number in range(6):
        resumed.save_states(fname)
        resumed = sgd(w, lr=0.0)
        resumed.load_states(fname)
        for trainer in (whole, resumed):
            backward(trainer, w, 1.0)
            if number == 3:
                w.grad()[:] = np.inf
            trainer.step(1)
        assert resumed._scaler.to_dict() == whole._scaler.to_dict()
        seen.append(resumed.loss_scale.value)
    assert seen == [512, 1024, 2048, 256, 256, 256]


def test_states_from_before_there_was_a_warm_up_load(tmp_path, monkeypatch):
    fname, w = str(tmp_path / "states"), param([1.0])
    to_dict = LossScale.to_dict
    with monkeypatch.context() as patch:
        patch.setattr(LossScale, "to_dict", lambda self: {k: v for k, v in to_dict(self).items() if k != "warming_up"})
        sgd(w, DynamicLossScale(init_scale=2.0**16, value=2.0**9, growth_tracker=7)).save_states(fname)
    trainer = sgd(w)
    trainer.load_states(fname)
    assert trainer.loss_scale == DynamicLossScale(init_scale=2.0**16, value=2.0**9, growth_tracker=7)


@pytest.mark.parametrize("kvstore", [None, "device"])
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", SAVED)
def test_a_run_resumed_at_every_step_is_bit_identical(optimizer, dtype, contexts, kvstore, tmp_path):
    contexts = TWO[:contexts]
    fname = str(tmp_path / "states")
    params, whole = fresh_run(optimizer, dtype, contexts, kvstore=kvstore)
    resumed_params, resumed = fresh_run(optimizer, dtype, contexts, kvstore=kvstore)
    for number in range(12):
        resumed.save_states(fname)
        saved = resumed_params
        resumed_params, resumed = fresh_run(optimizer, dtype, contexts, kvstore=kvstore)
        for old, new in zip(saved, resumed_params):
            for ctx in contexts:
                old.data(ctx).copyto(new.data(ctx))
        resumed.load_states(fname)
        run_steps(params, whole, contexts, [number])
        run_steps(resumed_params, resumed, contexts, [number])
    assert everything(resumed) == everything(whole)
    assert whole.skipped_steps == 3
    assert whole.loss_scale.value != 2.0**12 or whole.loss_scale.growth_tracker


def test_load_states_brings_the_scaler_back(tmp_path):
    w = param([1.0])
    trainer = sgd(w, DynamicLossScale(init_scale=32, min_scale=0.5))
    collapse(trainer, w, 3)
    trainer.save_states(str(tmp_path / "s"))
    other = sgd(param([1.0]), 7)
    other.load_states(str(tmp_path / "s"))
    assert other.loss_scale == trainer.loss_scale
    assert other.loss_scale.min_scale == 0.5
    assert (other.skipped_steps, other.consecutive_skips, other.last_step_skipped) == (3, 3, True)


def test_states_can_be_saved_and_loaded_before_the_first_step(tmp_path):
    trainer = sgd(param([1.0]), DynamicLossScale(init_scale=4))
    trainer.save_states(str(tmp_path / "s"))
    w = param([1.0])
    other = sgd(w)
    other.load_states(str(tmp_path / "s"))
    assert other.loss_scale.value == 4
    backward(other, w, 1)
    assert other.step(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_scale": {"kind": "dynamic"}}, "the state of a dynamic loss scale lacks"),
        ({"loss_scale": {"kind": "static", "value": math.nan}}, "scale=nan is no loss scale"),
        ({"loss_scale": None}, "expected a dict"),
        ({"skipped_steps": -1}, "skipped_steps is -1"),
        ({"last_step_skipped": 1}, "last_step_skipped is 1"),
    ],
)
def test_a_damaged_scaler_loads_nothing(change, message, tmp_path, monkeypatch):
    fname = str(tmp_path / "s")
    w = param([1.0])
    trainer = Trainer([w], "adam", loss_scale=8)
    backward(trainer, w, 1)
    trainer.step(1)
    scaler = trainer._scaler.to_dict()
    with monkeypatch.context() as patch:
        patch.setattr(trainer._scaler, "to_dict", lambda: {**scaler, **change})
        trainer.save_states(fname)
    other = Trainer([param([1.0])], "adam", loss_scale=4)
    before = everything(other)
    with pytest.raises(StateError, match=f"{fname}: the loss scale does not load: .*{message}"):
        other.load_states(fname)
    assert everything(other) == before


def test_states_of_gluon_are_refused_with_a_hint(tmp_path):
    fname = str(tmp_path / "s")
    mx.gluon.Trainer([param([1.0])], "sgd").save_states(fname)
    with pytest.raises(StateError, match="Files of mxnet.gluon.Trainer cannot be read"):
        sgd(param([1.0])).load_states(fname)
