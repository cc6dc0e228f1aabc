from __future__ import annotations

import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale, StaticLossScale
from mxmp.scaling.scale_loss import _SCALED_LOSSES, scale_loss
from mxmp.scaling.scaler import Scaler
from mxmp.scaling.source import ScaleSource
from mxmp.scaling.window import Stage, Window

ONE, ZERO = mx.nd.ones((1,)), mx.nd.zeros((1,))


def make(value):
    """Return a scaler of its own."""
    return Scaler(ScaleSource(value))


def test_a_window_goes_from_ready_to_scaled():
    scaler = make(StaticLossScale(8))
    assert scaler.window == Window(scale=1.0, stage=Stage.READY)
    with scale_loss(ONE, [scaler]):
        pass
    assert (scaler.window.scale, scaler.window.stage) == (8, Stage.SCALED)
    scaler.close_window()
    assert scaler.window == Window()


def test_without_a_scale_the_loss_is_yielded_itself():
    scaler = make(NoOpLossScale())
    with scale_loss([ONE], [scaler]) as scaled:
        assert scaled[0] is ONE
    assert scaler.window.loss_flag is None


def test_a_scaler_given_twice_counts_once():
    scaler = make(StaticLossScale(8))
    with scale_loss(ONE, [scaler, scaler]) as scaled:
        assert scaled.asscalar() == 8
    assert scaler.window.stage is Stage.SCALED


def test_the_smallest_scale_serves_all():
    scalers = [make(StaticLossScale(value)) for value in (8, 2, 4)]
    with scale_loss(ONE, scalers) as scaled:
        assert scaled.asscalar() == 2
    assert [scaler.window.scale for scaler in scalers] == [2, 2, 2]


def test_a_window_that_has_begun_keeps_its_scale():
    first, second = make(StaticLossScale(8)), make(StaticLossScale(2))
    with scale_loss(ONE, [first]):
        pass
    with scale_loss(ONE, [first, second]) as scaled:
        assert scaled.asscalar() == 8
    assert second.window.scale == 8


@pytest.mark.parametrize("flag", [ONE, ZERO])
def test_should_step_reads_a_flag(flag):
    scaler = make(StaticLossScale(8))
    assert scaler.should_step(flag) is bool(flag.asscalar())


def test_should_step_reads_once_a_window(monkeypatch):
    scaler = make(StaticLossScale(8))
    assert not scaler.should_step(ZERO)
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", None)
    assert not scaler.should_step(ONE)


def test_should_step_remembers_a_bad_flag_from_before_unscaling():
    scaler = make(StaticLossScale(8))
    scaler.window = scaler.window.scaled(8)
    scaler.window = scaler.window.unscaled(ZERO)
    assert not scaler.should_step(ONE)


def test_should_step_without_a_scale_says_yes_unread():
    assert make(NoOpLossScale()).should_step(None)


@pytest.mark.parametrize("grad_flag", [ONE, ZERO])
def test_a_bad_loss_raises_when_it_is_read(grad_flag):
    scaler = make(StaticLossScale(8))
    with scaler.block(8, ZERO):
        pass
    scaler.window = scaler.window.unscaled(grad_flag)
    with pytest.raises(NonFiniteLossError):
        scaler.should_step(ONE)


def test_update_scale_adjusts_and_counts():
    scaler = make(DynamicLossScale(init_scale=8))
    scaler.update_scale(False, 1, lambda: None)
    scaler.update_scale(False, 2, lambda: None)
    assert (scaler.loss_scale.value, scaler.skips.skipped_steps, scaler.skips.consecutive_skips) == (2, 2, 2)
    scaler.update_scale(True, 3, lambda: None)
    assert (scaler.skips.skipped_steps, scaler.skips.consecutive_skips, scaler.skips.last_step_skipped) == (2, 0, False)


def test_update_scale_looks_for_the_culprit_only_to_raise():
    searches = []

    def first_bad():
        searches.append(1)
        return "w"

    scaler = make(DynamicLossScale(init_scale=1, max_floor_skips=2))
    scaler.update_scale(False, 1, first_bad)
    assert searches == []
    with pytest.raises(LossScaleError, match="first bad gradient: 'w' at step 2"):
        scaler.update_scale(False, 2, first_bad)
    assert searches == [1]


def test_update_scale_raises_without_a_name_too():
    scaler = make(DynamicLossScale(init_scale=1, max_floor_skips=1))
    with pytest.raises(LossScaleError, match="min_scale=1.0. Lower"):
        scaler.update_scale(False, 1, lambda: None)


