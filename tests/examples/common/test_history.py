"""The record of a run."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from examples.common.history import History


@pytest.fixture
def history():
    history = History()
    for loss in (4.0, 2.0):
        history.add_step({"loss": loss, "loss scale": 8})
    history.add_epoch({"accuracy": 0.5})
    history.add_step({"loss": math.nan, "loss scale": 4}, skipped=True)
    return history


def test_steps_are_counted_and_skipped_ones_known_by_their_numbers(history):
    assert (History().step, History().epoch_start) == (0, 0)
    assert (history.step, history.epoch_start, history.skipped) == (3, 2, [3])


def test_means_are_those_of_one_epoch(history):
    history.add_step({"loss": 1.0, "loss scale": 4})
    history.steps["loss"][2] = 3.0
    history.add_epoch({})
    history.add_step({"loss": 7.0, "loss scale": 4})
    assert history.means(0) == {"loss": 3.0, "loss scale": 8.0}
    assert history.means(1) == {"loss": 2.0, "loss scale": 4.0}


def test_json_gives_it_back_with_none_for_what_json_lacks(history):
    history.add_epoch({"loss": math.inf})
    assert history.steps["loss"][2] is None is history.epochs[1]["loss"]
    assert math.isnan(history.means(1)["loss"])
    assert History(**json.loads(json.dumps(dataclasses.asdict(history), allow_nan=False))) == history


def test_a_step_with_other_series_is_refused(history):
    with pytest.raises(ValueError, match=r"a step has \['loss'\]; those before have \['loss', 'loss scale'\]"):
        history.add_step({"loss": 1.0})
    assert history.step == 3
