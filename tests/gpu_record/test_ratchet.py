"""Launches, waits and reads of steps are no more than in the table, `ratchet.json`."""

from __future__ import annotations

import pytest

from tests.gpu_record import ratchet
from tests.gpu_record.cases import STEPS


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_steps_keep_to_their_row(step, record):
    name = str(step)
    bound = ratchet.load().get(name)
    found = ratchet.measured(record(step))
    assert bound is not None, f'no row in {ratchet.PATH.name}; as measured: "{name}": {list(found)}'
    assert not ratchet.complaints(name, found, bound), "\n".join(ratchet.complaints(name, found, bound))


def test_the_table_has_no_row_without_a_step():
    assert set(ratchet.load()) - {str(step) for step in STEPS} == set()
