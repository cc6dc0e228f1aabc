"""What an observer is told of the steps of every front."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from mxmp.arrays import to_float32
from mxmp.diagnose import Ledger, StepLogger, Watch
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from mxmp.train.step import Observer
from tests.freeze import freeze
from tests.train.adapters import ADAPTERS, START

OVER_FRONTS = pytest.mark.parametrize("make", ADAPTERS, ids=lambda make: make.__name__)


class Notes(Observer):
    """Notes what it is told, with the gradients of the first context."""

    def __init__(self):
        self.events, self.ends = [], []

    def on_gradients(self, weights, scale):
        self.events.append(("gradients", scale, self._grads(weights)))

    def on_reduced(self, weights, scale):
        self.events.append(("reduced", scale, self._grads(weights)))

    def on_update(self, weights):
        self.events.append(("update", self._weights(weights)))

    def on_updated(self, weights):
        self.events.append(("updated", self._weights(weights)))

    def on_skip(self, weights):
        self.events.append(("skip", weights.first_non_finite()))

    def on_end(self, end):
        self.events.append(("end",))
        self.ends.append(end)

    @staticmethod
    def _grads(weights):
        return {"ab"[index]: to_float32(grad).asnumpy().ravel().tolist() for index, grad, _ in weights.groups()[0]}

    @staticmethod
    def _weights(weights):
        return {"ab"[index]: to_float32(w).asnumpy().ravel().tolist() for index, _, w in weights.groups()[0]}


def started(make, **options):
    """Return an adapter whose scale begins at 4, and what is noted of it."""
    adapter, notes = make(DynamicLossScale(init_scale=4, growth_interval=100), **options), Notes()
    return adapter, notes.attach(adapter.owner)


@OVER_FRONTS
def test_a_step_that_is_taken_is_told_from_its_gradients_to_its_end(make):
    adapter, notes = started(make)
    before = adapter.read()
    assert adapter.run(0.25)
    after = adapter.read()
    assert [event[0] for event in notes.events] == ["gradients", "reduced", "update", "updated", "end"]
    _, scale, grads = notes.events[0]
    assert {name: np.asarray(values) / scale for name, values in grads.items()} == {
        name: pytest.approx(np.full(len(values), 0.25)) for name, values in START.items()
    }
    assert notes.events[2][1] == {name: values.tolist() for name, values in before.items()}
    assert notes.events[3][1] == {name: values.tolist() for name, values in after.items()}
    (end,) = notes.ends
    assert (end.number, end.taken, end.scale, end.loss_scale.value, end.error) == (1, True, 4.0, 4.0, None)


@OVER_FRONTS
def test_a_step_that_is_skipped_is_told_with_its_number_and_the_next_scale(make):
    adapter, notes = started(make)
    adapter.run(0.25)
    assert not adapter.run(0.25, bad=np.inf)
    assert [event[0] for event in notes.events[5:]] == ["gradients", "reduced", "skip", "end"]
    assert notes.events[-2][1] in ("a", "a_weight", "parameter 'a'")
    end = notes.ends[1]
    assert (end.number, end.taken, end.scale, end.error) == (2, False, 4.0, None)


def test_gradients_are_told_once_as_backward_wrote_them_and_summed():
    adapter, notes = started(ADAPTERS[0], contexts=2)
    adapter.backward([0.25, 0.5])
    adapter.clip(1e-3)
    adapter.step()
    (_, scale, own), (_, _, summed) = notes.events[:2]
    assert own["b"] == [0.25 * scale] and summed["b"] == [0.75 * scale]
    assert [event[0] for event in notes.events].count("gradients") == 1


@pytest.mark.parametrize("clips", [False, True])
def test_an_error_ends_a_step_that_was_not_taken(clips):
    adapter, notes = started(ADAPTERS[0])
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError) as caught:
        adapter.clip(1.0) if clips else adapter.step()
    (end,) = notes.ends
    assert not end.taken and not end.skipped and end.error is caught.value
    assert adapter.owner.skipped_steps == 0
    adapter, notes = started(ADAPTERS[0])
    adapter.owner.nonfinite_loss = "skip"
    assert not adapter.run(np.nan)
    assert [event[0] for event in notes.events] == ["gradients", "reduced", "end"]
    assert (notes.ends[0].taken, notes.ends[0].skipped, notes.ends[0].error) == (False, False, None)
    adapter, notes = ADAPTERS[0](DynamicLossScale(init_scale=1, max_floor_skips=1)), Notes()
    notes.attach(adapter.owner)
    with pytest.raises(LossScaleError):
        adapter.run(0.25, bad=np.inf)
    assert not notes.ends[0].taken and notes.ends[0].skipped and isinstance(notes.ends[0].error, LossScaleError)


def test_an_observer_stays_with_a_trainer_that_is_adopted_again_until_it_is_detached():
    adapter, notes = started(ADAPTERS[0])
    Trainer.adopt(adapter.owner, 8)
    adapter.run()
    assert notes.ends[0].scale == 8.0
    notes.detach()
    notes.detach()
    adapter.run()
    assert len(notes.ends) == 1


class Listed(StepLogger):
    """Keeps nothing."""

    def _write(self, record):
        pass

    def _end(self):
        pass


LOOKING = [lambda: Ledger(every=1), lambda: Listed(1, None)]


@pytest.mark.parametrize("watching", [Notes, Watch, *LOOKING], ids=["notes", "watch", "ledger", "log"])
def test_an_observer_is_attached_to_one_owner_until_it_is_detached(watching):
    (first, other), observer = (ADAPTERS[0](1.0).owner for _ in range(2)), watching()
    assert observer.attach(first) is observer is observer.attach(first)
    with pytest.raises(TrainerError, match=f"^attach: this {type(observer).__name__} is attached to another Trainer; "):
        observer.attach(other)
    assert list(first._scaler.observers.values()) == [observer] and not other._scaler.observers
    observer.detach()
    observer.detach()
    assert not first._scaler.observers and list(observer.attach(other)._owner._scaler.observers.values()) == [observer]
    left, first = weakref.ref(first), None
    gc.collect()
    assert left() is None  # an observer that is detached holds no owner


@OVER_FRONTS
@pytest.mark.parametrize("watching, masters", list(zip(LOOKING, [True, False])), ids=["ledger", "log"])
def test_training_is_the_same_bit_for_bit(make, watching, masters):
    def trained(looks):
        options = {"learning_rate": 0.01, "momentum": 0.9, "multi_precision": masters}
        adapter = make(DynamicLossScale(init_scale=4, growth_interval=2), options=options, dtype="float16", contexts=2)
        observer = watching().attach(adapter.owner) if looks else None
        for bad in (None, np.inf, None):
            adapter.run([0.25, 0.1], bad=bad)
        assert observer is None or observer in adapter.owner._scaler.observers.values()
        return freeze(adapter.weights()), adapter.trace(), adapter.scale

    assert trained(True) == trained(False)
