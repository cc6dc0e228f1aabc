"""One loss scale for several trainers, and several losses of one trainer that have a scale each."""

import functools
import gc
import itertools
import logging
import math
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp import amp
from mxmp.errors import LossScaleError, StateError, TrainerError
from mxmp.gluon import SharedLossScale, Trainer
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from tests.gluon.trainer_tools import TWO, backward, param, run, sgd, value
from tests.stress.pauses import TRAIN, paused


def make(loss_scale=None):
    shared = SharedLossScale(loss_scale or DynamicLossScale(init_scale=2.0**8))
    params = [param([1.0], name=f"w{i}") for i in range(2)]
    return shared, params, [sgd(w, shared) for w in params]


@pytest.mark.behaviour("two models", "an update between two steps")
def test_each_trainer_steps_skips_or_sits_out_and_the_scale_moves_once_per_iteration():
    shared, params, trainers = make(DynamicLossScale(init_scale=2.0**8, growth_interval=2))
    scales = []
    # Of each of the two, iteration by iteration: whether it overflows; None for no step.
    for row in ((0, 0), (0, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 0), (1, None)):
        before = shared.loss_scale
        for w, trainer, bad in zip(params, trainers, row):
            assert trainer.loss_scale is before  # though the other has skipped
            if bad is not None:
                assert run(trainer, w, 0.5, np.inf if bad else None) is not bool(bad)
        shared.update()
        scales.append(math.log2(shared.loss_scale.value))
    assert scales == [8, 9, 8, 7, 6, 6, 7, 6]
    assert [trainer.skipped_steps for trainer in trainers] == [3, 2]
    assert [value(w.data()) for w in params] == [-1.5, -1.5]


@pytest.mark.behaviour("an update between two steps")
def test_calls_out_of_turn_are_refused(tmp_path):
    shared, (a, b), (first, second) = make(8)
    assert run(first, a)
    states, after = str(tmp_path / "states"), "came between a step and the update"
    for call, message in (
        (lambda: backward(first, a, 1), r"scale_loss: this trainer has made a step .* call update\(\)"),
        (lambda: setattr(second, "loss_scale", 32), f"setting loss_scale {after}"),
        (lambda: setattr(shared, "loss_scale", 32), f"setting loss_scale {after}"),
        (lambda: second.save_states(states), f"save_states {after} of its shared"),
    ):
        with pytest.raises(TrainerError, match=message):
            call()
    backward(second, b, 1)
    with pytest.raises(TrainerError, match="update of a shared loss scale came between backward and step"):
        shared.update()
    assert shared.loss_scale == StaticLossScale(8) and second.step(1)
    shared.update()
    assert run(first, a)


def test_setting_the_scale_through_any_trainer_sets_it_for_all():
    shared, _, (first, second) = make()
    second.loss_scale = 64
    assert first.loss_scale == shared.loss_scale == StaticLossScale(64)


def test_the_floor_raises_at_the_update_with_the_name_of_the_parameter():
    shared, (a, b), (first, second) = make(DynamicLossScale(init_scale=4.0, min_scale=1.0, max_floor_skips=2))
    with pytest.raises(LossScaleError, match="'w1' at step 4"):
        for _ in range(10):
            assert run(first, a) and not run(second, b, bad=np.inf)
            shared.update()
    assert second.skipped_steps == 4 and first.skipped_steps == 0


@pytest.mark.parametrize(
    ("scale", "levels"), [(8, ["WARNING"] * 2), (DynamicLossScale(init_scale=2.0**20), ["INFO", "WARNING"])], ids=str
)
def test_skips_in_a_row_are_logged_for_each_trainer_ever_more_rarely(scale, levels, caplog):
    shared, (a, b), (first, second) = make(scale)
    with caplog.at_level(logging.INFO, logger="mxmp"):
        for _ in range(12):
            assert not run(first, a, bad=np.inf) and run(second, b)
            shared.update()
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "skipped" in record.getMessage()]
    assert [(level, line.split()[1]) for level, line in lines] == list(zip(levels, ["1", "10"]))


def test_states_are_saved_between_iterations(tmp_path):
    shared, (a, b), (first, second) = make()
    assert run(first, a) and not run(second, b, bad=np.inf)
    shared.update()
    first.save_states(str(tmp_path / "a"))
    second.save_states(str(tmp_path / "b"))
    resumed, _, trainers = make()
    for trainer, name in zip(trainers, "ab"):
        trainer.load_states(str(tmp_path / name))
    assert resumed.loss_scale == shared.loss_scale and [t.skipped_steps for t in trainers] == [0, 1]


def test_a_scale_must_fit_all_trainers(tmp_path):
    fname = str(tmp_path / "states")
    sgd(param([1.0]), "dynamic").save_states(fname)
    shared = SharedLossScale(None)
    compressed = sgd(param([1.0], ctx=TWO, name="a"), shared, compression_params={"type": "2bit", "threshold": 0.5})
    trainers = [compressed, sgd(param([1.0]), shared)]
    with pytest.raises(TrainerError, match="compression_params compares gradients with a threshold while they are scaled"):
        trainers[1].load_states(fname)
    assert shared.loss_scale == NoOpLossScale()


# Trainers that come and go.


@pytest.mark.parametrize("steps", [False, True], ids=["before its step", "after it skipped"])
def test_a_trainer_that_is_gone_blocks_nobody_and_its_skip_counts(steps):
    shared, (a, b), (first, second) = make()

    def come_and_go():
        w = param([1.0])
        trainer = Trainer.adopt(gluon.Trainer([w], "sgd"), shared)
        backward(trainer, w, 1)
        w.data().grad[:] = np.inf
        assert not steps or not trainer.step(1)

    backward(second, b, 1)
    second = sgd(b, shared)  # made anew after an error
    assert run(first, a, bad=None if steps else np.inf) is steps and run(second, b)
    come_and_go()
    if steps:
        gc.collect()
    shared.update()
    assert shared.loss_scale.value == 2.0**7


