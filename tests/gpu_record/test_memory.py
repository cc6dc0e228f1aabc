"""Bytes on the GPU that a training step of ResNet-50 needs, with MXNet's pool off, against the sum on paper."""

from __future__ import annotations

import pytest

from tests.gpu_record.memory import DONE, OPTIMIZERS, memory_run, on_paper

pytestmark = [
    pytest.mark.xdist_group("memory"),
    pytest.mark.parametrize("mode", ["float32", "O1", "O2"]),
    pytest.mark.parametrize("optimizer", OPTIMIZERS),
]


@pytest.fixture
def memory(mode, optimizer, recorder):
    """The record of three steps."""
    return recorder.record(memory_run(mode, optimizer))


def test_no_copy_of_the_weights_lives_beyond_paper(memory, mode, optimizer):
    """Weights, gradients, masters and states are there; less than another float16 copy of the weights is."""
    paper = on_paper(memory.facts, optimizer)
    weights = sum(size for _, size, trained in memory.facts["parameters"] if trained)
    assert paper <= memory.facts["used"][DONE] < paper + 2 * weights


def test_steps_leave_nothing_behind(memory):
    used = memory.facts["used"]
    assert used["1 done"] == used["2 done"]


def test_the_update_needs_no_float32_copy_of_all_gradients_at_once(memory):
    """They are cast, and masters compared, in parts; how many are there at a time is up to MXNet's engine."""
    assert memory.peaks["2 update"] < 4 * sum(size for _, size, trained in memory.facts["parameters"] if trained)
