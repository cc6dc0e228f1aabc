"""Measures all steps anew and prints the table: ``python -m tests.gpu_record.measure [--write] [WORD...]``.

Run it in the environment of ``make test-gpu-record``. With words only the steps are measured whose names contain one
of them, such as ``resnet50`` or ``gluon-bert-O2``. ``--write`` puts the rows into `ratchet.json`, whose tests
then hold the tree to them; without it the file is left as it is.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.gpu_record import ratchet
from tests.gpu_record.cases import STEPS
from tests.gpu_record.runs import Recorder


def main() -> None:
    """Measure, print and, if asked, write."""
    parser = argparse.ArgumentParser(description="Measure what training steps ask of a GPU.")
    parser.add_argument("--write", action="store_true", help="write ratchet.json")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run at a time")
    parser.add_argument("words", nargs="*", help="measure the steps whose names contain one of these")
    options = parser.parse_args()
    steps = [step for step in STEPS if not options.words or any(word in str(step) for word in options.words)]
    rows = ratchet.load() if ratchet.PATH.exists() else {}
    print("| step |", " | ".join(ratchet.Row._fields), "|")
    print("|---" * (len(ratchet.Row._fields) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        recorder = Recorder(Path(folder))
        for step, record in zip(steps, pool.map(recorder.step, steps)):
            rows[str(step)] = ratchet.measured(record)
            print("|", step, "|", " | ".join(map(str, rows[str(step)])), "|", flush=True)
    if options.write:
        ratchet.PATH.write_text(ratchet.dump({str(step): rows[str(step)] for step in STEPS if str(step) in rows}))


if __name__ == "__main__":
    main()