def test_trainers_that_were_refused_are_not_asked_for_a_new_scale():
    shared = SharedLossScale(None)
    with pytest.raises(TrainerError, match="leave update_on_kvstore out"):
        sgd(param([1.0]), shared, update_on_kvstore=True)
    shared.loss_scale = "dynamic"


def make_another(shared, trainers):
    trainers.append(sgd(param([1.0]), shared))


@pytest.mark.stress
def test_the_scale_is_set_while_another_thread_makes_a_trainer_with_it():
    for line in itertools.count(1):
        shared, _, trainers = make()
        beside = functools.partial(make_another, shared, trainers)
        if not paused(functools.partial(setattr, shared, "loss_scale", 16), line, beside, (TRAIN, weakref.__file__)):
            break


# ---------------------------------------------------------------------- several losses with scales of their own


HUGE = 1e35


def two_losses(init_scale=2.0**16, count=2, **kwargs):
    w = param([1.0], **kwargs)
    scale = DynamicLossScale(init_scale=init_scale, growth_interval=2)
    return w, Trainer.adopt(gluon.Trainer([w], "sgd", {"learning_rate": 1.0}), scale, num_losses=count)


def learn(trainer, w, loss_id, slope):
    with autograd.record():
        loss = w.data() * slope
    with trainer.scale_loss(loss, loss_id=loss_id) as scaled:
        scaled.backward()
    return float(scaled.asscalar() / loss.asscalar())


def states_of_scales(trainer):
    return amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]


def scales(trainer):
    return [scale["value"] for scale in states_of_scales(trainer)]


@pytest.mark.behaviour("a scale per loss")
def test_losses_in_turn_have_scales_of_their_own():
    w, trainer = two_losses()
    for loss_id, slope, stepped in ((0, HUGE, False), (1, 0.25, True), (0, 0.25, True), (0, 0.25, True)):
        learn(trainer, w, loss_id, slope)
        assert trainer.step(1) is stepped
    assert value(w.data()) == [0.25] and scales(trainer) == [2.0**16, 2.0**16]  # the first down, and up after two steps
    learn(trainer, w, 1, 0.25)
    assert trainer.step(1) and scales(trainer) == [2.0**16, 2.0**17]


def test_losses_of_one_step_add_up_at_different_scales():
    w, trainer = two_losses(grad_req="add")
    learn(trainer, w, 0, HUGE)
    trainer.step(1)
    w.zero_grad()
    used = [learn(trainer, w, loss_id, slope) for loss_id, slope in ((0, 0.25), (1, 0.125), (0, 0.5))]
    assert used == [2.0**15, 2.0**16, 2.0**15]
    trainer.unscale()
    assert w.grad().asscalar() == 0.875
    assert trainer.step(1) and value(w.data()) == [0.125]


@pytest.mark.behaviour("a scale per loss", "an overflow of one loss")
def test_the_loss_that_overflows_backs_off_and_is_logged(caplog):
    w, trainer = two_losses(count=3, grad_req="add")
    for _ in range(2):
        learn(trainer, w, 1, 0.25)
        assert trainer.step(1)
        w.zero_grad()
    for loss_id, slope in ((0, 0.25), (2, HUGE), (1, 0.25)):
        learn(trainer, w, loss_id, slope)
    with caplog.at_level(logging.INFO, logger="mxmp"):
        assert not trainer.step(1) and value(w.data()) == [0.5]
    assert "DynamicLossScale 65536 -> 32768;" in caplog.text
    assert scales(trainer) == [2.0**16, 2.0**17, 2.0**15]
    trackers = [scale["growth_tracker"] for scale in states_of_scales(trainer)]
    assert trackers == [1, 0, 0]  # one that cannot be judged stays


def test_a_loss_that_fails_midway_leaves_the_window():
    w, trainer = two_losses(grad_req="add")
    learn(trainer, w, 0, 0.25)
    with pytest.raises(KeyError), trainer.scale_loss(mx.nd.ones(1), loss_id=1):
        raise KeyError
    assert trainer.step(1) and value(w.data()) == [0.75]


def test_states_of_several_losses(tmp_path):
    w, trainer = two_losses()
    learn(trainer, w, 1, HUGE)
    assert not trainer.step(1)
    trainer.save_states(str(tmp_path / "states"))
    (_, resumed), (_, three) = two_losses(), two_losses(count=3)
    resumed.load_states(str(tmp_path / "states"))
    assert scales(resumed) == [2.0**16, 2.0**15]
    with pytest.raises(StateError, match=r"the state is of 2 losses; expected 3 \(num_losses\)"):
        three.load_states(str(tmp_path / "states"))


def test_setting_the_loss_scale_sets_that_of_all_losses():
    _, trainer = two_losses(count=3)
    trainer.loss_scale = 64
    assert scales(trainer) == [64, 64, 64]


def test_a_load_that_is_interrupted_leaves_a_shared_scale_as_it_was(tmp_path, monkeypatch):
    fname = str(tmp_path / "states")
    make(StaticLossScale(2.0))[2][0].save_states(fname)
    shared, _, (trainer, _) = make(StaticLossScale(4.0))
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("mxmp.train.states._link_masters", lambda target: 1 / 0)
        trainer.load_states(fname)
    assert shared.loss_scale.value == 4
    trainer.load_states(fname)
    assert shared.loss_scale.value == 2
