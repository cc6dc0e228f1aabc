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


def trained(rate, policy="O1", steps=8, bad=0, every=20, **options):
    """Return a ledger of a network that is trained with a learning rate; whatever a step raises, the next is made.

    The data of the last ``bad`` steps holds a NaN; ``options`` are of the last layer.
    """
    mx.random.seed(0)
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        for _ in range(2):
            net.add(gluon.nn.Dense(16, in_units=16, activation="relu"))
        net.add(gluon.nn.Dense(4, in_units=16, **options))
    net.initialize(mx.init.Xavier())
    mxmp.gluon.convert(net, policy)
    trainer, loss = mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}), gluon.loss.L2Loss()
    ledger = Ledger(every=every).attach(trainer)
    random = np.random.RandomState(0)
    data, labels = mx.nd.array(random.randn(32, 16)), mx.nd.array(random.randn(32, 4))
    for number in range(steps):
        if number >= steps - bad:
            data[0, 0] = np.nan
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


def ran(grads, taken=2, skipped=4, rate=2048.0, losses=0):
    """Return advice on steps with gradients of 1, then skipped ones, then losses of NaN; weights go from 1 to -3."""
    run = Run({"a": (3,), "b": (3,), "c": (3,)}, learning_rate=rate)
    ledger = Ledger(every=1).attach(run.trainer)
    for number in range(taken + skipped):
        run.step(dict.fromkeys("abc", 1.0) if number < taken else {name: np.float16(grads[name]) for name in "abc"})
    for _ in range(losses):
        step_with_a_loss_of_nan(run)
    return ledger.advice()


def step_with_a_loss_of_nan(run):
    with autograd.record():
        value = mx.nd.array([np.nan]) * run.params[0].data().astype("float32").sum()
        with run.trainer.scale_loss(value) as scaled:
            scaled.backward()
    with pytest.raises(NonFiniteLossError):
        run.trainer.step(1, ignore_stale_grad=True)


def test_gradients_that_grow_in_most_layers_diverge():
    assert ran({"a": [np.inf, 1000, 0], "b": [np.nan, 500, 0], "c": [1, 1, 1]}).diverges


GROWN = {name: [np.inf, 1000, 0] for name in "abc"}


def test_gradients_that_grow_alone_do_not_diverge():
    """As below a layer that starts with zeros: the first gradients are tiny, and weights stay as large as they were."""
    assert ran(GROWN).diverges
    advice = ran(GROWN, rate=0.0)
    assert not advice.diverges and "mxmp.diagnose.explain" in advice.sentences[0]


def test_gradients_are_compared_with_those_of_the_latest_sample_that_counted_weights():
    """The first ones were tiny; at the fourth they had their size, and then data is NaN."""
    run = Run({"a": (3,), "b": (3,)}, learning_rate=-1.0)
    ledger = Ledger(every=1).attach(run.trainer)
    for grad in (1.0, 4096.0, 1024.0, 8192.0, *[np.float16([np.nan, 1024, 0])] * 4):
        run.step({"a": grad, "b": grad})
    layer = ledger.layers[0]
    assert (layer.grad_before, layer.grad) == (8.0, 1.0) and layer.weight > 2 * layer.weight_before
    assert not ledger.advice().diverges


def test_a_network_whose_last_layer_starts_with_zeros_does_not_diverge_when_data_is_nan():
    ledger = trained(0.001, steps=150, bad=4, every=1, weight_initializer="zeros")
    assert ledger.skipped >= 4 and not ledger.advice().diverges


def test_losses_that_are_not_finite_are_said_of_a_run_that_diverges_too():
    diverges, losses = ran(GROWN, losses=2).sentences
    assert diverges.startswith("The run diverges") and losses.startswith("The loss itself was NaN or inf in 2 steps")


def test_one_layer_that_overflows_does_not_diverge():
    advice = ran({"a": [np.inf, 60000, 0], "b": [1, 1, 1], "c": [np.nan] * 3})
    assert not advice.diverges and "steps were skipped, first in the gradients of 'a'" in advice.sentences[0]


def test_a_few_skips_are_no_divergence():
    assert not ran(GROWN, skipped=2).diverges


def test_a_run_that_never_took_a_step_does_not_diverge():
    assert not ran(GROWN, taken=0).diverges


def test_a_loss_that_is_not_finite_is_said_to_be():
    run = Run({"w": (2,)})
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": 1.0})
    step_with_a_loss_of_nan(run)
    (sentence,) = ledger.advice().sentences
    assert sentence.startswith("The loss itself was NaN or inf in 1 step, which no loss scale mends")


def test_weights_are_told_apart_where_a_layer_is_frozen_between_two_samples():
    run = Run({"a": (3,), "b": (3,), "c": (3,)})
    for number, param in enumerate(run.params):
        param.set_data(mx.nd.full((3,), 2.0**number))
    ledger = Ledger(every=1).attach(run.trainer)
    run.step(dict.fromkeys("abc", 1.0))
    run.params[0].grad_req = "null"
    with run.trainer.scale_loss(mx.nd.ones((1,))):
        pass
    for param in run.params[1:]:
        param.data()._fresh_grad = True
    run.trainer.step(1)
    assert [(layer.name, layer.weight_before) for layer in ledger.layers] == [("a", 1.0), ("b", 2.0), ("c", 4.0)]
