"""One loss scale for several trainers: each steps or skips, the scale moves once per iteration."""

from __future__ import annotations

import gc
import logging
import math

import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.errors import LossScaleError, TrainerError
from mxmp.gluon import SharedLossScale, Trainer
from mxmp.loss_scale import DynamicLossScale, StaticLossScale
from tests.gluon.trainer_tools import TWO, backward, param, sgd, value


def make(loss_scale=None):
    shared = SharedLossScale(loss_scale or DynamicLossScale(init_scale=2.0**8))
    params = [param([1.0], name=f"w{i}") for i in range(2)]
    return shared, params, [sgd(w, shared) for w in params]


def step(trainer, w, bad=False):
    backward(trainer, w, 0.5)
    if bad:
        w.grad()[:] = np.inf
    return trainer.step(1)


@pytest.mark.behaviour("two models", "an update between two steps")
def test_each_trainer_steps_or_skips_and_the_scale_moves_once_per_iteration():
    shared, params, trainers = make(DynamicLossScale(init_scale=2.0**8, growth_interval=2))
    scales = []
    # Which of the two overflow, iteration by iteration.
    for bad in ((), (), (0,), (0, 1), (1,), (), ()):
        before = shared.loss_scale
        for i, (w, trainer) in enumerate(zip(params, trainers)):
            assert trainer.loss_scale is before  # though the other has skipped
            assert step(trainer, w, bad=i in bad) == (i not in bad)
        shared.update()
        scales.append(math.log2(shared.loss_scale.value))
    assert scales == [8, 9, 8, 7, 6, 6, 7]
    assert [trainer.skipped_steps for trainer in trainers] == [2, 2]
    assert [value(w.data()) for w in params] == [-1.5, -1.5]


def test_a_trainer_may_sit_out_an_iteration():
    shared, (a, _), (first, second) = make()
    for _ in range(3):
        step(first, a, bad=True)
        shared.update()
    assert second.loss_scale.value == 2.0**5


def test_one_loss_for_both():
    shared, (a, b), (first, second) = make()
    with autograd.record(), first.scale_loss(a.data() * b.data(), second) as scaled:
        scaled.backward()
    assert first.step(1) and second.step(1)
    shared.update()
    assert (value(a.data()), value(b.data())) == (0.0, 0.0)


@pytest.mark.behaviour("an update between two steps")
def test_calls_out_of_turn_are_refused(tmp_path):
    shared, (a, b), (first, second) = make(8)
    with pytest.raises(TrainerError, match="no trainer has made a step since the last update"):
        shared.update()
    step(first, a)
    with pytest.raises(TrainerError, match=r"scale_loss: this trainer has made a step .* call update\(\)"):
        backward(first, a, 1)
    for owner in (second, shared):
        with pytest.raises(TrainerError, match="setting loss_scale came between a step and the update"):
            owner.loss_scale = 32
    with pytest.raises(TrainerError, match="save_states came between a step and the update of its shared"):
        second.save_states(str(tmp_path / "states"))
    backward(second, b, 1)
    with pytest.raises(TrainerError, match="update of a shared loss scale came between backward and step"):
        shared.update()
    assert shared.loss_scale == StaticLossScale(8)
    second.step(1)
    shared.update()
    assert step(first, a)


def test_setting_the_scale_through_any_trainer_sets_it_for_all():
    shared, _, (first, second) = make()
    second.loss_scale = 64
    assert first.loss_scale == shared.loss_scale == StaticLossScale(64)
    with pytest.raises(TrainerError, match="give a SharedLossScale to the constructor"):
        first.loss_scale = SharedLossScale(8)
    with pytest.raises(LossScaleError, match="unknown loss scale 'dinamic'"):
        SharedLossScale("dinamic")
    assert first.loss_scale == StaticLossScale(64)


def test_the_floor_raises_at_the_update_with_the_name_of_the_parameter():
    shared, (a, b), (first, second) = make(DynamicLossScale(init_scale=4.0, min_scale=1.0, max_floor_skips=2))
    with pytest.raises(LossScaleError, match="'w1' at step 4"):
        for _ in range(10):
            step(first, a)
            step(second, b, bad=True)
            shared.update()
    assert second.skipped_steps == 4 and first.skipped_steps == 0


@pytest.mark.parametrize(
    ("scale", "levels"), [(8, ["WARNING"] * 2), (DynamicLossScale(init_scale=2.0**20), ["INFO", "WARNING"])], ids=str
)
def test_skips_in_a_row_are_logged_for_each_trainer_ever_more_rarely(scale, levels, caplog):
    shared, (a, b), (first, second) = make(scale)
    with caplog.at_level(logging.INFO, logger="mxmp"):
        for _ in range(12):
            step(first, a, bad=True)
            step(second, b)
            shared.update()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "skipped" in record.getMessage()]
    assert [(level, line.split()[1]) for level, line in lines] == list(zip(levels, ["1", "10"]))


def test_states_are_saved_between_iterations(tmp_path):
    shared, (a, b), (first, second) = make()
    step(first, a)
    step(second, b, bad=True)
    shared.update()
    for trainer, name in ((first, "a"), (second, "b")):
        trainer.save_states(str(tmp_path / name))
    resumed, _, trainers = make()
    for trainer, name in zip(trainers, "ab"):
        trainer.load_states(str(tmp_path / name))
    assert resumed.loss_scale == shared.loss_scale
    assert [t.skipped_steps for t in trainers] == [0, 1]


def test_a_scale_must_fit_all_trainers(tmp_path):
    fname, shared = str(tmp_path / "states"), SharedLossScale(8)
    sgd(param([1.0]), "dynamic").save_states(fname)
    sgd(param([1.0], ctx=TWO, name="on_kvstore"), shared, update_on_kvstore=True)
    other = sgd(param([1.0]), shared)
    with pytest.raises(TrainerError, match="the kvstore of this trainer updates weights"):
        other.load_states(fname)
    assert shared.loss_scale == StaticLossScale(8)


# Trainers that come and go.


def test_a_trainer_that_was_dropped_before_its_step_blocks_nobody():
    shared, (a, b), (first, second) = make()

    def drop():
        w = param([1.0])
        backward(sgd(w, shared), w, 1)

    backward(second, b, 1)
    second = sgd(b, shared)  # made anew after an error
    assert not step(first, a, bad=True) and step(second, b)
    drop()
    shared.update()
    assert shared.loss_scale.value == 2.0**7


def test_the_skip_of_a_trainer_that_is_gone_counts():
    shared = SharedLossScale(DynamicLossScale(init_scale=2.0**8))

    def train():
        w = param([1.0])
        assert not step(sgd(w, shared), w, bad=True)

    train()
    gc.collect()
    shared.update()
    assert shared.loss_scale.value == 2.0**7


def test_a_trainer_can_be_adopted_into_it():
    shared, _, _ = make(8)
    w = param([1.0])
    trainer = Trainer.adopt(gluon.Trainer([w], "sgd", {"learning_rate": 1.0}), shared)
    step(trainer, w, bad=True)
    shared.update()
    assert trainer.skipped_steps == 1 and trainer.loss_scale is shared.loss_scale


def test_trainers_that_were_refused_are_not_asked_for_a_new_scale():
    shared = SharedLossScale(None)
    with pytest.raises(TrainerError, match="1 context"):
        sgd(param([1.0]), shared, update_on_kvstore=True)  # which takes static scales alone
    shared.loss_scale = "dynamic"
