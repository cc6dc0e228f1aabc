"""A run to look at: the files that a folder has of its parts, and one page of them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..display import Figures, Notes, Section, Shown
from ..errors import CheckpointError
from .comparison import Comparison
from .explanation import Explanation
from .gradients import Gradients
from .report import Report
from .steps import Steps

# The part that each file of a run is, and what reads it; in the order of the page.
_FILES: Dict[str, Tuple[str, Any]] = {
    "report.json": ("report", Report),
    "explanation.json": ("explanation", Explanation),
    "steps.csv": ("log", Steps),
    "gradients.json": ("gradients", Gradients),
    "compare.json": ("comparison", Comparison),
}

RUN_FILES = tuple(_FILES)
"""The names of the files that a run's folder may have."""


@dataclass(frozen=True)
class Run(Shown):
    """The parts of a run; each is None where its file is missing.

    Attributes:
        name: The folder's or file's, which the page takes for its title.
        report: The decisions on the network, from report.json.
        explanation: Why a step was not finite, from explanation.json.
        log: The log of steps, from steps.csv.
        gradients: The magnitudes of gradients, from gradients.json.
        comparison: The comparison with float32, from compare.json.
    """

    name: str
    report: Optional[Report] = None
    explanation: Optional[Explanation] = None
    log: Optional[Steps] = None
    gradients: Optional[Gradients] = None
    comparison: Optional[Comparison] = None

    @property
    def steps(self) -> Optional[Sequence[Mapping[str, Any]]]:
        """A mapping for each step of the log."""
        return None if self.log is None else self.log.steps

    @property
    def compare(self) -> Optional[Dict[str, Any]]:
        """The plain values of the comparison, as compare.json has them."""
        return None if self.comparison is None else self.comparison.to_dict()

    @property
    def missing(self) -> Tuple[str, ...]:
        """The names of the files that are not there, except the explanation's: a run without a fault has none."""
        absent = (name for name, (part, _) in _FILES.items() if getattr(self, part) is None)
        return tuple(name for name in absent if name != "explanation.json")

    @property
    def warnings(self) -> List[str]:
        """Sentences to notice about the conversion, as the page has them."""
        notes = (block for block in self._sections()[0].blocks if isinstance(block, Notes) and block.kind == "Warning")
        return [sentence for block in notes for sentence in block.sentences]

    @property
    def _title(self) -> str:  # type: ignore[override]
        return self.name

    @property
    def _lead(self) -> str:
        """The policy, but for its loss scale: the figures of the steps have it."""
        fields = self.report.policy.split(",") if self.report else []
        return ",".join(field for field in fields if self.log is None or not field.startswith("loss_scale="))

    def _sections(self) -> List[Section]:
        """Return the figures and notes of all parts first, then their other blocks; the table of operators last."""
        order = [row.name for row in self.report.rows] if self.report else []
        figures: List[Tuple[str, str, str]] = []
        notes: List[Notes] = []
        sections = []
        parts: List[Any] = [getattr(self, part) for part, _ in _FILES.values()]
        for part in (part for part in parts if part is not None):
            for section in part.sections(order) if isinstance(part, Comparison) else part._sections():
                others = [block for block in section.blocks if not isinstance(block, (Figures, Notes))]
                notes += [block for block in section.blocks if isinstance(block, Notes)]
                tables = (block for block in section.blocks if isinstance(block, Figures))
                figures += [each for block in tables for each in block.figures]
                if others:
                    sections.append(Section(section.title, others, section.lead))
        sections.sort(key=lambda section: section.title == "Operators")
        return [Section("Summary", [*([Figures(figures)] if figures else []), *notes]), *sections]


def read_run(path: str) -> Run:
    """Return the parts of a run that are there.

    Args:
        path: A folder with any of report.json, gradients.json, compare.json, steps.csv and explanation.json; or one of
            these files.

    Raises:
        CheckpointError: If there is none of them, or one is broken; the message names it.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        files = {name: os.path.join(path, name) for name in RUN_FILES if os.path.lexists(os.path.join(path, name))}
        if not files:
            names = ", ".join(RUN_FILES)
            raise CheckpointError(f"{path}: none of {names} is in this folder; give the folder of a run.")
    elif os.path.lexists(path):
        files = {_name_of(path): path}
    else:
        raise CheckpointError(f"{path}: there is no such folder or file; give the folder of a run.")
    parts = {_FILES[name][0]: _FILES[name][1].load(file) for name, file in files.items()}
    return Run(os.path.basename(os.path.abspath(path)) or path, **parts)


def _name_of(path: str) -> str:
    """Return which of a run's files one is, whatever it is called: by its ending, or by the record in it."""
    if path.lower().endswith(".csv"):
        return "steps.csv"
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError, RecursionError):  # its reader says so, in words
        values = None
    kind = values.get("record") if isinstance(values, Mapping) else None
    return next((name for name, (_, reader) in _FILES.items() if getattr(reader, "_kind", "") == kind), "report.json")
