"""A run to look at: the results in a folder, each known by its content, and one page of all of them."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

from ..display import NUMBER, Column, Figures, Line, Lines, Notes, Section, Shown, Table, figure, reading
from ..errors import CheckpointError
from .comparison import Comparison
from .doctor import CheckReport, DoctorReport
from .explanation import Explanation, NonFinite
from .gradients import Gradients, Ranges
from .report import Report, policy_name
from .tuning import SearchResult, SpeedComparison

Part = TypeVar("Part", bound=Shown)

# ---------------------------------------------------------------------- steps

Step = Mapping[str, Any]

_MOST_SKIPS = 2000  # rows of their table
_TRUTH = {"": None, "1": True, "true": True, "0": False, "false": False}
_NUMBERS = "step", "seconds", "scale", "next_scale", "grad_norm", "loss"

# Caption, columns with their names in the legend, and scale of each chart.
_CHARTS = (
    ("Loss", {"loss": "loss"}, "auto"),
    ("Loss scale", {"scale": "scale"}, "log2"),
    ("Norm of the gradients", {"grad_norm": "norm"}, "auto"),
)
_SKIPS = (
    Column("step", NUMBER),
    Column("scale", NUMBER),
    Column("next scale", NUMBER),
    Column("gradient norm", NUMBER),
    Column("why"),
)


@dataclass(frozen=True)
class Steps(Shown):
    """The training steps in the log of a CSVLogger.

    Attributes:
        steps: By column of the log, numbers or None; 'taken' is a bool or None, 'error' and 'why' text or None.
    """

    _title: ClassVar[str] = "Steps"

    steps: Sequence[Step]

    @classmethod
    def load(cls, path: str) -> Steps:
        """Return the steps in a file of a CSVLogger. If a resumed run has repeated a step, the last line counts.

        Columns may be missing, and others are passed over.

        Raises:
            CheckpointError: If the file cannot be read, or is no log of steps; the message names it and the line.
        """
        with reading(path, ValueError, csv.Error), open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if "step" not in (reader.fieldnames or ()):
                raise ValueError("its first line has no column 'step'.")
            last = {}
            for row in reader:
                if None in row.values():
                    raise ValueError(f"line {reader.line_num} is cut: it has fewer columns than the first.")
                step = _step(row, reader.line_num)
                last[step["step"]] = step
        return cls([last[number] for number in sorted(last)])

    @staticmethod
    def is_log(path: str) -> bool:
        """Return whether a file begins with the columns of a CSVLogger."""
        with contextlib.suppress(OSError), open(path, encoding="utf-8-sig", errors="replace") as file:
            return {"step", "taken", "scale"} <= set(file.readline(1000).strip().split(","))
        return False

    def _sections(self) -> List[Section]:
        if not self.steps:
            return []
        x = [step["step"] for step in self.steps]
        skipped = [step for step in self.steps if step.get("taken") is False]
        marks = [step["step"] for step in skipped]
        names = "scale", "next_scale", "grad_norm"
        rows = [
            (int(step["step"]), *(step.get(name) for name in names), step.get("error") or step.get("why"))
            for step in skipped[:_MOST_SKIPS]
        ]
        charts = []
        for caption, columns, scale in _CHARTS:
            lines = [Line(name, [step.get(column) for step in self.steps]) for column, name in columns.items()]
            charts.append(Lines(caption, x, lines, "step", scale, marks, "skipped step"))
        table = [Table("Skipped steps", _SKIPS, rows, "skipped steps", most=20)] if rows else []
        charts = [chart for chart in charts if not chart.is_empty]
        last = self.steps[-1]
        said = last.get("error") or (last.get("why") if last.get("taken") is False else None)
        notes = [Notes([f"The last step was not taken: {said}"], "Error")] if said else []
        return [Section("Steps", (Figures(self._figures(len(skipped))), *notes, *charts, *table))]

    def _figures(self, skipped: int) -> List[Tuple[str, str, str]]:
        figures = [("steps", f"{len(self.steps):,}", f"{skipped:,} skipped")]
        for name in ("loss", "scale"):
            values = [step[name] for step in self.steps if step.get(name) is not None]
            finite = [value for value in values if math.isfinite(value)]
            span = f"{figure(min(finite))} to {figure(max(finite))}" if len(set(finite)) > 1 else ""
            figures += [(f"last {name}", figure(values[-1]), span)] if values else []
        # Between two steps; where a run was resumed, time may go back, which is left out.
        seconds = [step.get("seconds") for step in self.steps]
        times = [b - a for a, b in zip(seconds, seconds[1:]) if a is not None and b is not None]
        times = sorted(time for time in times if 0 <= time < math.inf)
        return figures + ([("seconds per step", figure(times[len(times) // 2]), "median")] if times else [])


def _step(row: Mapping[str, Optional[str]], line: int) -> Dict[str, Any]:
    """Return the values of a line, or raise a ValueError that names it."""
    step: Dict[str, Any] = {name: row.get(name) or None for name in ("error", "why")}
    for name in (*_NUMBERS, "taken"):
        text = (row.get(name) or "").strip()
        try:
            step[name] = _TRUTH[text.lower()] if name == "taken" else float(text) if text else None
        except (KeyError, ValueError):
            expected = "1 or 0" if name == "taken" else "a number"
            raise ValueError(f"line {line} has {name}={text!r}; expected {expected}.") from None
    if step["step"] is None or not math.isfinite(step["step"]):
        raise ValueError(f"line {line} has no step.")
    return step


# ---------------------------------------------------------------------- a run


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
    "check.json": CheckReport,
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
        sections: List[Tuple[str, Section]] = []
        for name, record in self.records.items():
            for section in record.sections(order) if isinstance(record, Comparison) else record._sections():
                others = [block for block in section.blocks if not isinstance(block, (Figures, Notes))]
                notes += [block for block in section.blocks if isinstance(block, Notes)]
                tables = (block for block in section.blocks if isinstance(block, Figures))
                figures += [each for block in tables for each in block.figures]
                if others or section.lead:
                    sections.append((name, Section(section.title, others, section.lead)))
        sections.sort(key=lambda pair: pair[1].title == "Operators")
        titles = Counter(section.title for _, section in sections)
        named = [
            replace(section, title=f"{section.title}: {name}") if titles[section.title] > 1 else section
            for name, section in sections
        ]
        return [Section("Summary", [*([Figures(figures)] if figures else []), *notes]), *named]


def read_run(path: str) -> Run:
    """Return the results of a run.

    Args:
        path: A folder or a file. In a folder all results of mxmp are read, under any name. Other files are passed
            over.

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

    The content says which result it is. The name does not matter.
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
        reader = _FILES.get(name, Report)  # Its error names the fault of the file.
    record: Optional[Shown] = None if reader is None else reader.load(path)
    return record


def _kind_of(path: str) -> Optional[str]:
    """Return the kind of the record in a JSON file, None for any other file."""
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError, RecursionError):  # The reader's error names the fault.
        return None
    kind = values.get("record") if isinstance(values, Mapping) else None
    return kind if isinstance(kind, str) else None
