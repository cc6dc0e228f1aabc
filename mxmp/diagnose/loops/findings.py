"""What was found wrong with a training loop."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from ... import html

SEVERITIES = ("error", "warning", "note")
_NOTHING = "nothing found"


class LoopFinding(NamedTuple):
    """One thing that is wrong with a loop.

    Attributes:
        kind: What it is, as one name, such as 'loss_not_scaled'; those that there are say `check_loop`.
        text: What was found, where, and what to do.
        severity: 'error' if training is wrong, 'warning' if it likely is, 'note' if it is slow, or may not be meant.
    """

    kind: str
    text: str
    severity: str = "error"


class LoopFindings:
    """What was found wrong with a loop, errors first; empty, and false, if nothing was.

    ``print`` shows a line for each, and a notebook the same as HTML. With `checking` it is complete when the block has
    ended.
    """

    def __init__(self) -> None:
        self._found: List[LoopFinding] = []

    def add(self, kind: str, text: str, severity: str = "error") -> None:
        """Add a finding, once for each kind and text."""
        finding = LoopFinding(kind, text, severity)
        if finding not in self._found:
            self._found.append(finding)
            self._found.sort(key=lambda each: SEVERITIES.index(each.severity))

    @property
    def kinds(self) -> Tuple[str, ...]:
        """The kinds of all findings, each once."""
        return tuple(dict.fromkeys(each.kind for each in self._found))

    def __iter__(self) -> Iterator[LoopFinding]:
        """Yield the findings."""
        return iter(tuple(self._found))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)

    def __getitem__(self, number: int) -> LoopFinding:
        """Return one of them."""
        return self._found[number]

    def to_dict(self) -> Dict[str, Any]:
        """Return them as plain values, for JSON."""
        return {"kind": "check_loop", "findings": [each._asdict() for each in self._found]}

    def __str__(self) -> str:
        """Return a line for each, or 'nothing found'."""
        return "\n".join(f"{each.severity}: {each.text}" for each in self._found) or _NOTHING

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        blocks = [
            html.notes(severity.capitalize(), [each.text for each in self._found if each.severity == severity])
            for severity in SEVERITIES
        ]
        lead = f"found: {', '.join(self.kinds)}" if self._found else _NOTHING
        return html.fragment("The training loop", [html.Section("What is wrong", tuple(blocks), lead)])

    def __repr__(self) -> str:
        """Return the kinds."""
        return f"LoopFindings({', '.join(self.kinds) or _NOTHING})"
