"""What a /proc/cpuinfo says about bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.diagnose import processor

ROOT = Path(__file__).resolve().parent.parent.parent
CPUINFO = """\
processor	: 0
vendor_id	: GenuineIntel
model name	: {name}
flags		: fpu sse2 {flags}
bogomips	: 5000.00

processor	: 1
model name	: another
flags		: fpu
"""


@pytest.fixture
def read(tmp_path):
    def read(flags, name="Some CPU @ 2.00GHz: fast"):
        file = tmp_path / "cpuinfo"
        file.write_text(CPUINFO.format(name=name, flags=flags))
        return processor.read_processor(file)

    return read


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("avx2", False),
        ("avx512f avx512bw", False),
        ("avx512f avx512bw avx512_bf16", True),
        ("avx512bw amx_bf16 amx_tile", True),
        ("amx_int8", False),
    ],
)
def test_native_bfloat16_needs_an_instruction_for_it(read, flags, native):
    assert read(flags).native_bfloat16 is native


def test_read_processor_takes_the_first_one_and_its_whole_name(read):
    found = read("avx2")
    assert found.name == "Some CPU @ 2.00GHz: fast"
    assert found.flags == {"fpu", "sse2", "avx2"}


@pytest.mark.parametrize("text", [None, "", "processor : 0\nFeatures : fp asimd\n"], ids=["missing", "empty", "arm"])
def test_native_bfloat16_is_unknown_without_flags(tmp_path, text):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    found = processor.read_processor(file)
    assert found == processor.Processor("unknown processor", frozenset())
    assert found.native_bfloat16 is None
    assert "unknown" in processor.describe_bfloat16(found, runs=True)


@pytest.mark.parametrize(
    ("flags", "runs", "sentence"),
    [
        ("avx2", False, "does not run on this processor (X): MXNet needs AVX-512 for it."),
        ("avx512bw", True, "is not native on this processor (X): oneDNN emulates it, which is slow."),
        ("avx512_bf16 amx_bf16", True, "is native on this processor (X: amx_bf16, avx512_bf16)."),
    ],
)
def test_describe_bfloat16_says_how_it_runs(read, flags, runs, sentence):
    assert processor.describe_bfloat16(read(flags, name="X"), runs) == f"bfloat16 {sentence}"


@pytest.mark.skipif(not processor.read_processor().flags, reason="the processor's flags are unknown")
@pytest.mark.skipif("DNNL_MAX_CPU_ISA" in os.environ, reason="oneDNN is told to leave instructions unused")
def test_runs_bfloat16_needs_avx512():
    assert processor.runs_bfloat16() == ("avx512bw" in processor.read_processor().flags)


def test_runs_bfloat16_is_false_below_avx512_and_leaves_mxnet_usable():
    code = """
import mxmp, mxnet as mx
from mxmp.diagnose.processor import runs_bfloat16
print(runs_bfloat16(), mx.nd.ones(3).sum().asscalar())
mx.nd.waitall()
"""
    environ = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "3.0"]
