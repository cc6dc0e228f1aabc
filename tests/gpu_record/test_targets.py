"""How little a step may ask: at most what contrib.amp or float32 asks in the same run, times a factor.

Launches are MXNet's kernels, fused ones included; library calls are counted apart.
"""

from __future__ import annotations

import pytest

from tests.gpu_record.cases import GLUON, STEPS
from tests.gpu_record.memory import DONE, OPTIMIZERS, memory_run, on_paper
from tests.gpu_record.networks import STEPPED
from tests.gpu_record.runs import Run

FLOAT16 = "half_t"
"""float16 in the names of MXNet's kernels."""

FACTOR = 1.1
"""How often a step may launch and wait, relative to contrib.amp's."""

WAITS = 10
"""How often a step of ResNet-50 may wait for a stream beyond what float32 does."""

MASTERS_WAITS = 2
"""How often a step may wait beyond 1.1 times contrib.amp, which has no masters to compare; small networks need it."""

FLAG_BYTES = 16
"""What the host may read of a step: a few float32 numbers."""

UPDATE_LAUNCHES = 60
"""What the update of ResNet-50 may launch with SGD; MXNet's own multi_mp_sgd_mom_update needs 49."""

ADAM_FACTOR = 1.2
"""What the update of ResNet-50 may launch with Adam, relative to float32's."""

MEMORY_SLACK = 1 << 20
"""Bytes that may be in use beyond the sum on paper: MXNet's own come to 0.04 MB in float32."""

NETWORKS = [*(("gluon", net) for net in GLUON), *(("module", net) for net in STEPPED)]
WITH_MXMP = [step for step in STEPS if (step.front, step.network) in NETWORKS and step.mode in ("O1", "O2")]
TRAINED = [step for step in WITH_MXMP if step.optimizer == "sgd"]
RESNETS = [step for step in TRAINED if step.network.startswith("resnet50")]
WITH_ADAM = [step for step in WITH_MXMP if step.optimizer == "adam" and step.network.startswith("resnet50")]


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_launches_are_few_beside_contrib_amp(step, record):
    found, other = (record(each)["taken"].launches for each in (step, step.in_mode("contrib_amp")))
    assert found <= FACTOR * other


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_library_calls_are_no_more_than_in_float32(step, record):
    """Products and convolutions are the network's; norms of gradients would come on top."""
    found, plain = (record(each)["taken"].library_calls for each in (step, step.in_mode("float32")))
    assert found <= plain


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_waits_are_few_beside_contrib_amp(step, record):
    found, other = (record(each)["taken"].synchronizations for each in (step, step.in_mode("contrib_amp")))
    assert found <= FACTOR * other + MASTERS_WAITS


@pytest.mark.parametrize("step", RESNETS, ids=str)
def test_waits_of_resnet_are_few_beside_float32(step, record):
    found, plain = (record(each)["taken"].synchronizations for each in (step, step.in_mode("float32")))
    assert found <= plain + WAITS


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_the_host_reads_one_flag(step, record):
    found, plain = (record(each)["taken"] for each in (step, step.in_mode("float32")))
    assert found.host_reads <= plain.host_reads + 1
    assert found.host_read_bytes <= plain.host_read_bytes + FLAG_BYTES


@pytest.mark.parametrize("step", [step for step in RESNETS if step.mode == "O2"], ids=str)
def test_the_update_of_resnet_with_sgd_is_a_few_launches(step, record):
    assert record(step)["taken update"].launches <= UPDATE_LAUNCHES


@pytest.mark.parametrize("step", WITH_ADAM, ids=str)
def test_the_update_of_resnet_with_adam_is_few_launches_beside_float32(step, record):
    found, plain = (record(each)["taken update"].launches for each in (step, step.in_mode("float32")))
    assert found <= ADAM_FACTOR * plain


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_a_skipped_step_launches_no_more_than_a_taken_one(step, record):
    """A module looks at the losses too, once gradients are not finite: one launch, and one that fills the flag."""
    losses = 2 if step.front == "module" else 0
    assert record(step)["skipped"].launches <= record(step)["taken"].launches + losses


@pytest.mark.xdist_group("two gpus")
@pytest.mark.parametrize("front", ["gluon", "module"])
def test_gradients_of_two_gpus_are_not_added_in_float16(front, recorder):
    """Their sum may exceed float16, and loses bits that float32 keeps."""
    update = recorder.record(Run("two_gpus", (front, "O2"), gpus=2))["O2/taken update"]
    sums = [kernel for kernel in update.kernels if "plus" in kernel or "ElementwiseSum" in kernel]
    assert sums, "no kernel that adds is known by its name"
    assert [kernel for kernel in sums if FLOAT16 in kernel] == []


@pytest.mark.xdist_group("memory")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["O1", "O2"])
def test_memory_between_steps_is_what_it_is_on_paper(mode, optimizer, recorder):
    facts = recorder.record(memory_run(mode, optimizer)).facts
    assert facts["used"][DONE] <= on_paper(facts, optimizer) + MEMORY_SLACK
