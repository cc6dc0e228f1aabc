"""What the benchmarks share: their options, the machine they ran on, and what they write."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
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


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option that `use_threads` reads."""
    default = "OMP_NUM_THREADS, or all cores"
    parser.add_argument("--threads", type=int, help=f"of MXNet's operators; default: {default}")


def use_threads(module: str) -> None:
    """Run a module again with the threads that its command line wants, if it has others.

    MXNet reads their number from the environment once, when it is imported, which has happened by now.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_threads(parser)
    threads = parser.parse_known_args()[0].threads
    if threads is not None and os.environ.get("OMP_NUM_THREADS") != str(threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)


def processor_kind(bfloat16: bool) -> str:
    """Return what multiplies bfloat16 here: AMX, AVX512-BF16, AVX-512 (emulated), or nothing ('').

    Args:
        bfloat16: Whether MXNet runs bfloat16 at all.
    """
    flags = read_processor().flags
    if not bfloat16:
        return ""
    return "AVX512-BF16" if "avx512_bf16" in flags else "AVX-512"


def first_line(failure: Exception) -> str:
    """Return the line of an error that says what is wrong; MXNet's are a trace with it at the end."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else repr(failure))


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
