from __future__ import annotations

import dataclasses

import mxnet as mx
import pytest

from mxmp.arrays import together
from mxmp.errors import TrainerError
from mxmp.scaling.window import Stage, Window

ONE, ZERO = mx.nd.ones((1,)), mx.nd.zeros((1,))


def test_a_window_goes_from_ready_to_scaled_to_unscaled():
    window = Window()
    assert window.is_ready and not window.is_scaled
    window = window.scaled(8.0, ONE)
    assert (window.scale, window.stage) == (8.0, Stage.SCALED) and window.is_scaled
    window = window.reached_by_backward().after_reduce(ONE).unscaled(ONE)
    assert window.is_unscaled and window.reduced and window.reached and window.scale == 8.0


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Window)])
def test_no_field_is_set_from_outside(field):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(Window(), field, None)


@pytest.mark.parametrize(
    ("window", "move", "message"),
    [
        (Window().unscaled(None), lambda w: w.scaled(2.0), "scale_loss came after the gradients were unscaled"),
        (Window().after_reduce(None), lambda w: w.scaled(2.0), "scale_loss came after allreduce_grads"),
        (Window().after_reduce(None), lambda w: w.after_reduce(None), "reduced already"),
        (Window().unscaled(None), lambda w: w.unscaled(None), "unscaled already"),
        (Window(), lambda w: w.rescaled(2.0), "ready have no scale"),
        (Window().unscaled(None), lambda w: w.rescaled(2.0), "unscaled have no scale"),
    ],
)
def test_a_move_checks_its_own_precondition(window, move, message):
    with pytest.raises(TrainerError, match=message):
        move(window)


def test_flags_of_several_losses_are_one():
    assert Window().scaled(8.0, ONE).scaled(8.0, ZERO).loss_flag.asscalar() == 0
    assert Window().scaled(8.0).loss_flag is None


@pytest.fixture(params=["cpu", "gpu"])
def device(request, monkeypatch):
    """Gather flags on the CPU as it is done on a device."""
    monkeypatch.setattr(together, "on_gpu", lambda _: request.param == "gpu")


@pytest.mark.parametrize("bad", [None, "loss", "grad", "stats", "masters"])
def test_read_tells_the_flags_apart(bad, device):
    loss, grad, stats, masters = (ZERO if bad == name else ONE for name in ("loss", "grad", "stats", "masters"))
    window = Window().scaled(8.0, loss).unscaled(grad).with_stats(stats).with_masters(masters)
    numbers, window = window.read([mx.nd.array([3]), mx.nd.array([4])])
    assert numbers == [3, 4]
    assert window.loss_finite == (bad != "loss")
    assert window.finite is (False if bad == "grad" else None)
    assert window.stats_lost == (bad == "stats")
    assert window.masters_follow == (bad != "masters")


def test_what_no_flag_tells_is_taken_for_fine_but_masters_are_not():
    numbers, window = Window().with_stats(None).with_masters(None).read([ONE])
    assert numbers == [1]
    assert (window.loss_finite, window.finite, window.stats_lost, window.masters_follow) == (True, None, False, False)


def test_read_gathers_flags_of_other_contexts(device):
    flag = mx.nd.ones((1,), ctx=mx.cpu(1))
    numbers, window = Window().scaled(8.0, flag).unscaled(flag).read([mx.nd.array([3])])
    assert numbers == [3] and window.finite is None


def test_read_copies_to_the_host_once(device, monkeypatch):
    copies = []
    asnumpy = mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: copies.append(array.size) or asnumpy(array))
    Window().scaled(8.0, ONE).unscaled(ONE).with_stats(ONE).with_masters(ONE).read([ONE])
    assert copies == [5]


def test_what_was_not_finite_stays_so():
    assert Window().decided(False).decided(True).finite is False
    assert Window().decided(True).finite is True
