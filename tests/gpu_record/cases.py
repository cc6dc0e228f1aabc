"""The steps that are recorded: network, front, mode and optimizer."""

from __future__ import annotations

from typing import Tuple

from tests.gpu_record.networks import OTHERS, STEPPED
from tests.gpu_record.runs import Step

GLUON = ("resnet50", "ssd", "bert", "lstm")
"""The nets of `programs.nets` whose steps are recorded."""

MIXED = ("O1", "O2", "O3", "cast", "amp")
"""Modes of mxmp: policies, ``mxmp.gluon.cast``, and ``mxmp.amp``, its drop-in for contrib.amp."""

PLAIN = ("float32", "contrib_amp", "net_cast")
"""MXNet as it is, its contrib.amp, and ``net.cast`` with its own multi_precision."""

MODULE_MODES = ("float32", "O1", "O2", "O3", "contrib_amp")
ADAM_MODES = ("float32", "O1", "O2", "contrib_amp")

STEPS: Tuple[Step, ...] = (
    *(Step("gluon", net, mode) for net in GLUON for mode in (*PLAIN, *MIXED)),
    *(Step("gluon", net, mode, "adam") for net in GLUON for mode in ADAM_MODES),
    *(Step("module", net, mode) for net in STEPPED for mode in MODULE_MODES),
    *(Step("module", net, mode, "adam") for net in STEPPED for mode in ("float32", "O2")),
    *(Step("module", net, mode, together=("O1", "O2")) for net in OTHERS for mode in ("O1", "O2")),
)
"""All steps; each has a row in the ratchet."""

MXMP_STEPS = tuple(step for step in STEPS if step.mode in MIXED)
SOUND_STEPS = tuple(step for step in MXMP_STEPS if step.mode != "O3")
"""Those in which softmax, norms and losses are float32."""
