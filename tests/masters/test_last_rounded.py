"""A weight that is what its master was last rounded to is not cast and compared again; any other is."""

from __future__ import annotations

import copy
import ctypes
import pickle

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays.memory import address
from mxmp.masters import optimizer as masters_optimizer
from mxmp.masters.copies import LastRounded
from mxmp.masters.optimizer import MultiPrecision
from mxmp.masters.update import Update, update
from tests.masters.test_optimizer import low


def half(values):
    return mx.nd.array(values).astype("float16")


def rounded(values=(1.0, 2.0)):
    master, weight, found = mx.nd.array(values), half(values), LastRounded()
    found.look(weight)
    found.set(master, weight)
    return found, master, weight


def is_still(found, master, weight):
    found.look(weight)
    return found.is_still(master)


def test_a_weight_that_nobody_touched_is_still_what_it_was():
    found, master, weight = rounded()
    assert is_still(found, master, weight)
    assert is_still(found, master, weight.copy())


def test_a_look_that_has_ended_says_nothing():
    found, master, weight = rounded()
    assert is_still(found, master, weight)
    found.end_look()
    assert not found.is_still(master)


def test_nothing_is_copied_before_somebody_looks(monkeypatch):
    found, weight = LastRounded(), half([1.0])
    with monkeypatch.context() as patch:
        patch.setattr(mx.nd.NDArray, "copyto", None)
        found.set(mx.nd.array([1.0]), weight)
    assert not is_still(found, mx.nd.array([1.0]), weight)


def write_in_place(weight):
    weight[1:2] = 7


def write_nan(weight):
    weight[:] = np.nan


def write_other_zero(weight):
    weight *= -1


def write_past_the_engine(weight):
    mx.nd.waitall()  # the engine may still be reading it, for the copy
    ctypes.memset(address(weight) + 2, 1, 1)


@pytest.mark.parametrize("write", [write_in_place, write_nan, write_other_zero, write_past_the_engine])
def test_a_weight_that_was_written_is_not(write):
    found, master, weight = rounded((0.0, 0.0))
    write(weight)
    assert not is_still(found, master, weight)


def test_another_master_shape_or_dtype_is_not():
    found, master, weight = rounded((0.0, 0.0))
    assert not is_still(found, master.copy(), weight)
    assert not is_still(found, master, weight.reshape((1, 2)))
    assert not is_still(found, master, low([0.0, 0.0], "bfloat16"))
    assert not is_still(LastRounded(), master, weight)


def test_set_again_takes_another_shape_and_dtype():
    found, master, _ = rounded()
    for weight in (half([[1, 2], [3, 4]]), mx.nd.array([1, 2, 3])):
        found.set(master, weight)
        assert is_still(found, master, weight)


def test_a_copy_knows_nothing():
    found, master, weight = rounded()
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert not is_still(other, master, weight)


class TestUpdates:
    """Of an optimizer with masters: how often it casts and compares."""

    @pytest.fixture(autouse=True)
    def spy(self, monkeypatch):
        self.synced = []
        sync = masters_optimizer.sync_master_from_weight
        spy = lambda master, weight: self.synced.append(weight.shape) or sync(master, weight)  # noqa: E731
        monkeypatch.setattr(masters_optimizer, "sync_master_from_weight", spy)

    def trained(self, name):
        optimizer = mx.optimizer.create(name, learning_rate=0.5, **({"momentum": 0.5} if name == "sgd" else {}))
        self.weights = [half([1.0, 2.0]), half(np.ones((3, 2000)))]
        self.updater = mx.optimizer.get_updater(MultiPrecision(optimizer))
        self.step()
        self.synced.clear()

    def step(self, **options):
        updates = [Update(k, weight * 0 + 1, weight) for k, weight in enumerate(self.weights)]
        update(self.updater, updates, **{"may_wait": True, **options})

    @pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
    def test_unchanged_weights_are_not_compared_in_float32(self, name):
        self.trained(name)
        for _ in range(3):
            self.step()
        assert not self.synced

    @pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
    def test_a_changed_weight_is_and_wins(self, name):
        self.trained(name)
        before = [self.updater.states[k].master.asnumpy() for k in (0, 1)]
        self.weights[1][2:3] = 40
        self.updater.optimizer.set_learning_rate(0)
        self.updater.optimizer.wd = 0
        if name == "sgd":
            self.updater.optimizer.momentum = 1e-30
        self.step()
        assert self.synced == [(3, 2000)]
        np.testing.assert_array_equal(self.updater.states[0].master.asnumpy(), before[0])
        before[1][2:3] = 40
        np.testing.assert_array_equal(self.updater.states[1].master.asnumpy(), before[1])

    def test_an_update_that_fails_forgets_what_it_saw(self, monkeypatch):
        self.trained("adam")
        with monkeypatch.context() as patch:
            patch.setattr(mx.optimizer.Adam, "update", None)
            with pytest.raises(TypeError):
                self.step()
        self.weights[1][:] = 3
        self.step(may_wait=False)
        assert (3, 2000) in self.synced

    @pytest.mark.parametrize("name", ["sgd", "adam"])
    def test_an_update_that_may_not_wait_does_not(self, name, monkeypatch):
        self.trained(name)
        monkeypatch.setattr(mx.nd.NDArray, "wait_to_read", None)
        self.step(may_wait=False)
        assert len(self.synced) == 2

    def test_a_master_that_was_replaced_is_brought_up_to_date(self):
        self.trained("adam")
        self.updater.states[0].master = mx.nd.array([5.0, 6.0])
        self.updater.optimizer.set_learning_rate(0)
        before = self.weights[0].asnumpy()
        self.step()
        assert self.synced == [(2,)]
        np.testing.assert_array_equal(self.weights[0].asnumpy(), before)
