"""What an observer is told of the steps of every front."""

import gc
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.arrays import to_float32
from mxmp.diagnose import Watch
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from mxmp.train.step import Observer
from tests.diagnose.nets import Listed
from tests.freeze import freeze
from tests.train.adapters import ADAPTERS, START

OVER_FRONTS = pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)


class Notes(Observer):
    """Notes what it is told, with the gradients of the first context."""

    def __init__(self):
        self.events, self.ends = [], []

    def on_gradients(self, weights, scale):
        grads = weights.groups()[0]
        self.events.append("gradients")
        self.grads = {"ab"[index]: (to_float32(grad).asnumpy().ravel() / scale).tolist() for index, grad, _ in grads}

    def on_reduced(self, weights, scale):
        self.events.append("reduced")
        self.sums = [to_float32(grad).asnumpy().ravel()[0] for _, grad, _ in weights.groups()[0]]

    def on_update(self, weights):
        self.events.append("update")

    def on_updated(self, weights):
        self.events.append("updated")

    def on_skip(self, weights):
        self.events.append("skip: " + weights.first_non_finite())

    def on_end(self, end):
        self.events.append("end")
        self.ends.append(end)


def started(make, scale=4, **options):
    """Return an adapter, and what is noted of it."""
    adapter, notes = make(scale, **options), Notes()
    return adapter, notes.attach(adapter.owner)


@OVER_FRONTS
def test_steps_are_told_from_their_gradients_to_their_end(make):
    adapter, notes = started(make)
    assert adapter.run(0.25)
    assert notes.events == ["gradients", "reduced", "update", "updated", "end"]
    (end,) = notes.ends
    assert (end.number, end.taken, end.scale, end.loss_scale.value, end.error) == (1, True, 4.0, 4.0, None)
    assert notes.grads == {name: [0.25] * len(values) for name, values in START.items()}
    assert not adapter.run(0.25, bad=np.inf)
    assert [event.partition(":")[0] for event in notes.events[5:]] == ["gradients", "reduced", "skip", "end"]
    assert notes.events[-2].partition(": ")[2] in ("a", "a_weight", "parameter 'a'")
    end = notes.ends[1]
    assert (end.number, end.taken, end.scale, end.error) == (2, False, 4.0, None)


def test_gradients_are_told_once_as_backward_wrote_them_and_summed():
    adapter, notes = started(ADAPTERS[0], contexts=2)
    adapter.backward([0.25, 0.5])
    adapter.clip(1e-3)
    adapter.step()
    assert notes.grads["b"] == [0.25] and notes.sums == [0.75 * 4] * 2
    assert notes.events.count("gradients") == 1


@pytest.mark.parametrize("clips", [False, True])
def test_an_error_ends_a_step_that_was_not_taken(clips):
    adapter, notes = started(ADAPTERS[0])
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError) as caught:
        adapter.clip(1.0) if clips else adapter.step()
    adapter.owner.nonfinite_loss = "skip"
    assert not adapter.run(np.nan)
    ends = [(end.taken, end.skipped, end.error) for end in notes.ends]
    assert ends == [(False, False, caught.value), (False, False, None)]
    adapter, notes = started(ADAPTERS[0], DynamicLossScale(init_scale=1, max_floor_skips=1))
    with pytest.raises(LossScaleError):
        adapter.run(0.25, bad=np.inf)
    assert not notes.ends[0].taken and notes.ends[0].skipped and isinstance(notes.ends[0].error, LossScaleError)


@pytest.mark.parametrize("watching", [Notes, Watch])
def test_an_observer_is_attached_to_one_owner_until_it_is_detached(watching):
    """Which may be adopted again in between."""
    (first, other), observer = (ADAPTERS[0](1.0).owner for _ in range(2)), watching()
    assert observer.attach(first) is observer is observer.attach(first)
    with pytest.raises(TrainerError, match=f"^attach: this {type(observer).__name__} is attached to another Trainer; "):
        observer.attach(other)
    Trainer.adopt(first, 8)
    assert list(first._scaler.observers.values()) == [observer] and not other._scaler.observers
    observer.detach()
    observer.detach()
    assert not first._scaler.observers and list(observer.attach(other)._owner._scaler.observers.values()) == [observer]
    left, first = weakref.ref(first), None
    gc.collect()
    assert left() is None  # an observer that is detached holds no owner


@OVER_FRONTS
@pytest.mark.parametrize("masters", [True, False])
def test_training_is_the_same_bit_for_bit(make, masters):
    found = []
    for watching in (None, Listed()):
        options = {"learning_rate": 0.01, "momentum": 0.9, "multi_precision": masters}
        adapter = make(DynamicLossScale(init_scale=4, growth_interval=2), options=options, dtype="float16", contexts=2)
        observer = watching and watching.attach(adapter.owner)
        for bad in (None, np.inf, None):
            adapter.run([0.25, 0.1], bad=bad)
        assert observer is None or observer in adapter.owner._scaler.observers.values()
        found.append((freeze(adapter.weights()), adapter.trace(), adapter.scale))
    assert found[0] == found[1]


class Doubled(Observer):
    """Doubles the outputs of nets, and counts the events of calls."""

    calls, closed = (), 0

    def on_call(self, call):
        self.calls += (call,)
        return call.outputs * 2

    def on_close(self):
        self.closed += 1


def shared(*trained):
    """Return a net of two layers, a trainer for each that is trained, and an observer of each trainer."""
    net = nn.HybridSequential(prefix="net_")
    net.add(*(nn.Dense(1, in_units=1, prefix=f"{name}_", weight_initializer="ones") for name in "ab"))
    net.initialize()
    trainers = [Trainer(convert(net, "O1")["ab".index(name)], "sgd", loss_scale=8) for name in trained]
    return net, trainers, [Doubled().attach(trainer) for trainer in trainers]


@pytest.mark.parametrize("trained", ["", "a", "ab"])
def test_every_trainer_of_a_net_is_told_of_its_recorded_calls_and_may_change_its_outputs(trained):
    net, trainers, observers = shared(*trained)
    x = mx.nd.ones((1, 1))
    assert net(x).asscalar() == 1  # not recorded
    with autograd.record():
        loss = net(x)
    assert loss.asscalar() == 2 ** len(trained)
    for observer in observers:
        (call,) = observer.calls
        assert (call.net, call.name, call.context, call.training) == (id(net), "net", mx.cpu(0), True)
        assert call.inputs[0].asscalar() == 1 and call.graph.converted.decisions.before.heads
    if trainers:
        with trainers[0].scale_loss(loss, *trainers[1:]) as scaled:
            scaled.backward()
        trainers[0].step(1)
        trainers[-1].discard_grads()
        assert [observer.closed for observer in observers] == ([2] if trained == "a" else [1, 1])


def test_a_step_whose_running_statistics_cannot_be_put_back_is_told_with_its_error():
    net = nn.BatchNorm(in_channels=2)
    net.initialize()
    net.running_mean.set_data(mx.nd.array([np.nan, 0]))
    trainer, before = Trainer(net, "sgd", loss_scale=8), net.beta.data().asnumpy()
    notes = Notes().attach(trainer)
    with autograd.record():
        loss = net(mx.nd.array([[1, 2], [3, 4]])).sum()
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    with pytest.raises(NonFiniteLossError, match="running statistics") as caught:
        trainer.step(1)
    (end,) = notes.ends
    assert end.error is caught.value
    assert end.taken == (net.beta.data().asnumpy() != before).any()
