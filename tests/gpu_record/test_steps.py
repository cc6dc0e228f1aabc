"""Training steps run: every operator has a kernel, every launch is one that a GPU accepts, skipped steps update nothing."""

from __future__ import annotations

import pytest

from tests.gpu_record.cases import MXMP_STEPS, STEPS
from tools.gpu_record.summary import Summary

OPTIMIZER_KERNELS = ("MultiSGDKernel<float, true", "SGDMom", "Adam", "adam")
"""Parts of the names of kernels that update weights, of SGD those with momentum: mxmp casts and copies by others."""


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_steps_have_no_invalid_launch(step, record):
    found = sum(record(step).sections.values(), Summary())
    assert found.launches > 0  # else nothing was recorded
    assert found.invalid_launches == 0


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_fused_sources_compile(step, record):
    found = sum(record(step).sections.values(), Summary())
    assert (found.failed_sources, found.unchecked_sources, found.unread_fused) == (0, 0, 0)


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_steps_are_taken_or_skipped_as_the_gradients_say(step, record):
    facts = record(step).facts
    assert (facts["taken"], facts["skipped"]) == (True, False)


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_skipped_steps_run_no_optimizer(step, record):
    taken, skipped = (_optimizer_kernels(record(step)[f"{kind} update"]) for kind in ("taken", "skipped"))
    assert taken, "no kernel of an optimizer is known by its name"
    assert skipped == []


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_the_update_reads_once_on_the_host(step, record):
    assert record(step)["taken update"].host_reads == 1


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_inference_asks_no_more_than_forward(step, record):
    """Library calls and launches together: what dropout leaves to cuDNN in training is a copy in inference."""
    inference, forward = (record(step)[f"{kind} forward"] for kind in ("inference", "taken"))
    assert 0 < inference.launches + inference.library_calls <= forward.launches + forward.library_calls
    assert inference.host_reads <= forward.host_reads


def _optimizer_kernels(summary):
    return [kernel for kernel in summary.kernels if any(word in kernel for word in OPTIMIZER_KERNELS)]
