"""Internals: the fields of a file of states, each of which is checked, in every adapter."""

from __future__ import annotations

import pytest

from mxmp.errors import StateError
from tests.train.state_files import edit_states
from tests.train.test_step import over


def put(data, name, value):
    """Change each field of a name in JSON data."""
    for each in data if isinstance(data, list) else data.values() if isinstance(data, dict) else ():
        put(each, name, value)
    if isinstance(data, dict) and name in data:
        data[name] = value


FIELDS = {"extra": {}, "value": -1, "skipped_steps": -1, "num_update": True}


@pytest.mark.behaviour("a NaN in a state")
@over(damage=list(FIELDS))
def test_a_damaged_field_changes_nothing(make, damage, tmp_path):
    file = tmp_path / "states"
    training = make(64, "adam", {"learning_rate": 0.125})
    training.run()
    training.save(str(file))
    edit_states(file, lambda header: put(header, damage, FIELDS[damage]))
    other = make(32, "adam", {"learning_rate": 0.125})
    other.run()
    before = other.trace()
    with pytest.raises(StateError, match=str(file)):
        other.load(str(file))
    assert other.trace() == before and other.scale == 32
    assert other.run()
