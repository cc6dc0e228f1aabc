"""Whether a processor runs bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import pytest

from mxmp.devices import bfloat16
from mxmp.devices.bfloat16 import runs_bfloat16
from mxmp.devices.processor import Processor, read_processor

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(not read_processor().flags, reason="the processor's flags are unknown")
@pytest.mark.skipif("DNNL_MAX_CPU_ISA" in os.environ, reason="oneDNN is told to leave instructions unused")
def test_runs_bfloat16_needs_avx512():
    assert runs_bfloat16() == ("avx512bw" in read_processor().flags)


def test_runs_bfloat16_is_false_below_avx512_and_leaves_mxnet_usable():
    code = """
import mxmp, mxnet as mx
from mxmp.devices import bfloat16
from mxmp.devices.bfloat16 import runs_bfloat16
print(runs_bfloat16(), mx.nd.ones(3).sum().asscalar())
mx.nd.waitall()
"""
    environ = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "3.0"]


@pytest.mark.parametrize("flags", ["avx2", "avx512f"])
def test_a_processor_without_avx512bw_is_not_asked(flags, monkeypatch):
    """oneDNN would print that it has no kernel."""
    monkeypatch.setattr(bfloat16, "read_processor", lambda: Processor("EPYC", frozenset([flags])))
    monkeypatch.delattr(mx.nd, "amp_cast")
    assert not runs_bfloat16()
