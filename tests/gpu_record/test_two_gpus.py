"""Training steps on two GPUs, in Gluon and with a Module."""

from __future__ import annotations

import pytest

from tests.gpu_record.runs import Run
from tools.gpu_record.summary import Summary

CASES = [
    pytest.param((front, mode), id=f"{front}-{mode}", marks=pytest.mark.xdist_group("two gpus"))
    for front in ("gluon", "module")
    for mode in ("O1", "O2")
]


@pytest.fixture
def on_two(request, recorder):
    """The mode and the record of a step on two GPUs."""
    front, mode = request.param
    return mode, recorder.record(Run("two_gpus", (front, mode), gpus=2))


@pytest.mark.parametrize("on_two", CASES, indirect=True)
def test_steps_are_taken_or_skipped_together(on_two):
    _, record = on_two
    assert (record.facts["taken"], record.facts["skipped"]) == (True, False)


@pytest.mark.parametrize("on_two", CASES, indirect=True)
def test_every_launch_is_valid(on_two):
    _, record = on_two
    found = sum(record.sections.values(), Summary())
    assert found.launches > 0
    assert (found.invalid_launches, found.failed_sources, found.unchecked_sources) == (0, 0, 0)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("on_two", CASES, indirect=True)
def test_both_run_the_same_products(on_two, phase):
    mode, record = on_two
    first, second = (record[f"{mode}/taken {phase} on {gpu}"] for gpu in (0, 1))
    assert first.convolutions and first.convolutions == second.convolutions
    assert first.matrix_products and first.matrix_products == second.matrix_products


@pytest.mark.parametrize("on_two", CASES, indirect=True)
def test_one_flag_is_read_for_both(on_two):
    mode, record = on_two
    phases = ("forward", "scale", "backward", "update")
    assert sum(record.sections.get(f"{mode}/taken {phase}", Summary()).host_reads for phase in phases) == 1
