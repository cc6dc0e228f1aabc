"""What tuning gives: a policy, what it was measured against, what it changes, and what it holds for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

from rich.table import Table

from ..devices.speed import Machine
from ..files import saving
from ..policy import Policy
from . import plan_file, show
from .holds import HoldsFor
from .plan_file import INFERENCE as INFERENCE
from .plan_file import OBJECTIVES as OBJECTIVES
from .plan_file import TRAINING as TRAINING


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
class Change:
    """Operators of one kind whose precision is not the untuned policy's.

    Attributes:
        op: The operator.
        dtype: What they compute in.
        names: Their names.
    """

    op: str
    dtype: str
    names: Tuple[str, ...]


@dataclass(frozen=True)
class TuneResult:
    """A tuned policy with its measurements; ``print`` shows them as a table.

    Attributes:
        policy: The policy to convert with. It was measured faster than float32 and than the untuned policy by more
            than the noise; or it is the untuned policy, faster than float32; or it is float32.
        untuned: The policy that tuning began with.
        objective: 'training' or 'inference'.
        for_inference: Whether BatchNorm was folded.
        seconds: Medians of the last measurement: 'float32', 'untuned' and, if another choice was the best, 'tuned'.
        candidates: What was measured on the way.
        changes: The operators whose precision differs from the untuned policy's, unless the policy is float32.
        notes: What the user should know: that the machine is noisy, that the search was interrupted.
        proved: Whether the last measurement was made; if not, the policy is the best of the search.
        holds_for: The machine, shapes and network that the times hold for.
    """

    policy: Policy
    untuned: Policy
    objective: str
    for_inference: bool
    seconds: Dict[str, float]
    candidates: Tuple[Measured, ...]
    changes: Tuple[Change, ...]
    notes: Tuple[str, ...]
    proved: bool
    holds_for: HoldsFor

    @property
    def speedup(self) -> Optional[float]:
        """How many times as fast as float32 the policy was in the last measurement; None if that was not made."""
        float32, fastest = self.seconds.get("float32"), self.seconds.get(self.fastest)
        return float32 / fastest if float32 and fastest else None

    @property
    def fastest(self) -> str:
        """The name in `seconds` of what the policy is."""
        if not self.policy.is_mixed:
            return "float32"
        return "untuned" if self.policy == self.untuned else "tuned"

    def to_dict(self) -> Dict[str, Any]:
        """Return it as plain values."""
        return {"format": plan_file.FORMAT, **asdict(self), "policy": str(self.policy), "untuned": str(self.untuned)}

    def to_json(self) -> str:
        """Return it as JSON, which `from_json` reads."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TuneResult:
        """Return what `to_json` wrote, whatever machine it holds for.

        Raises:
            TuneError: If the text is not that, or damaged.
        """
        values = plan_file.read(text)
        values["candidates"] = tuple(Measured(**each) for each in values["candidates"])
        values["changes"] = tuple(Change(**each) for each in values["changes"])
        holds_for = values["holds_for"]
        values["holds_for"] = HoldsFor(**{**holds_for, "machine": Machine(**holds_for["machine"])})
        return cls(**values)

    def save(self, path: str) -> None:
        """Write it to a file, whole or not at all, which `mxmp.tune.load` reads.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        with saving(f"{path}: the tuned plan", path) as (name,), open(name, "w", encoding="utf-8") as file:
            file.write(self.to_json() + "\n")

    def table(self) -> Table:
        """Return a table of the last measurement."""
        return show.times(self)

    @property
    def totals(self) -> List[Tuple[str, str]]:
        """What was changed and won, what the policy is and holds for, each with what it says."""
        return show.totals(self)

    def __str__(self) -> str:
        """Return it as tables for a terminal."""
        return show.text(self)

    def __repr__(self) -> str:
        """Return the policy and what it won."""
        speedup = "unknown" if self.speedup is None else f"{self.speedup:.2f}"
        policy = show.short_policy(self.policy)
        return f"{type(self).__name__}(policy={policy!r}, objective={self.objective!r}, speedup={speedup})"
