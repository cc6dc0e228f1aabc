"""The memory that a step needs: how it is recorded, and what it is on paper.

``python -m tests.gpu_record.memory`` prints a table.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, Mapping

from tests.gpu_record.runs import Recorder, Run

DONE = "2 done"
"""The stage of `programs.memory` after which all that lives from step to step is there."""

OPTIMIZERS = ("sgd", "adam")
MODES = ("float32", "contrib_amp", "net_cast", "O1", "O2", "O3", "cast")

_STATES = {"sgd": 1, "adam": 2}  # float32 arrays that a weight has; of SGD the momentum
_BYTES = {"float16": 2, "float32": 4}


def memory_run(mode: str, optimizer: str) -> Run:
    """Return the process that trains ResNet-50 without MXNet's pool, which keeps what is freed."""
    return Run("memory", (mode, optimizer), settings=(("MXNET_GPU_MEM_POOL_TYPE", "Unpooled"),))


def on_paper(facts: Mapping[str, Any], optimizer: str) -> int:
    """Return the bytes of inputs, weights, gradients, masters and states; running statistics have no others.

    A float16 weight takes 2 + 2 + 4 + 4 bytes with SGD and momentum, a float32 one 4 + 4 + 4.
    """
    total = int(facts["inputs"])
    for dtype, size, trained in facts["parameters"]:
        master = 4 if dtype == "float16" else 0
        total += size * (2 * _BYTES[dtype] + master + 4 * _STATES[optimizer] if trained else _BYTES[dtype])
    return total


def main() -> None:
    """Measure and print the table, in MB."""
    parser = argparse.ArgumentParser(description="Print the memory of a training step of ResNet-50, in MB.")
    parser.parse_args()
    print("| mode | optimizer | on paper | between steps | most within forward and backward | within the update |")
    print("|---" * 6 + "|")
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder))
        for mode in MODES:
            for optimizer in OPTIMIZERS:
                record = recorder.record(memory_run(mode, optimizer))
                used = record.facts["used"]
                network = max(used[f"2 {phase}"] + record.peaks[f"2 {phase}"] for phase in ("forward", "backward"))
                numbers = on_paper(record.facts, optimizer), used[DONE], network, used[DONE] + record.peaks["2 update"]
                print("|", mode, "|", optimizer, "|", " | ".join(f"{number / 1e6:.1f}" for number in numbers), "|")


if __name__ == "__main__":
    main()
