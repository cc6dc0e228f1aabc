"""Whether and how a processor runs bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.devices.bfloat16 import describe_bfloat16, runs_bfloat16
from mxmp.devices.processor import Processor, read_processor

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("flags", "runs", "sentence"),
    [
        ("avx2", False, "does not run on this processor (X): MXNet needs AVX-512 for it."),
        ("avx512bw", True, "is not native on this processor (X): oneDNN emulates it, which is slow."),
        ("avx512_bf16 amx_bf16", True, "is native on this processor (X: amx_bf16, avx512_bf16)."),
    ],
)
def test_describe_bfloat16_says_how_it_runs(flags, runs, sentence):
    assert describe_bfloat16(Processor("X", frozenset(flags.split())), runs) == f"bfloat16 {sentence}"


def test_describe_bfloat16_does_not_guess():
    assert "unknown" in describe_bfloat16(Processor("unknown processor", frozenset()), runs=True)


@pytest.mark.skipif(not read_processor().flags, reason="the processor's flags are unknown")
@pytest.mark.skipif("DNNL_MAX_CPU_ISA" in os.environ, reason="oneDNN is told to leave instructions unused")
def test_runs_bfloat16_needs_avx512():
    assert runs_bfloat16() == ("avx512bw" in read_processor().flags)


def test_runs_bfloat16_is_false_below_avx512_and_leaves_mxnet_usable():
    code = """
import mxmp, mxnet as mx
from mxmp.devices.bfloat16 import runs_bfloat16
print(runs_bfloat16(), mx.nd.ones(3).sum().asscalar())
mx.nd.waitall()
"""
    environ = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "3.0"]
