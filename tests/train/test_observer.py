"""Logs and watches of steps: whose they are, and that they change nothing. tests/diagnose has what they are told."""

import gc
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.diagnose import Watch
from mxmp.errors import NonFiniteLossError, TrainerError
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from tests.diagnose.nets import Listed
from tests.freeze import freeze
from tests.train.adapters import ADAPTERS


@pytest.mark.parametrize("watching", [Listed, Watch])
def test_an_observer_has_one_owner_until_it_is_detached(watching):
    """The owner may be adopted again in between."""
    (first, other), observer = (ADAPTERS[0](1.0).owner for _ in range(2)), watching()
    assert observer.attach(first) is observer is observer.attach(first)
    with pytest.raises(TrainerError, match=f"^attach: this {watching.__name__} is attached to another Trainer; "):
        observer.attach(other)
    Trainer.adopt(first, 8)
    observer.detach()
    observer.detach()
    assert observer.attach(other) is observer
    left, first = weakref.ref(first), None
    gc.collect()
    assert left() is None  # an observer that is detached holds no owner


@pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("masters", [True, False])
def test_training_is_the_same_bit_for_bit(make, masters):
    found = []
    for log in (None, Listed()):
        options = {"learning_rate": 0.01, "momentum": 0.9, "multi_precision": masters}
        adapter = make(DynamicLossScale(init_scale=4, growth_interval=2), options=options, dtype="float16", contexts=2)
        if log:
            log.attach(adapter.owner)
        for bad in (None, np.inf, None):
            adapter.run([0.25, 0.1], bad=bad)
        found.append((freeze(adapter.weights()), adapter.trace(), adapter.scale))
    assert found[0] == found[1]
    assert [record.taken for record in log.closed()] == [True, False, True]


@pytest.mark.parametrize("watched", [0, 1])
def test_each_trainer_of_a_net_is_told_of_its_recorded_calls(watched):
    net = gluon.nn.HybridSequential(prefix="net_")
    net.add(*(gluon.nn.Dense(1, in_units=1, prefix=f"{name}_", weight_initializer=mx.init.Constant(300)) for name in "ab"))
    net.initialize()
    trainers = [Trainer(layer, "sgd", loss_scale=8) for layer in convert(net, "O1")]
    with Watch().attach(trainers[watched]) as watch:
        with autograd.record():
            loss = net(mx.nd.array([[300]]))
        with trainers[0].scale_loss(loss, trainers[1]) as scaled:
            scaled.backward()
        with pytest.raises(NonFiniteLossError):
            trainers[watched].step(1)
        assert watch.verdict().node.name == "a_fwd"
