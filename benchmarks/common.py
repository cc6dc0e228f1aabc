"""What the benchmarks share: their options, the machine they ran on, and what they write."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Iterator, Mapping

import mxnet as mx
import numpy as np

import mxmp
from mxmp.devices.amx import has_amx
from mxmp.devices.processor import Processor, read_processor
from mxmp.devices.speed import runs_bfloat16
from mxmp.diagnose import amx_status
from mxmp.files import replacing

mxmp.enable_amx()  # for contrib.amp and plain MXNet too, before any operator runs

RESULTS = Path(__file__).resolve().parent / "results"

AMX, AVX512_BF16, AVX512 = "AMX", "AVX512-BF16", "AVX-512, emulated"
"""What may multiply bfloat16 for MXNet; AMX where it is switched on."""


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


def bfloat16_unit(processor: Processor, bfloat16: bool, amx_on: bool) -> str:
    """Return what multiplies bfloat16 on a processor, the strongest that is in use; '' if MXNet runs none.

    Args:
        processor: The processor.
        bfloat16: Whether MXNet runs bfloat16 on it.
        amx_on: Whether AMX is switched on.
    """
    if not bfloat16:
        return ""
    if amx_on:
        return AMX
    return AVX512_BF16 if "avx512_bf16" in processor.flags else AVX512


@contextlib.contextmanager
def undecided_inputs() -> Iterator[None]:
    """Silence MXNet where it makes a block of a symbol: nothing decides the dtype of an input by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
        yield


def first_line(failure: Exception) -> str:
    """Return the line of an error that says what is wrong; MXNet's are a trace with it at the end."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else repr(failure))


@functools.lru_cache(maxsize=None)
def machine() -> dict[str, object]:
    """Return what a result depends on beyond the benchmark's own options."""
    processor, status, bfloat16 = read_processor(), amx_status(), runs_bfloat16()
    return {
        "processor": processor.name,
        "bfloat16": bfloat16_unit(processor, bfloat16, status.on),
        "amx": ("on" if status.on else "off") if has_amx(processor) else "not there",
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "mxnet_features": sorted(name for name, feature in mx.runtime.Features().items() if feature.enabled),
        "numpy": np.__version__,
        "mxmp": mxmp.__version__,
    }


def describe(found: Mapping[str, object]) -> str:
    """Return what `machine` found, in one line."""
    bfloat16 = found["bfloat16"] or "not run by MXNet"
    threads, features = found["threads"], found["mxnet_features"]
    library = "oneDNN" if isinstance(features, list) and "MKLDNN" in features else "no oneDNN"
    return (
        f"{found['processor']}; bfloat16: {bfloat16}; AMX: {found['amx']}; threads: {threads}; MXNet {found['mxnet']}, "
        f"{library}; {found['date']}"
    )


def write(folder: Path, name: str, result: dict[str, object]) -> Path:
    """Write a result and the machine as JSON, whole or not at all, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    with replacing(str(file)) as (name,):
        Path(name).write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n", encoding="utf-8")
    return file
