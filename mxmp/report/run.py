"""A run to look at: what a folder has of its report, ledger, comparison and steps, and one page of all of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .. import html
from ..errors import CheckpointError
from .report import Report, legend
from .run_files import COMPARE, LEDGER, READERS, REPORT, STEPS, name_of, read_file
from .saving import save_text

RUN_FILES = tuple(READERS)
"""The names of the files that a run's folder may have."""


@dataclass(frozen=True)
class Run:
    """What there is of a run; each part is None where its file is missing.

    Attributes:
        name: The folder's or file's, which the page takes for its title.
        report: What was decided, from report.json.
        ledger: The ledger of gradients, from ledger.json, as plain values.
        compare: The comparison with float32, from compare.json, as plain values.
        steps: A dict for each step, from steps.csv.
    """

    name: str
    report: Optional[Report] = None
    ledger: Optional[Dict[str, Any]] = None
    compare: Optional[Dict[str, Any]] = None
    steps: Optional[List[Dict[str, Any]]] = None

    @property
    def missing(self) -> Tuple[str, ...]:
        """The names of the files that are not there."""
        parts = {REPORT: self.report, LEDGER: self.ledger, COMPARE: self.compare, STEPS: self.steps}
        return tuple(name for name in RUN_FILES if parts[name] is None)

    @property
    def warnings(self) -> List[str]:
        """What to notice about the conversion, as the page has it."""
        if self.report is None:
            return []
        return html.report_warnings(self.report.to_dict(), [*self.report.warnings, *self.report.notes])

    @property
    def advice(self) -> List[str]:
        """What the ledger advises."""
        return list((self.ledger or {}).get("advice") or ())

    def to_html(self, path: Optional[str] = None, title: Optional[str] = None) -> str:
        """Return the run as one self-contained HTML file, and write it if asked to.

        Args:
            path: The file to write, replaced if it is there; None to write none.
            title: The page's; the run's name unless given.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        lead = html.run_lead(self.report.policy if self.report else "", self.steps, self.ledger)
        text = html.page(title or self.name, self._sections(), lead)
        if path is not None:
            save_text(text, path)
        return text

    def _sections(self) -> List[html.Section]:
        """Return the sections of the page."""
        parts: Dict[str, Any] = {"steps": self.steps, "ledger": self.ledger, "compare": self.compare}
        if self.report is not None:
            legend_ = legend(row.reason for row in self.report.rows)
            noticed = [*self.report.warnings, *self.report.notes]
            parts.update(report=self.report.to_dict(), warnings=noticed, legend=legend_)
        return html.run_sections(**parts)


def read_run(path: str) -> Run:
    """Return what there is of a run.

    Args:
        path: A folder with any of report.json, ledger.json, compare.json and steps.csv, or one such file.

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
        files = {name_of(path): path}
    else:
        raise CheckpointError(f"{path}: there is no such folder or file; give the folder of a run.")
    found = {os.path.splitext(name)[0]: read_file(file, name) for name, file in files.items()}
    return Run(name=os.path.basename(os.path.abspath(path)) or path, **found)
