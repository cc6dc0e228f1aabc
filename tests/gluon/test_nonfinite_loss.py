"""Losses that are NaN or inf by themselves: an error, or steps that are skipped with the loss scale as it is."""

import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.errors import NonFiniteLossError
from mxmp.gluon import SharedLossScale, Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from tests.freeze import freeze
from tests.gluon.trainer_tools import run_backward
from tests.module.tools import ready
from tests.train.adapters import ADAPTERS

GOOD, BAD = np.ones((4, 6), np.float32), np.full((4, 6), np.nan, np.float32)
LOSS = gluon.loss.L2Loss()


def scale():
    return DynamicLossScale(init_scale=2.0**8, growth_interval=3)


def make(norm=False, activation=None, **options):
    """Return a net and its trainer; its weights are the same each time."""
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(3, in_units=6, activation=activation))
        if norm:
            net.add(gluon.nn.BatchNorm(in_channels=3))
    net.initialize(mx.init.One())
    options = {"loss_scale": scale(), "nonfinite_loss": "skip", **options}
    return net, Trainer(convert(net, "O2"), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, **options)


def step(net, trainer, x, clip=None):
    with autograd.record():
        loss = LOSS(net(mx.nd.array(x)), mx.nd.zeros((4, 3)))
    run_backward(trainer, loss)
    if clip is not None:
        clip(trainer)
    return trainer.step(4)


def state(net, trainer):
    weights = [p.data() for p in net.collect_params().values()]
    return freeze(weights), trainer.loss_scale, trainer.optimizer.num_update


@pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)
def test_whatever_makes_steps_skips_it_if_it_is_told_to(make):
    training = make(scale(), "sgd", {"momentum": 0.9, "learning_rate": 0.25})
    training.owner.nonfinite_loss, training.owner.max_nonfinite_losses = "skip", 1
    assert training.run()
    before = training.trace(), training.scale
    assert training.run(np.nan) is False and (training.trace(), training.scale) == before
    assert training.counts == (True, 1, 1) and training.run()


@pytest.mark.parametrize("norm", [False, True], ids=["dense", "batch norm"])
@pytest.mark.parametrize(
    "clip", [None, lambda t: t.clip_global_norm(1e9), lambda t: t.unscale()], ids=["plain", "clip", "unscale"]
)
def test_a_run_goes_on_as_if_a_nan_batch_had_not_been(norm, clip):
    """Weights, statistics, momentum, the scale and how soon it grows."""
    (net, trainer), (other, expected) = make(norm), make(norm)
    taken = [step(net, trainer, x * 0.1, clip) for x in (GOOD, BAD, GOOD, BAD, BAD, GOOD, GOOD)]
    assert taken == [True, False, True, False, False, True, True]
    assert all(step(other, expected, GOOD * 0.1, clip) for _ in range(4))
    assert state(net, trainer) == state(other, expected)
    assert trainer.loss_scale.value == 2.0**9
    assert (trainer.skipped_steps, trainer.consecutive_skips) == (3, 0)


def test_clipping_tells_that_the_norm_is_nan():
    (net, trainer), norms = make(), []
    assert not step(net, trainer, BAD, lambda t: norms.append(t.clip_global_norm(1.0)))
    assert np.isnan(norms)


def test_too_many_in_a_row_are_an_error_and_a_finite_loss_begins_anew():
    net, trainer = make(max_nonfinite_losses=2)
    for _ in range(2):
        assert not step(net, trainer, BAD) and not step(net, trainer, BAD) and step(net, trainer, GOOD * 0.1)
    before = state(net, trainer)
    assert not step(net, trainer, BAD) and not step(net, trainer, BAD)
    with pytest.raises(NonFiniteLossError, match="after 2 steps in a row that were skipped for that"):
        step(net, trainer, BAD)
    assert state(net, trainer) == before
    assert step(net, trainer, GOOD * 0.1)


def test_an_overflow_lowers_the_scale_and_is_no_such_step():
    net, trainer = make(max_nonfinite_losses=1)
    assert not step(net, trainer, BAD)
    net[0].weight.set_data(mx.nd.ones((3, 6)) * 6e4)
    trainer.loss_scale = DynamicLossScale(init_scale=2.0**20)
    assert not step(net, trainer, GOOD * 0.1) and trainer.loss_scale.value < 2.0**20
    assert not step(net, trainer, BAD)


def test_the_log_says_that_it_is_the_loss(caplog):
    caplog.set_level(logging.INFO)
    net, trainer = make(norm=True)
    step(net, trainer, BAD)
    assert (
        "step 1 skipped, its loss is NaN or inf: DynamicLossScale stays at 256; 1 such steps in a row. " in caplog.text
    )
    assert "input 'data' holds NaN in 24 of 24 elements" in caplog.text
    assert "overflow" not in caplog.text and "gradients are not finite" not in caplog.text


def test_a_shared_scale_stays_where_one_loss_was_nan():
    shared = SharedLossScale(scale())
    (first, one), (second, two) = make(loss_scale=shared), make(loss_scale=shared)
    for number in range(4):
        assert not step(first, one, BAD) and step(second, two, GOOD * 0.1 if number else BAD) is (number > 0)
        shared.update()
        assert shared.loss_scale.value == (2.0**9 if number == 3 else 2.0**8)


@pytest.mark.parametrize("module", [False, True], ids=["trainer", "module"])
def test_a_nan_batch_whose_loss_is_finite_is_not_called_an_overflow(module, caplog):
    """MXNet's relu makes 0 of NaN, so that the gradients alone are NaN."""
    caplog.set_level(logging.INFO)
    x = np.ones((8, 6), np.float32)
    x[2] = np.nan
    if module:
        owner = ready()
        owner.forward_backward(mx.io.DataBatch([mx.nd.array(x)], [mx.nd.zeros(8)]))
        assert not owner.update()
    else:
        assert not step(*make(activation="relu", loss_scale=8), x[:4])
    line = next(each for each in caplog.messages if "skipped" in each)
    assert "its gradients are not finite, which no loss scale mends, for input 'data' holds NaN in 6 of " in line
    assert "overflowed" not in caplog.text


def test_an_overflow_is_not_called_a_bad_batch(caplog):
    caplog.set_level(logging.INFO)
    assert not step(*make(loss_scale=2.0**40), GOOD)
    assert "step 1 skipped, its gradients are not finite: StaticLossScale" in caplog.text


def test_a_trainer_that_is_adopted_again_keeps_what_it_does_with_such_a_loss():
    _, trainer = make()
    trainer.nonfinite_loss = "skip"
    assert Trainer.adopt(trainer, loss_scale=128).nonfinite_loss == "skip"
