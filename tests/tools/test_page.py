"""The table of docs/gpu.md has the figures of the ratchet, which tests/gpu_record hold to the record."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODES = {"float32": "float32", "contrib.amp": "contrib_amp", "O1": "O1", "O2": "O2"}  # columns, and their modes
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


def test_the_page_says_what_steps_launch():
    """Where it fails, the page gets the table that the message shows."""
    ratchet = json.loads((ROOT / "tests" / "gpu_record" / "ratchet.json").read_text(encoding="utf-8"))
    places = [ratchet["columns"].index(figure) for figure in ("launches", "synchronizations", "casts")]
    lines = [f"| {' | '.join(['network', *MODES])} |", "|---" * (1 + len(MODES)) + "|"]
    for title, step in NETWORKS.items():
        steps = [ratchet["rows"][f"{step}-{mode}-sgd"] for mode in MODES.values()]
        lines.append(f"| {' | '.join([title, *(' / '.join(f'{row[place]:,}' for place in places) for row in steps)])} |")
    table = "\n".join(lines)
    assert f"\n\n{table}\n\n" in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"), table
