"""Behaviours of loss scaling that the test suites of torch and Apex assert and no other test here holds."""

import pickle

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.arrays import all_finite
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import DTYPES, backward, collapse, loss_of, param, sgd, value


@pytest.mark.behaviour("any bad value")
@pytest.mark.parametrize("size", [4, 5000], ids=["small", "large"])
def test_views_are_checked_and_what_lies_beside_them_is_not(size):
    whole = mx.nd.zeros((4, size))
    whole[2, size // 2] = np.nan
    views = {"rows": whole[1:3], "row": whole[2], "reshaped": whole[2:3].reshape((2, -1))}
    assert {name: all_finite([view]).asscalar() for name, view in views.items()} == dict.fromkeys(views, 0)
    assert all_finite([whole[:2], whole[3], whole[3:].reshape(-1)]).asscalar() == 1


@pytest.mark.behaviour("a state before and after use")
@pytest.mark.parametrize("used", [False, True], ids=["before its first step", "after"])
def test_a_state_replaces_all_that_a_trainer_has(used, tmp_path):
    fname = str(tmp_path / "states")
    a, w = param([1.0]), param([1.0])
    source = Trainer([a], "adam", loss_scale=DynamicLossScale(init_scale=8))
    backward(source, a, 0.5)
    source.step(1)
    collapse(source, a, 2)
    source.save_states(fname)
    target = Trainer([w], "adam", loss_scale=DynamicLossScale(init_scale=64))
    if used:
        backward(target, w, -3)
        target.step(1)
        collapse(target, w, 1)
    target.load_states(fname)
    assert target.loss_scale == source.loss_scale
    assert (target.skipped_steps, target.consecutive_skips) == (2, 2)
    w.set_data(a.data())
    for trainer, each in ((source, a), (target, w)):
        backward(trainer, each, 0.25)
        assert trainer.step(1)
    assert w.data().asscalar() == a.data().asscalar()


@pytest.mark.behaviour("float32's training")
@pytest.mark.parametrize("scaled", [True, False])
def test_training_is_gluons_while_all_is_saved_and_loaded_at_every_step(scaled, tmp_path):
    """The scale passes through pickle, the states through a file; two of the steps overflow besides."""
    options = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    plain, w = param([1.0, -2.0, 0.5]), param([1.0, -2.0, 0.5])
    reference = mx.gluon.Trainer([plain], "sgd", dict(options))
    scale = DynamicLossScale(init_scale=2.0**10, growth_interval=3) if scaled else None
    trainer = Trainer([w], "sgd", dict(options), loss_scale=scale)
    for step in range(8):
        x = np.sin([step, 2 * step, 3 * step])
        with autograd.record():
            loss_of(plain, x).backward()
        reference.step(1)
        if scaled and step in (2, 5):
            backward(trainer, w, x)
            w.grad()[1] = np.inf
            assert not trainer.step(1)
        backward(trainer, w, x)
        assert trainer.step(1)
        np.testing.assert_array_equal(w.data().asnumpy(), plain.data().asnumpy())

        fname = str(tmp_path / str(step))
        trainer.save_states(fname)
        scale = pickle.loads(pickle.dumps(trainer.loss_scale))
        assert scale == trainer.loss_scale
        trainer = Trainer([param(value(w.data()))], "sgd", dict(options), loss_scale=scale)
        trainer.load_states(fname)
        (w,) = trainer._params
    assert trainer.skipped_steps == 2 * scaled


@pytest.mark.behaviour("an overflow of one loss")
@pytest.mark.parametrize("losses", [{0}, {1}, {0, 1}], ids=["first loss", "second loss", "both losses"])
@pytest.mark.parametrize("iteration", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_overflow_costs_its_own_loss_that_step_and_the_other_none(dtype, iteration, losses):
    params = [param([0.0], dtype, name=name) for name in "ab"]
    trainers = [sgd(p, DynamicLossScale(init_scale=2.0**8)) for p in params]
    steps = [1.0, 0.5, 0.25]
    for number, x in enumerate(steps):
        for i, (p, trainer) in enumerate(zip(params, trainers)):
            bad = number == iteration and i in losses
            backward(trainer, p, 1e38 if bad else x)  # the loss is finite, 2**8 times it is not
            assert trainer.step(1) is not bad
    for i, (p, trainer) in enumerate(zip(params, trainers)):
        skipped = i in losses
        assert value(p.data()) == -(sum(steps) - skipped * steps[iteration])
        assert (trainer.skipped_steps, trainer.loss_scale.value) == (skipped, 2.0 ** (8 - skipped))
