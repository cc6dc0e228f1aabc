"""Training steps run: every operator has a kernel, every launch is one that a GPU accepts, skipped steps update nothing."""

import pytest

from tests.gpu_record.cases import HELD_STEPS, MXMP_STEPS
from tools.gpu_record.summary import Summary

OPTIMIZER_KERNELS = ("MultiSGDKernel<float, true", "SGDMom", "Adam", "adam")
"""Parts of the names of kernels that update weights, of SGD those with momentum: mxmp casts and copies by others."""


@pytest.mark.parametrize("step", HELD_STEPS, ids=str)
def test_steps_have_no_invalid_launch_and_fused_sources_compile(step, record):
    found = sum(record(step).sections.values(), Summary())
    assert found.launches > 0  # else nothing was recorded
    assert (found.invalid_launches, found.failed_sources, found.unchecked_sources, found.unread_fused) == (0, 0, 0, 0)


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_steps_are_taken_or_skipped_as_the_gradients_say(step, record):
    """A skipped one runs no optimizer; the update reads once on the host."""
    found = record(step)
    assert (found.facts["taken"], found.facts["skipped"], found["taken update"].host_reads) == (True, False, 1)
    taken, skipped = (_optimizer_kernels(found[f"{kind} update"]) for kind in ("taken", "skipped"))
    assert taken, "no kernel of an optimizer is known by its name"
    assert skipped == []


@pytest.mark.parametrize("step", MXMP_STEPS, ids=str)
def test_inference_asks_no_more_than_forward(step, record):
    """Library calls and launches together: what dropout leaves to cuDNN in training is a copy in inference."""
    inference, forward = (record(step)[f"{kind} forward"] for kind in ("inference", "taken"))
    assert 0 < inference.launches + inference.library_calls <= forward.launches + forward.library_calls
    assert inference.host_reads <= forward.host_reads


def _optimizer_kernels(summary):
    return [kernel for kernel in summary.kernels if any(word in kernel for word in OPTIMIZER_KERNELS)]
