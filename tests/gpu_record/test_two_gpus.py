"""Training steps on two GPUs, in Gluon and with a Module."""

import pytest

from tests.gpu_record.runs import Run
from tools.gpu_record.summary import Summary

CASES = [
    pytest.param((front, mode), id=f"{front}-{mode}", marks=pytest.mark.xdist_group("two gpus"))
    for front in ("gluon", "module")
    for mode in ("O1", "O2")
]


@pytest.mark.parametrize("case", CASES)
def test_steps_on_two_gpus_are_valid_taken_or_skipped_together_and_of_the_same_products(case, recorder):
    mode, record = case[1], recorder.record(Run("two_gpus", case, gpus=2))
    assert (record.facts["taken"], record.facts["skipped"]) == (True, False)
    found = sum(record.sections.values(), Summary())
    assert found.launches > 0
    assert (found.invalid_launches, found.failed_sources, found.unchecked_sources) == (0, 0, 0)
    for phase in ("forward", "backward"):
        first, second = (record[f"{mode}/taken {phase} on {gpu}"] for gpu in (0, 1))
        assert first.convolutions and first.convolutions == second.convolutions
        assert first.matrix_products and first.matrix_products == second.matrix_products
    phases = ("forward", "scale", "backward", "update")
    assert sum(record.sections.get(f"{mode}/taken {phase}", Summary()).host_reads for phase in phases) == 1  # one flag
