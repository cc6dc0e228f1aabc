"""What the benchmarks share: their options, the machine they ran on, and what they write."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import mxnet as mx
import numpy as np

import mxmp
from mxmp.devices.processor import read_processor
from mxmp.files import replacing

RESULTS = Path(__file__).resolve().parent / "results"


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder to write to; default: %(default)s")
    return parser


def machine() -> dict[str, object]:
    """Return what a result depends on beyond the benchmark's own options."""
    processor = read_processor()
    return {
        "processor": processor.name,
        "native_bfloat16": processor.native_bfloat16,
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "numpy": np.__version__,
        "mxmp": mxmp.__version__,
    }


def write(folder: Path, name: str, result: dict[str, object]) -> Path:
    """Write a result and the machine as JSON, whole or not at all, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    with replacing(str(file)) as (name,):
        Path(name).write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n", encoding="utf-8")
    return file
