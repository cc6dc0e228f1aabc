"""Writes the tables of docs/gpu.md anew: what steps launch, and the estimate of their speed.

The first has the figures of tests/gpu_record/ratchet.json, the second those of ``benchmarks.roofline``. Run it from
the repository when either has changed: ``python -m tools.gpu_page``. A test fails while the page differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

from benchmarks.roofline import CARDS, CASES, COLUMNS, count, rows

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gpu.md"
RATCHET = ROOT / "tests" / "gpu_record" / "ratchet.json"

MODES = {"float32": "float32", "contrib.amp": "contrib_amp", "O1": "O1", "O2": "O2"}
"""The columns, and the modes of the ratchet that they show."""

NETWORKS = {
    "ResNet-50": "gluon-resnet50",
    "SSD, MobileNet": "gluon-ssd",
    "BERT mini": "gluon-bert",
    "LSTM language model": "gluon-lstm",
    "ResNet-50, Module": "module-resnet50_v1b",
    "SSD, VGG-16, Module": "module-ssd300_vgg16",
    "BERT mini, Module": "module-bert_mini",
    "LSTM language model, Module": "module-lstm_lm_small",
}
"""The rows, and the steps of the ratchet that they show: front and network."""

FIGURES = ("launches", "synchronizations", "casts")

Lines = List[List[str]]


def launches(ratchet: Dict[str, Any]) -> Lines:
    """Return the table of what steps launch, its header first."""
    places = [ratchet["columns"].index(figure) for figure in FIGURES]
    lines = [["network", *MODES]]
    for title, step in NETWORKS.items():
        steps = [ratchet["rows"][f"{step}-{mode}-sgd"] for mode in MODES.values()]
        lines.append([title, *(" / ".join(f"{numbers[place]:,}" for place in places) for numbers in steps)])
    return lines


def speeds() -> Lines:
    """Return the table of the estimate, its header first."""
    return [list(COLUMNS), *rows({title: count(case) for title, case in CASES.items()})]


def cards() -> Lines:
    """Return the table of the cards that the estimate is for, its header first."""
    lines = [["card", "float32, TFLOPS", "TF32", "float16", "memory, GB/s", "source"]]
    sources = set()
    for name, card in CARDS.items():
        if card.source not in sources:  # without TF32 it is the same card
            sources.add(card.source)
            tf32 = "" if card.tf32 == card.float32 else f"{card.tf32 / 1e12:g}"
            peaks = [f"{card.float32 / 1e12:g}", tf32, f"{card.float16 / 1e12:g}", f"{card.bandwidth / 1e9:g}"]
            lines.append([name, *peaks, f"[data sheet]({card.source})"])
    return lines


def replaced(text: str, lines: Lines) -> str:
    """Return a page with a table in the place of the one that has the same header.

    Raises:
        ValueError: If the page has no such table, or more than one.
    """
    header, *body = (f"| {' | '.join(line)} |" for line in lines)
    before, found, after = text.partition(f"\n{header}\n")
    if not found or f"\n{header}\n" in after:
        raise ValueError(f"{PAGE.name}: there is to be one table with the header {header!r}.")
    rest = after.splitlines(keepends=True)
    kept = next((i for i, line in enumerate(rest) if not line.startswith("|")), len(rest))
    return "".join([before, found, "|---" * len(lines[0]), "|\n", *(f"{line}\n" for line in body), *rest[kept:]])


def written(text: str, tables: Sequence[Lines]) -> str:
    """Return a page with all of its tables as they are to be."""
    for lines in tables:
        text = replaced(text, lines)
    return text


def main() -> None:
    """Write the page."""
    tables = [launches(json.loads(RATCHET.read_text(encoding="utf-8"))), speeds(), cards()]
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
