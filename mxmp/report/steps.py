"""A log of training steps, as a page shows it: loss, scale and gradient norm, with the skipped steps marked."""

from __future__ import annotations

import contextlib
import csv
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from ..display import NUMBER, Column, Figures, Line, Lines, Notes, Section, Shown, Table, figure, reading

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
    """The steps of a log.

    Attributes:
        steps: By column of the log, numbers or None; 'taken' is a bool or None, 'error' and 'why' text or None.
    """

    _title: ClassVar[str] = "Steps"

    steps: Sequence[Step]

    @classmethod
    def load(cls, path: str) -> Steps:
        """Return the steps of a file that a CSVLogger wrote; of a step that a resumed run made again the last line.

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
        """Return whether a file begins as a CSVLogger's."""
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
