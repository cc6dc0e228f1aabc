"""What tuning gives: a policy, what it was measured against, and what it holds for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from ..policy import Policy

TRAINING, INFERENCE = "training", "inference"
OBJECTIVES = (TRAINING, INFERENCE)


@dataclass(frozen=True)
class Measured:
    """One candidate that was measured.

    Attributes:
        name: What it changes.
        seconds: The median of its times; None if MXNet cannot run it.
        ratio: Its time divided by that of the best candidate before it.
        won: Whether it became the best.
    """

    name: str
    seconds: Optional[float]
    ratio: Optional[float]
    won: bool


@dataclass(frozen=True)
class TuneResult:
    """A tuned policy with its measurements.

    Attributes:
        policy: The policy to convert with. It was measured faster than float32 and than the untuned policy by more
            than the noise; or it is the untuned policy, faster than float32; or it is float32.
        untuned: The policy that tuning began with.
        objective: 'training' or 'inference'.
        for_inference: Whether BatchNorm was folded.
        seconds: Medians of the last measurement: 'float32', 'untuned' and, if another choice was the best, 'tuned'.
        candidates: What was measured on the way.
        notes: What the user should know: that the machine is noisy, that the search was interrupted.
        machine: What the times hold for: processor, threads, AMX and the build of MXNet.
        shapes: The shapes of the inputs that were measured.
    """

    policy: Policy
    untuned: Policy
    objective: str
    for_inference: bool
    seconds: Dict[str, float]
    candidates: Tuple[Measured, ...]
    notes: Tuple[str, ...]
    machine: str
    shapes: Tuple[Tuple[int, ...], ...]

    @property
    def speedup(self) -> float:
        """How many times as fast as float32 the policy was in the last measurement."""
        return self.seconds["float32"] / self.seconds[self.fastest]

    @property
    def fastest(self) -> str:
        """The name in `seconds` of what the policy is."""
        if not self.policy.is_mixed:
            return "float32"
        return "untuned" if self.policy == self.untuned else "tuned"
