"""Launches, waits and reads of steps are no more than in the table, `ratchet.json`."""

import pytest

from tests.gpu_record import ratchet
from tests.gpu_record.cases import HELD_STEPS, STEPS


@pytest.mark.parametrize("step", HELD_STEPS, ids=str)
def test_steps_keep_to_their_row(step, record):
    name = str(step)
    bound = ratchet.load().get(name)
    found = ratchet.measured(record(step))
    assert bound is not None, f'no row in {ratchet.PATH.name}; as measured: "{name}": {list(found)}'
    assert not ratchet.complaints(name, found, bound), "\n".join(ratchet.complaints(name, found, bound))


def test_the_table_has_a_row_for_each_step():
    assert set(ratchet.load()) == {str(step) for step in STEPS}


def test_a_number_that_leaves_its_bound_is_told_with_the_row_to_write():
    bound = ratchet.Row(100, 0, 0, 0, 0, 0, 0, 0)
    told = {101: "launches: 101, more than 100.", 100: None, 95: None, 94: "launches: 94, better than 100: lower the bound."}
    for launches, complaint in told.items():
        row = f'The row as measured, for ratchet.json: "step": [{launches}, 0, 0, 0, 0, 0, 0, 0]'
        found = ratchet.complaints("step", bound._replace(launches=launches), bound)
        assert found == ([complaint, row] if complaint else [])
