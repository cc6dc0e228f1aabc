"""Writes the tables of the README and of the pages: ``python -m benchmarks.tables``.

With two files of results it prints how they differ: ``python -m benchmarks.tables before.json after.json``.

Those of speeds are made from `RESULTS`, where ``make bench`` stores one file for each kind of processor; that of the
kinds from `mxmp.processors.KINDS`. A result of another `REVISION` is left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mxmp.processors import KINDS

REVISION = 1
"""Of the code that is measured: raise it with a change that makes stored speeds untrue."""

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PEER = "contrib.amp"

Record = Dict[str, Any]  # of one file, as `benchmarks.runner` writes it
Columns = Sequence[Tuple[str, str]]  # (front, name) of results

_INFERENCE: Columns = [("Gluon", PEER), ("Gluon", "mxmp, frozen"), ("symbolic", PEER), ("symbolic", "mxmp, folded")]
_OTHERS: Columns = [("Gluon", "ONNX Runtime"), ("Gluon", "OpenVINO")]


def file_of(kind: str) -> str:
    """Return the name of the file with the results of a kind of processor.

    Example:
        >>> file_of("AVX512-BF16 of AMD")
        'avx512-bf16-of-amd.json'
    """
    return re.sub(r"\W+", "-", kind.lower()) + ".json"


def read_records(folder: Path = RESULTS) -> List[Record]:
    """Return the stored results of this revision, in the order of their files' names."""
    records = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]
    return [record for record in records if record["machine"].get("revision") == REVISION]


def speed(record: Record, group: str, case: str, front: str, name: str) -> Optional[float]:
    """Return how many times as fast as its base a column was; None if it was not measured."""
    for column in _columns(record, group, case):
        if (column["front"], column["name"]) == (front, name) and column["ratio"]:
            return 1 / float(column["ratio"])
    return None


def kinds(records: Sequence[Record]) -> List[str]:
    """Return the table of the kinds of processors."""
    lines = ["| kind of processor | `auto` | bfloat16's speed | slower there | measured on |", "|---|---|---|---|---|"]
    for kind in KINDS:
        auto = "`mixed_bfloat16`" if kind.gains else "float32"
        lines.append(f"| {kind.name} | {auto} | {kind.figure} | {kind.slower} | {kind.source} |")
    return lines


def speeds(records: Sequence[Record]) -> List[str]:
    """Return the README's table of each processor: mxmp and contrib.amp, to infer and to train."""
    lines: List[str] = []
    for record in records:
        rows = []
        for case in dict.fromkeys([*_cases(record, "inference"), *_cases(record, "training")]):
            found = [speed(record, "inference", case, "Gluon", name) for name in ("mxmp, frozen", PEER)]
            found += [speed(record, "training", case, "", name) for name in (record["options"]["policy"], PEER)]
            rows.append(f"| {case} | {' | '.join(map(_number, found))} |")
        head = ["| | infer: mxmp | contrib.amp | train: mxmp | contrib.amp |", "|---|---|---|---|---|"]
        lines += [_title(record, "inference", "training"), "", *head, *rows, ""] if rows else []
    return [*lines, *_missing(records, "inference", "training")]


def inference(records: Sequence[Record]) -> List[str]:
    """Return the table of inference of each processor."""
    return _tables(records, "inference", [*_INFERENCE, *_OTHERS], "Gluon")


def training(records: Sequence[Record]) -> List[str]:
    """Return the table of training of each processor."""
    names = [PEER, "mixed_bfloat16", "bfloat16, stored", "float16 O1", "float16 O2"]
    return _tables(records, "training", [("", name) for name in names], "")


TABLES: Dict[str, Tuple[str, Callable[[Sequence[Record]], List[str]]]] = {
    "kinds": ("docs/guides/cpu.md", kinds),
    "speed": ("README.md", speeds),
    "inference": ("docs/performance.md", inference),
    "training": ("docs/performance.md", training),
}
"""The tables: the file that each stands in, behind a comment with its name, and the function that makes it."""