def lines(caplog, scaler, outcomes):
    """Settle steps, '+' taken or '-' skipped; return (level, number of the step) of each line of the log."""
    caplog.clear()
    for number, outcome in enumerate(outcomes, 1):
        with caplog.at_level(logging.INFO, logger="mxmp"):
            before = len(caplog.records)
            scaler.update_scale(outcome == "+", number, lambda: None)
        for record in caplog.records[before:]:
            record.number = number
    return [(record.levelname, record.number) for record in caplog.records]


def test_skips_in_a_row_are_logged_ever_more_rarely(caplog):
    found = lines(caplog, make(StaticLossScale(8)), "-" * 120)
    assert found == [("WARNING", 1), ("WARNING", 10), ("WARNING", 50), ("WARNING", 100)]
    assert caplog.messages[-1].endswith("StaticLossScale 8 -> 8; 100 skipped in a row, 100 in all")


def test_a_new_row_of_skips_is_logged_anew(caplog):
    found = lines(caplog, make(StaticLossScale(8)), "--+-+")
    assert found == [("WARNING", 1), ("INFO", 3), ("WARNING", 4)]
    assert caplog.messages[1] == "step 3 taken, after 2 skipped in a row: StaticLossScale 8 -> 8"


def test_a_scale_that_falls_warns_only_when_that_does_not_help(caplog):
    assert lines(caplog, make(DynamicLossScale(init_scale=2.0**24)), "-" * 12) == [("INFO", 1), ("WARNING", 10)]


@pytest.mark.parametrize("init", [1, 2])
def test_a_floor_that_warns_does_so_alone(init, caplog):
    scaler = make(DynamicLossScale(init_scale=init, at_floor="warn", max_floor_skips=1))
    warned = [number for level, number in lines(caplog, scaler, "-" * 10) if level == "WARNING"]
    assert warned == list(range(init, 11))


def test_a_skip_with_destroyed_statistics_leaves_the_warning_to_them(caplog):
    scaler = make(StaticLossScale(8))
    scaler.window = scaler.window.with_stats(ZERO)
    assert not scaler.should_step(ZERO)
    assert lines(caplog, scaler, "-") == [("INFO", 1)]


def test_the_skip_that_ends_the_warm_up_is_logged_and_not_its_steps(caplog):
    assert lines(caplog, make(DynamicLossScale()), "+" * 10) == []
    assert lines(caplog, make(DynamicLossScale()), "++-++") == [("INFO", 3)]
    assert caplog.messages[0].startswith("step 3 skipped, its gradients are not finite: DynamicLossScale 1024 -> 128;")


def test_every_field_survives_a_dict():
    scaler, other = make(DynamicLossScale(init_scale=8)), make(NoOpLossScale())
    scaler.update_scale(False, 1, lambda: None)
    other.load_dict(scaler.to_dict())
    assert other.to_dict() == scaler.to_dict() != make(DynamicLossScale(init_scale=8)).to_dict()


@pytest.mark.parametrize("name", ["loss_scale", "skipped_steps", "consecutive_skips", "last_step_skipped"])
def test_load_dict_takes_all_or_nothing(name):
    scaler = make(StaticLossScale(8))
    data = make(StaticLossScale(4)).to_dict()
    del data[name]
    with pytest.raises(LossScaleError):
        scaler.load_dict(data)
    assert scaler.to_dict() == make(StaticLossScale(8)).to_dict()


def test_requirements_name_the_call():
    scaler = make(StaticLossScale(8))
    with pytest.raises(TrainerError, match="^step: the loss of this step was not scaled, but the loss scale is 8"):
        scaler.require_scaled("step")
    with scale_loss(ONE, [scaler]):
        with pytest.raises(TrainerError, match="^fly was called inside a scale_loss block"):
            scaler.require_closed("fly")
    with pytest.raises(TrainerError, match="^fly came between backward and step"):
        scaler.require_ready("fly")


def test_losses_of_several_contexts_share_one_flag():
    scaler = make(StaticLossScale(8))
    losses = [mx.nd.ones((3,), ctx=mx.cpu(0)), mx.nd.array([1, np.inf], ctx=mx.cpu(1))]
    with scale_loss(losses, [scaler]):
        pass
    assert scaler.window.loss_flag.shape == (1,)
    assert scaler.window.loss_flag.asscalar() == 0


@pytest.mark.parametrize("error", [None, KeyError])
def test_closed_blocks_keep_no_losses_alive(error):
    first, second = make(StaticLossScale(8)), make(StaticLossScale(4))
    try:
        with scale_loss([ONE, (ONE,)], [first]), scale_loss(ONE, [second]):
            assert len(_SCALED_LOSSES) == 3
            if error:
                raise error
    except KeyError:
        pass
    assert _SCALED_LOSSES == {}
