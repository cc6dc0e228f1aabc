"""Casts: no more than the conversion's report counts, those inside of fused kernels included."""

from __future__ import annotations

import pytest

from tests.gpu_record.cases import MXMP_STEPS
from tests.gpu_record.networks import OTHERS

CONVERTED = [step for step in MXMP_STEPS if step.network not in OTHERS]  # of others there is no float32 record


def casts(summary):
    """Return how many casts there are, as launches and in fused kernels."""
    return sum(summary.casts.values()) + sum(summary.fused_casts.values())


@pytest.mark.parametrize("phase", ["taken forward", "taken backward", "inference forward"])
@pytest.mark.parametrize("step", CONVERTED, ids=str)
def test_casts_are_those_of_the_report(step, phase, record):
    """Those of backward are the gradients of forward's; the network's own are there in float32 too."""
    own = casts(record(step.in_mode("float32"))[phase])
    reported = record(step).facts["inference_casts" if phase.startswith("inference") else "casts"]
    assert casts(record(step)[phase]) - own <= reported
