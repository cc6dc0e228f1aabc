"""Several losses with scales of their own: num_losses of Trainer.adopt, loss_id of scale_loss."""

import logging

import mxnet as mx
import pytest
from mxnet import autograd, gluon

from mxmp import amp
from mxmp.errors import StateError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.amp.scenarios import param, values

HUGE = 1e35


def two_losses(init_scale=2.0**16, count=2, **kwargs):
    w = param(**kwargs)
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
    assert values(w) == [0.25] and scales(trainer) == [2.0**16, 2.0**16]  # the first down, and up after two steps
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
    assert trainer.step(1) and values(w) == [0.125]


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
        assert not trainer.step(1) and values(w) == [0.5]
    assert "DynamicLossScale 65536 -> 32768;" in caplog.text
    assert scales(trainer) == [2.0**16, 2.0**17, 2.0**15]
    trackers = [scale["growth_tracker"] for scale in states_of_scales(trainer)]
    assert trackers == [1, 0, 0]  # one that cannot be judged stays


def test_a_loss_that_fails_midway_leaves_the_window():
    w, trainer = two_losses(grad_req="add")
    learn(trainer, w, 0, 0.25)
    with pytest.raises(KeyError), trainer.scale_loss(mx.nd.ones(1), loss_id=1):
        raise KeyError
    assert trainer.step(1) and values(w) == [0.75]


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
