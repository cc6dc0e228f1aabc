"""Bytes on the GPU that a training step of ResNet-50 needs, with MXNet's pool off, against the sum on paper."""

import pytest

from tests.gpu_record.memory import DONE, OPTIMIZERS, memory_run, on_paper

MEMORY_SLACK = 1 << 20
"""Bytes that may be in use beyond the sum on paper: MXNet's own come to 0.04 MB in float32."""

pytestmark = [
    pytest.mark.xdist_group("memory"),
    pytest.mark.parametrize("mode", ["float32", "O1", "O2"]),
    pytest.mark.parametrize("optimizer", OPTIMIZERS),
]


@pytest.fixture
def memory(mode, optimizer, recorder):
    """The record of three steps."""
    return recorder.record(memory_run(mode, optimizer))


def test_weights_gradients_masters_and_states_are_there_and_nothing_is_left_by_a_step(memory, mode, optimizer):
    used, paper = memory.facts["used"], on_paper(memory.facts, optimizer)
    assert paper <= used[DONE] <= paper + MEMORY_SLACK and used["1 done"] == used["2 done"]


def test_the_update_needs_no_float32_copy_of_all_gradients_at_once(memory):
    """They are cast, and masters compared, in parts; how many are there at a time is up to MXNet's engine."""
    assert memory.peaks["2 update"] < 4 * sum(size for _, size, trained in memory.facts["parameters"] if trained)
