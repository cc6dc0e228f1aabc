"""The record of a run."""

from __future__ import annotations

import json
import math

import pytest

from examples.common.history import History


def make():
    history = History()
    for loss in (4.0, 2.0):
        history.add_step({"loss": loss, "loss scale": 8})
    history.add_epoch({"accuracy": 0.5})
    history.add_step({"loss": math.nan, "loss scale": 4}, skipped=True)
    return history


def test_means_are_those_of_one_epoch():
    history = make()
    history.add_step({"loss": 1.0, "loss scale": 4})
    history.steps["loss"][2] = 3.0
    history.add_epoch({})
    assert history.means(0) == {"loss": 3.0, "loss scale": 8.0}
    assert history.means(1) == {"loss": 2.0, "loss scale": 4.0}


def test_step_and_epoch_start_count_steps():
    assert (History().step, History().epoch_start) == (0, 0)
    assert (make().step, make().epoch_start) == (3, 2)


def test_skipped_steps_are_known_by_their_numbers():
    assert make().skipped == [3]


def test_a_record_of_before_has_no_skipped_steps():
    data = make().to_dict()
    del data["skipped"]
    assert History.from_dict(data).skipped == []


def test_json_gives_it_back_with_nan_for_what_json_lacks():
    text = json.dumps(make().to_dict(), allow_nan=False)
    found = History.from_dict(json.loads(text))
    assert math.isnan(found.steps["loss"][2])
    found.steps["loss"][2] = 0.0
    wanted = make()
    wanted.steps["loss"][2] = 0.0
    assert found == wanted


def test_a_step_with_other_series_is_refused():
    history = make()
    with pytest.raises(ValueError, match=r"a step has \['loss'\]; those before have \['loss', 'loss scale'\]"):
        history.add_step({"loss": 1.0})
    assert history.step == 3
