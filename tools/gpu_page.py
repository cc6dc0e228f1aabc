"""Writes the table of docs/gpu.md anew, which says what steps launch: ``python -m tools.gpu_page`` in the repository.

Its figures are those of tests/gpu_record/ratchet.json. A test fails while the page differs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE, RATCHET = ROOT / "docs" / "gpu.md", ROOT / "tests" / "gpu_record" / "ratchet.json"
MODES = {"float32": "float32", "contrib.amp": "contrib_amp", "O1": "O1", "O2": "O2"}  # columns, and their modes
FIGURES = ("launches", "synchronizations", "casts")

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


def written(text: str) -> str:
    """Return the page with its table as it is to be."""
    ratchet = json.loads(RATCHET.read_text(encoding="utf-8"))
    places = [ratchet["columns"].index(figure) for figure in FIGURES]
    header, lines = f"| {' | '.join(['network', *MODES])} |\n", ["|---" * (1 + len(MODES)) + "|\n"]
    for title, step in NETWORKS.items():
        steps = [ratchet["rows"][f"{step}-{mode}-sgd"] for mode in MODES.values()]
        cells = [" / ".join(f"{numbers[place]:,}" for place in places) for numbers in steps]
        lines.append(f"| {' | '.join([title, *cells])} |\n")
    found, count = re.subn(rf"(?<=\n{re.escape(header)})(\|.*\n)+", "".join(lines).replace("\\", "\\\\"), text)
    if count != 1:
        raise ValueError(f"{PAGE.name}: there are {count} tables with the header {header!r}, expected one.")
    return found


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
