"""The steps that are recorded: network, front, mode and optimizer."""

from __future__ import annotations

from typing import Iterator, Sequence, Tuple

from tests.gpu_record.networks import OTHERS, STEPPED
from tests.gpu_record.runs import Step

GLUON = ("resnet50", "ssd", "bert", "lstm")
"""The nets of `programs.nets` whose steps are recorded."""

MIXED = ("O1", "O2", "O3", "cast", "amp")
"""Modes of mxmp: policies, ``mxmp.gluon.cast``, and ``mxmp.amp``, its drop-in for contrib.amp."""

PLAIN = ("float32", "contrib_amp", "net_cast")
"""MXNet as it is, its contrib.amp, and ``net.cast`` with its own multi_precision."""


def _modules(networks: Sequence[str], *modes: str) -> Iterator[Step]:
    """Yield steps of modules; a network's modes share a process, because none of them patches MXNet."""
    return (Step("module", network, mode, together=modes) for network in networks for mode in modes)


STEPS: Tuple[Step, ...] = (
    *(Step("gluon", net, mode) for net in GLUON for mode in (*PLAIN, *MIXED)),
    *(Step("gluon", net, mode, "adam") for net in ("resnet50", "lstm") for mode in ("float32", "O1", "O2")),
    *(Step("module", net, "contrib_amp") for net in STEPPED),
    *_modules(STEPPED, "float32", "O1", "O2", "O3"),
    *(step._replace(optimizer="adam") for step in _modules(["resnet50_v1b"], "float32", "O2")),
    *_modules(OTHERS, "O1", "O2"),
)
"""All steps; each has a row in the ratchet."""

HELD_STEPS = tuple(step for step in STEPS if step.mode not in ("contrib_amp", "net_cast"))
"""Those that tests record anew: the others are MXNet's own, and `measure` wrote their rows."""

MXMP_STEPS = tuple(step for step in STEPS if step.mode in MIXED)
SOUND_STEPS = tuple(step for step in MXMP_STEPS if step.mode != "O3")
"""Those in which softmax, norms and losses are float32."""
