"""Casts: no more than the conversion's report counts, those inside of fused kernels included."""

from __future__ import annotations

import pytest

from tests.gpu_record.cases import MXMP_STEPS

CONVERTED = [step for step in MXMP_STEPS if not step.together]


def casts(summary):
    """Return how many casts there are, as launches and in fused kernels."""
    return sum(summary.casts.values()) + sum(summary.fused_casts.values())


@pytest.mark.parametrize("phase", ["taken forward", "inference forward", "taken backward"])
@pytest.mark.parametrize("step", CONVERTED, ids=str)
def test_casts_are_those_of_the_report(step, phase, record):
    """Those of backward are the gradients of forward's."""
    own = casts(record(step.in_mode("float32"))[phase])
    assert casts(record(step)[phase]) - own <= record(step).facts["casts"]
