"""The table of what steps launch, wait for and read: bounds that only go down.

`ratchet.json` has a row per step: network, front, mode, optimizer. ``python -m tests.gpu_record.measure`` measures
them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, NamedTuple

from tests.gpu_record.runs import Record

PATH = Path(__file__).with_name("ratchet.json")

SLACK = 0.05
"""How far below its bound a number may be before the bound has to follow."""


class Row(NamedTuple):
    """What a step asks of the GPU.

    Attributes:
        launches: Kernels of a step that is taken, from forward to update.
        update_launches: Those of its update alone.
        skipped_launches: Kernels of a step that is skipped, from forward to update.
        library_calls: Calls of cuDNN and cuBLAS.
        synchronizations: Waits for a stream.
        host_reads: Copies to the host.
        host_read_bytes: Their bytes.
        casts: Kernels that do nothing but cast.
    """

    launches: int
    update_launches: int
    skipped_launches: int
    library_calls: int
    synchronizations: int
    host_reads: int
    host_read_bytes: int
    casts: int


def measured(record: Record) -> Row:
    """Return the row of a step's record."""
    taken = record["taken"]
    return Row(
        taken.launches,
        record["taken update"].launches,
        record["skipped"].launches,
        taken.library_calls,
        taken.synchronizations,
        taken.host_reads,
        taken.host_read_bytes,
        sum(taken.casts.values()),
    )


def load() -> Dict[str, Row]:
    """Return the rows by the name of the step."""
    return {name: Row(*numbers) for name, numbers in json.loads(PATH.read_text())["rows"].items()}


def dump(rows: Dict[str, Row]) -> str:
    """Return the text of the file, a line per row."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(list(row))}" for name, row in rows.items())
    return f'{{\n  "columns": {json.dumps(list(Row._fields))},\n  "rows": {{\n{lines}\n  }}\n}}\n'


def complaints(name: str, found: Row, bound: Row) -> List[str]:
    """Return a sentence on each number that is above its bound, or so far below that the bound has to follow."""
    texts = []
    for column, number, limit in zip(Row._fields, found, bound):
        if number > limit:
            texts.append(f"{column}: {number}, more than {limit}.")
        elif number < limit * (1 - SLACK):
            texts.append(f"{column}: {number}, better than {limit}: lower the bound.")
    if texts:
        texts.append(f'The row as measured, for {PATH.name}: "{name}": {list(found)}')
    return texts
