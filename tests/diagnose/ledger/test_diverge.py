"""A run that diverges is told from one layer that overflows."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.diagnose import Ledger
from mxmp.errors import LossScaleError, NonFiniteLossError
from tests.diagnose.ledger.runs import Run


def trained(rate, policy="O1", steps=8):
    """Return a ledger of a network that is trained with a learning rate; whatever a step raises, the next is made."""
    mx.random.seed(0)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(2):
            net.add(gluon.nn.Dense(16, in_units=16, activation="relu"))
        net.add(gluon.nn.Dense(4, in_units=16))
    net.initialize(mx.init.Xavier())
    mxmp.gluon.convert(net, policy)
    trainer, loss = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}), gluon.loss.L2Loss()
    ledger = Ledger(every=20).attach(trainer)
    random = np.random.RandomState(0)
    data, labels = mx.nd.array(random.randn(32, 16)), mx.nd.array(random.randn(32, 4))
    for _ in range(steps):
        with autograd.record():
            value = loss(net(data), labels)
            with trainer.scale_loss(value) as scaled:
                scaled.backward()
        try:
            trainer.step(32)
        except (NonFiniteLossError, LossScaleError):
            continue
    return ledger


@pytest.mark.parametrize(("rate", "policy"), [(1e6, "O1"), (1e6, "O2"), (100.0, "O1")])
def test_a_learning_rate_that_is_far_too_high_is_told(rate, policy):
    ledger = trained(rate, policy)
    advice = ledger.advice()
    assert advice.diverges and advice.sentences[0].startswith("The run diverges: in most layers ")
    assert "lower the learning rate or clip gradients" in advice.sentences[0]
    assert (advice.lowest, advice.highest, advice.float32_layers, advice.overrides) == (None, None, (), "")
    assert Ledger.from_dict(ledger.to_dict()).advice() == advice


def test_a_run_that_learns_does_not_diverge():
    ledger = trained(0.05)
    assert not ledger.advice().diverges and ledger.advice().sentences == ()


def ran(grads, taken=2, skipped=4):
    """Return a ledger of steps with gradients of 1, and then of skipped ones."""
    run = Run({"a": (3,), "b": (3,), "c": (3,)})
    ledger = Ledger(every=1).attach(run.trainer)
    for number in range(taken + skipped):
        run.step(dict.fromkeys("abc", 1.0) if number < taken else {name: np.float16(grads[name]) for name in "abc"})
    return ledger.advice()


def test_gradients_that_grow_in_most_layers_diverge():
    assert ran({"a": [np.inf, 1000, 0], "b": [np.nan, 500, 0], "c": [1, 1, 1]}).diverges


def test_one_layer_that_overflows_does_not_diverge():
    advice = ran({"a": [np.inf, 60000, 0], "b": [1, 1, 1], "c": [np.nan] * 3})
    assert not advice.diverges and "steps were skipped, first in the gradients of 'a'" in advice.sentences[0]


def test_a_few_skips_are_no_divergence():
    assert not ran({name: [np.inf, 1000, 0] for name in "abc"}, skipped=2).diverges


def test_a_run_that_never_took_a_step_does_not_diverge():
    assert not ran({name: [np.inf, 1000, 0] for name in "abc"}, taken=0).diverges


def test_a_loss_that_is_not_finite_is_said_to_be():
    run = Run({"w": (2,)})
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": 1.0})
    with autograd.record():
        value = mx.nd.array([np.nan]) * run.params[0].data().astype("float32").sum()
        with run.trainer.scale_loss(value) as scaled:
            scaled.backward()
    with pytest.raises(NonFiniteLossError):
        run.trainer.step(1)
    (sentence,) = ledger.advice().sentences
    assert sentence.startswith("The loss itself was NaN or inf in 1 step, which no loss scale mends")
