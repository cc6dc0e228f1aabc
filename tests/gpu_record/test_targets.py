"""How little a step may ask: at most what contrib.amp or float32 asks, times a factor; by the table, `ratchet.json`.

Launches are MXNet's kernels, fused ones included; library calls are counted apart.
"""

import pytest

from tests.gpu_record import ratchet
from tests.gpu_record.cases import GLUON, STEPS
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

NETWORKS = [*(("gluon", net) for net in GLUON), *(("module", net) for net in STEPPED)]
WITH_MXMP = [step for step in STEPS if (step.front, step.network) in NETWORKS and step.mode in ("O1", "O2")]
TRAINED = [step for step in WITH_MXMP if step.optimizer == "sgd"]
RESNETS = [step for step in TRAINED if step.network.startswith("resnet50")]
WITH_ADAM = [step for step in WITH_MXMP if step.optimizer == "adam" and step.network.startswith("resnet50")]


def rows(step, mode="float32"):
    """Return the row of a step and that of the same step in another mode."""
    return ratchet.load()[str(step)], ratchet.load()[str(step.in_mode(mode))]


@pytest.mark.parametrize("step", TRAINED, ids=str)
def test_a_step_asks_little_more_than_contrib_amp_and_float32(step):
    """A skipped step of a module looks at the losses too: one launch, and one that fills the flag."""
    row, amp = rows(step, "contrib_amp")
    _, plain = rows(step)
    assert row.launches <= FACTOR * amp.launches and row.library_calls <= plain.library_calls
    assert row.synchronizations <= FACTOR * amp.synchronizations + MASTERS_WAITS
    assert row.host_reads <= plain.host_reads + 1 and row.host_read_bytes <= plain.host_read_bytes + FLAG_BYTES
    assert row.skipped_launches <= row.launches + (2 if step.front == "module" else 0)


@pytest.mark.parametrize("step", RESNETS, ids=str)
def test_a_step_of_resnet_waits_and_updates_with_few_launches(step):
    row, plain = rows(step)
    assert row.synchronizations <= plain.synchronizations + WAITS
    assert row.update_launches <= UPDATE_LAUNCHES or step.mode != "O2"


@pytest.mark.parametrize("step", WITH_ADAM, ids=str)
def test_the_update_of_resnet_with_adam_is_few_launches_beside_float32(step):
    row, plain = rows(step)
    assert row.update_launches <= ADAM_FACTOR * plain.update_launches


@pytest.mark.xdist_group("two gpus")
@pytest.mark.parametrize("front", ["gluon", "module"])
def test_gradients_of_two_gpus_are_not_added_in_float16(front, recorder):
    """Their sum may exceed float16, and loses bits that float32 keeps."""
    update = recorder.record(Run("two_gpus", (front, "O2"), gpus=2))["O2/taken update"]
    sums = [kernel for kernel in update.kernels if "plus" in kernel or "ElementwiseSum" in kernel]
    assert sums, "no kernel that adds is known by its name"
    assert [kernel for kernel in sums if FLOAT16 in kernel] == []
