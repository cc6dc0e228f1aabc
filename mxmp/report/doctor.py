"""The records of `mxmp doctor` and of `check`: findings about a machine, or a net and its trainer, and their reports.

They are plain values, so that a page is made of them without MXNet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Iterator, List, Optional, Tuple

from ..display import Column, Notes, Record, Section, Table
from ..dtypes import BFLOAT16
from .report import policy_name


@dataclass(frozen=True)
class Finding:
    """One fact about a machine, or about a net and its trainer, and the advice that follows from it.

    Attributes:
        subject: The device, library or environment variable that was looked at; for `mxmp.diagnose.check` one name for
            the mistake, such as 'plain_trainer'.
        message: The state of the subject.
        ok: True if nothing has to change. False if the subject keeps the policy out of this machine's hardware, or if
            training is wrong. None if that is not known, or if a change would make the policy faster.
        advice: The remedy; empty if there is none.
    """

    subject: str
    message: str
    ok: Optional[bool] = True
    advice: str = ""


@dataclass(frozen=True)
class DoctorReport(Record):
    """Whether this machine runs a policy in hardware, with every finding that the answer rests on.

    Attributes:
        policy: The policy, as text.
        dtype: The policy's compute dtype.
        devices: The devices that run the dtype in hardware, or may do so as far as is known. A CPU on which bfloat16 is
            slower than float32 is left out.
        use: The policies to train and to infer with on this machine, in one sentence.
        findings: All findings, in the order in which they are shown.
    """

    _kind: ClassVar[str] = "doctor"
    _title: ClassVar[str] = "mxmp doctor"

    policy: str
    dtype: str
    devices: Tuple[str, ...]
    use: str
    findings: Tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether a device runs the policy in hardware, or may do so as far as is known."""
        return bool(self.devices)

    def __str__(self) -> str:
        """Return whether a device runs the dtype in hardware, and the policies to use here."""
        if self.ok:
            return f"{self.dtype} runs in hardware here: {', '.join(self.devices)}. {self.use}"
        slower = ", or is slower than float32" if self.dtype == BFLOAT16 else ""
        return f"{self.dtype} does not run in hardware on this machine{slower}. {self.use}"

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain values, and ``ok`` for programs that read the JSON."""
        return {**super().to_dict(), "ok": self.ok}

    @property
    def _lead(self) -> str:
        return policy_name(self.policy)

    def _sections(self) -> List[Section]:
        columns = (Column("subject"), Column("finding"), Column("what to do"))
        rows = [(each.subject, each.message, each.advice) for each in self.findings]
        return [Section("This machine", [Notes([str(self)]), Table("Findings", columns, rows, "findings")])]


@dataclass(frozen=True)
class CheckReport(Record):
    """The mistakes of a net and its trainer, faults first; empty, and false, if there are none.

    ``print`` shows a line for each.

    Attributes:
        findings: The mistakes. `Finding.subject` is one name for each kind, which `mxmp.diagnose.check` lists.
    """

    _kind: ClassVar[str] = "check"
    _title: ClassVar[str] = "The net and its trainer"

    findings: Tuple[Finding, ...] = ()

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The kinds of all findings, each once."""
        return tuple(dict.fromkeys(each.subject for each in self.findings))

    def __bool__(self) -> bool:
        """Return whether anything was found."""
        return bool(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        """Yield the findings."""
        return iter(self.findings)

    def __str__(self) -> str:
        """Return a line for each finding, or 'nothing found'."""
        lines = (f"{'error' if each.ok is False else 'note'}: {each.message} {each.advice}" for each in self.findings)
        return "\n".join(lines) or "nothing found"

    def _sections(self) -> List[Section]:
        columns = (Column("finding"), Column("what is wrong"), Column("what to do"))
        rows = [(each.subject, each.message, each.advice) for each in self.findings]
        blocks = [Table("Findings", columns, rows, "findings")] if rows else []
        return [Section("What is wrong", blocks, "" if rows else "nothing found")]
