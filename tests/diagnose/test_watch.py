"""A `Watch` as the observer of an Estimator; tests/gluon/test_calls.py and test_verdicts.py have trainers and modules."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import gluon
from mxnet.gluon.contrib.estimator import Estimator

import mxmp
from mxmp.diagnose import Watch
from mxmp.errors import TrainerError
from mxmp.estimator import MixedPrecisionHandler


def test_a_watch_is_an_observer_of_an_estimator_and_explains_the_last_step_after_the_fit():
    net, loss = gluon.nn.Dense(3, in_units=5, prefix="net_"), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3})
    estimator = Estimator(net, loss, mx.metric.Loss(), trainer=trainer)
    estimator.logger.handlers.clear()
    estimator.logger.propagate = False
    watch = Watch(loss)
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.ones((8, 5)) * 100, mx.nd.zeros(8)), batch_size=4)
    handler = MixedPrecisionHandler("O1", loss_scale=2.0**20, observers=[watch])
    estimator.fit(data, epochs=1, event_handlers=[handler])
    assert watch.end.skipped and watch.end.number == 2
    verdict = watch.verdict()
    assert verdict.kind == "scale too high" and verdict.finite_scale < 2.0**20
    assert not loss._forward_pre_hooks and not estimator.trainer._scaler.observers


def stepped(watch, loss):
    """A net after one step of a trainer that is watched."""
    net = mxmp.gluon.convert(dense(), "O1")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=256.0)
    with watch.attach(trainer):
        with mx.autograd.record():
            value = loss(net(mx.nd.ones((4, 5))), mx.nd.zeros(4))
            with trainer.scale_loss(value) as scaled:
                scaled.backward()
        trainer.step(4)
    return net


def dense():
    net = gluon.nn.Dense(3, in_units=5, prefix="net_")
    net.initialize(mx.init.One())
    return net


def test_a_verdict_is_of_the_weights_that_are_there_when_it_is_asked_for():
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    watch = Watch(loss)
    net = stepped(watch, loss)
    assert watch.verdict().kind == "no fault found"

    net.weight.set_data(mx.nd.full((3, 5), float("nan")))

    verdict = watch.verdict()
    assert (verdict.kind, verdict.node.name) == ("parameters", "net_weight")
    assert verdict.text.startswith("the step is finite, but parameter 'net_weight' holds NaN in 15 of 15 elements.")


def test_a_function_as_loss_is_refused_with_the_reason():
    with pytest.raises(TrainerError, match="loss is a function; expected a Block.*as those of a function cannot be"):
        Watch(lambda out, label: out.sum())
