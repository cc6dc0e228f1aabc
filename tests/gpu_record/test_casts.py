"""Casts: no more than the conversion's report counts, those inside of fused kernels included.

The network's own are there in float32 too, and are taken off.
"""

import pytest

from tests.gpu_record.cases import MXMP_STEPS
from tests.gpu_record.networks import OTHERS

CONVERTED = [step for step in MXMP_STEPS if step.network not in OTHERS]  # of the others there is no float32 record
SOUND = [step for step in CONVERTED if step.mode != "O3"]
"""Under O3 MXNet runs a part of SSD's backward in forward: gradients that are 0 whatever comes, and their casts."""


def added_casts(record, step, phase):
    """Return how many casts a phase has beyond those of float32, as launches and in fused kernels."""
    both = (record(each)[phase] for each in (step, step.in_mode("float32")))
    found, plain = (sum(summary.casts.values()) + sum(summary.fused_casts.values()) for summary in both)
    return found - plain


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("step", SOUND, ids=str)
def test_casts_of_a_phase_are_those_of_the_report(step, phase, record):
    """Backward casts the gradients of what forward casts."""
    assert added_casts(record, step, f"taken {phase}") <= record(step).facts["casts"]


@pytest.mark.parametrize("step", CONVERTED, ids=str)
def test_casts_of_both_are_at_most_twice_those_of_the_report(step, record):
    found = sum(added_casts(record, step, f"taken {phase}") for phase in ("forward", "backward"))
    assert 0 < found <= 2 * record(step).facts["casts"]


@pytest.mark.parametrize("step", SOUND, ids=str)
def test_casts_of_inference_are_those_of_its_report(step, record):
    assert added_casts(record, step, "inference forward") <= record(step).facts["inference_casts"]
