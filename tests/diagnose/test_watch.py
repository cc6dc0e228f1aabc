"""A `Watch` as the observer of an Estimator; tests/gluon/test_calls.py and test_verdicts.py have trainers and modules."""

from __future__ import annotations

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.contrib.estimator import Estimator

from mxmp.diagnose import Watch
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
