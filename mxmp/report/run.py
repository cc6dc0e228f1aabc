"""A run to look at: the results in a folder, each known by its content, and one page of all of them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

from ..display import Figures, Notes, Section, Shown
from ..errors import CheckpointError
from .comparison import Comparison
from .doctor import DoctorReport
from .explanation import Explanation, NonFinite
from .gradients import Gradients, Ranges
from .report import Report, policy_name
from .steps import Steps
from .tuning import SearchResult, SpeedComparison

Part = TypeVar("Part", bound=Shown)

# The usual name of each kind of file, and the class that reads it; in the order of the page.
_FILES: Dict[str, Any] = {
    "report.json": Report,
    "explanation.json": Explanation,
    "nonfinite.json": NonFinite,
    "steps.csv": Steps,
    "ranges.json": Ranges,
    "gradients.json": Gradients,
    "compare.json": Comparison,
    "speed.json": SpeedComparison,
    "search.json": SearchResult,
    "doctor.json": DoctorReport,
}

RUN_FILES = tuple(_FILES)
"""The usual names of the files in a run's folder."""

# The advice for files of mxmp that are no results, by their endings.
_OTHERS = {
    ("-symbol.json", ".params", ".manifest.json"): "it belongs to a checkpoint, which `mxmp inspect PREFIX` shows",
    (".states",): "it holds the state of a trainer, which `load_states` reads",
    (".html", ".htm"): "it is a page already; open it in a browser",
    (".tmp",): "a TensorBoardLogger's folder is shown by `tensorboard --logdir`",
}


@dataclass(frozen=True)
class Run(Shown):
    """The results of a run, shown on one page.

    Attributes:
        name: The name of the folder or file, which is the page's title.
        records: The results by the names of their files, in the order of the page.
    """

    name: str
    records: Mapping[str, Shown]

    def find(self, kind: Type[Part]) -> Optional[Part]:
        """Return the first result of a class, such as `Report`; None if there is none."""
        return next((record for record in self.records.values() if isinstance(record, kind)), None)

    @property
    def remarks(self) -> List[Tuple[str, str]]:
        """The sentences to notice, each with a word for its kind: explanations, errors and warnings."""
        blocks = self._sections()[0].blocks
        notes = (block for block in blocks if isinstance(block, Notes) and block.kind != "Note")
        return [(block.kind.lower(), text) for block in notes for text in block.sentences]

    @property
    def _title(self) -> str:  # type: ignore[override]
        return self.name

    @property
    def _lead(self) -> str:
        """The policy of the first report."""
        report = self.find(Report)
        return "" if report is None else policy_name(report.policy)

    def _sections(self) -> List[Section]:
        """Return the figures and notes of all results first, then their other blocks; the table of operators last."""
        report = self.find(Report)
        order = [] if report is None else [row.name for row in report.rows]
        figures: List[Tuple[str, str, str]] = []
        notes: List[Notes] = []
        sections: List[Section] = []
        for name, record in self.records.items():
            twins = sum(type(other) is type(record) for other in self.records.values()) > 1
            for section in record.sections(order) if isinstance(record, Comparison) else record._sections():
                others = [block for block in section.blocks if not isinstance(block, (Figures, Notes))]
                notes += [block for block in section.blocks if isinstance(block, Notes)]
                tables = (block for block in section.blocks if isinstance(block, Figures))
                figures += [each for block in tables for each in block.figures]
                if others:
                    title = f"{section.title}: {name}" if twins else section.title
                    sections.append(Section(title, others, section.lead))
        sections.sort(key=lambda section: section.title.startswith("Operators"))
        return [Section("Summary", [*([Figures(figures)] if figures else []), *notes]), *sections]


def read_run(path: str) -> Run:
    """Return the results of a run.

    Args:
        path: A folder or a file. In a folder all results are read that mxmp wrote there, whatever their names; other
            files are passed over.

    Raises:
        CheckpointError: If there is no result, or if one is damaged; the message names it.
    """
    path = os.fspath(path)
    name = os.path.basename(os.path.abspath(path)) or path
    if os.path.isdir(path):
        files = [file for file in sorted(os.listdir(path)) if file.lower().endswith((".json", ".csv"))]
        found = {file: _read(os.path.join(path, file), file in _FILES) for file in files}
        records = {file: record for file, record in found.items() if record is not None}
        if not records:
            raise CheckpointError(
                f"{path}: this folder holds no result of mxmp, such as {', '.join(RUN_FILES[:4])}; give the folder of "
                f"a run."
            )
    elif os.path.lexists(path):
        record = _read(path, True)
        assert record is not None
        records = {name: record}
    else:
        raise CheckpointError(f"{path}: there is no such folder or file; give the folder of a run.")
    kinds = list(_FILES.values())
    return Run(name, dict(sorted(records.items(), key=lambda pair: kinds.index(type(pair[1])))))


def _read(path: str, is_result: bool) -> Optional[Shown]:
    """Return the result that a file holds; None if it holds none and ``is_result`` does not say that it should.

    The content says which result it is, whatever the file is called.
    """
    name = os.path.basename(path)
    if name.lower().endswith(".csv"):
        log: Optional[Steps] = Steps.load(path) if is_result or Steps.is_log(path) else None
        return log
    advice = next((text for ends, text in _OTHERS.items() if name.lower().endswith(ends)), "")
    if advice:
        if is_result:
            raise CheckpointError(f"{path}: {advice}.")
        return None
    kind = _kind_of(path)
    reader = next((each for each in _FILES.values() if kind is not None and getattr(each, "_kind", None) == kind), None)
    if reader is None and is_result:
        reader = _FILES.get(name, Report)  # whose error says what is wrong with the file
    record: Optional[Shown] = None if reader is None else reader.load(path)
    return record


def _kind_of(path: str) -> Optional[str]:
    """Return the kind of the record in a JSON file, None for any other file."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError, RecursionError):  # its reader says so, in words
        return None
    kind = values.get("record") if isinstance(values, Mapping) else None
    return kind if isinstance(kind, str) else None