def updated(text: str, file: str, records: Sequence[Record]) -> str:
    """Return the text of a file with its tables made anew."""
    for name, (place, make) in TABLES.items():
        if place == file:
            block = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
            lines = "\n".join(make(records))
            text, count = block.subn(lambda match, lines=lines: f"{match[1]}\n{lines}\n\n{match[2]}", text)  # type: ignore[misc]
            if count != 1:
                raise ValueError(f"{file} has {count} places for the table {name!r}; expected 1.")
    return text


def compared(before: Record, after: Record) -> List[str]:
    """Return a row for each column that both records have, with its speed before and after, the slowest first."""
    rows = []
    for each in after["cases"]:
        group, case = each["group"], each["case"]
        for column in each["columns"]:
            front, name = column["front"], column["name"]
            old, new = (speed(record, group, case, front, name) for record in (before, after))
            if name != column["base"] and old and new:
                rows.append((new / old, f"{group}/{case}", ", ".join(filter(None, (front, name))), old, new))
    rows.sort()
    lines = [f"| {case} | {name} | {old:.2f} | {new:.2f} | {ratio:.2f} |" for ratio, case, name, old, new in rows]
    return ["| case | column | before | after | after / before |", "|---" * 5 + "|", *lines]


def main(files: Sequence[str] = ()) -> None:
    """Write all tables, or print how two files of results differ."""
    if files:
        before, after = (json.loads(Path(file).read_text("utf-8")) for file in files)
        print(*compared(before, after), sep="\n")
        return
    records = read_records()
    for file in dict.fromkeys(place for place, _ in TABLES.values()):
        path = ROOT / file
        path.write_text(updated(path.read_text("utf-8"), file, records), "utf-8")
        print(f"written: {file}")


def _columns(record: Record, group: str, case: str) -> List[Dict[str, Any]]:
    return next((each["columns"] for each in record["cases"] if (each["group"], each["case"]) == (group, case)), [])


def _cases(record: Record, group: str) -> List[str]:
    return [each["case"] for each in record["cases"] if each["group"] == group]


def _number(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.2f}"


def _title(record: Record, *groups: str) -> str:
    machine = record["machine"]
    cases = [each for each in record["cases"] if each["group"] in groups]
    measured = dict.fromkeys(f"{each['date']} at {each['commit']}" for each in cases)
    threads = f"{machine['cores']} cores, {machine['threads']} threads"
    return f"**{machine['kind']}**: {machine['processor']}, {threads}, {', '.join(measured)}"


def _missing(records: Sequence[Record], *groups: str) -> List[str]:
    """Return a line that names the kinds that gain by bfloat16 and have no result of some groups in this revision."""
    there = {record["machine"]["kind"] for record in records if any(_cases(record, group) for group in groups)}
    lacking = [kind.name for kind in KINDS if kind.gains and kind.name not in there]
    return [f"Not measured with this version yet: {', '.join(lacking)}."] if lacking else []


def _tables(records: Sequence[Record], group: str, columns: Columns, front: str) -> List[str]:
    lines: List[str] = []
    for record in records:
        cases = _cases(record, group)
        used = [pair for pair in columns if any(speed(record, group, case, *pair) for case in cases)]
        if not used:
            continue
        titles = [", ".join(filter(None, pair)) for pair in used]
        head = [f"| network | float32, ms | {' | '.join(titles)} |", "|---" * (len(used) + 2) + "|"]
        lines += [_title(record, group), "", *head]
        for case in cases:
            cells = [_number(speed(record, group, case, *pair)) for pair in used]
            lines.append(f"| {case} | {_base_ms(record, group, case, front)} | {' | '.join(cells)} |")
        lines.append("")
    return [*lines, *_missing(records, group)]


def _base_ms(record: Record, group: str, case: str, front: str) -> str:
    for column in _columns(record, group, case):
        if column["front"] == front and column["name"] == column["base"] and column["seconds"]:
            return f"{1000 * median(column['seconds']):.0f}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1:])
