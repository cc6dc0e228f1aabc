"""What a ledger asks of a GPU: nothing between samples, two launches for a sample, whatever the network."""

import pytest

from tests.gpu_record.runs import Run
from tools.gpu_record.summary import Summary

CASES = [
    pytest.param((network, mode), id=f"{network}-{mode}", marks=pytest.mark.xdist_group("ledger"))
    for network, mode in (("resnet50", "O1"), ("resnet50", "O2"))
]
PHASES = ("forward", "scale", "backward", "update")


@pytest.fixture
def found(request, recorder):
    """The facts of a run, and by kind of step its record, all phases together."""
    record = recorder.record(Run("ledger", request.param))
    kinds = ("without", "between", "sample")
    parts = {kind: [record.sections.get(f"{kind} {phase}", Summary()) for phase in PHASES] for kind in kinds}
    return record.facts, {kind: sum(each, Summary()) for kind, each in parts.items()}


@pytest.mark.parametrize("found", CASES, indirect=True)
def test_a_step_that_is_no_sample_asks_for_nothing_more(found):
    _, steps = found
    assert steps["between"].launches == steps["without"].launches
    assert steps["between"].host_reads == steps["without"].host_reads == 1
    assert steps["between"].synchronizations <= steps["without"].synchronizations


@pytest.mark.parametrize("found", CASES, indirect=True)
def test_a_sample_is_counted_in_two_launches_for_each_dtype(found):
    """One fills the counts with zeros; those of the sample before are read, 257 of 4 bytes for each gradient.

    It was the first, of which the weights are counted too, so that as much is read of these.
    """
    facts, steps = found
    dtypes = len(facts["dtypes"])
    assert steps["sample"].launches - steps["without"].launches == 2 * dtypes
    assert steps["sample"].host_reads - steps["without"].host_reads == 2 * dtypes
    assert steps["sample"].host_read_bytes - steps["without"].host_read_bytes == 2 * facts["arrays"] * 257 * 4
    assert steps["sample"].allocated_bytes < 2**18  # those counts lie there while the next are made


@pytest.mark.parametrize("found", CASES, indirect=True)
def test_the_kernel_is_compiled_and_can_be_launched(found):
    facts, steps = found
    sample = steps["sample"]
    assert sample.kernels["count_exponents"] == len(facts["dtypes"])
    assert (sample.invalid_launches, sample.failed_sources, sample.unchecked_sources) == (0, 0, 0)
    assert (facts["steps"], facts["sampled"]) == (4, 2)
