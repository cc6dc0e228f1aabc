"""Environment variables that decide how low precision runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxmp.diagnose.doctor import CPU, GPU, read_settings

ROOT = Path(__file__).resolve().parents[2]


def setting(name, value, dtype="float16", devices=(GPU, CPU)):
    environ = {} if value is None else {name: value}
    (found,) = [each for each in read_settings(environ, dtype, devices) if each.name == name]
    return found


@pytest.mark.parametrize(
    ("name", "value", "dtype", "ok"),
    [
        ("MXNET_SAFE_ACCUMULATION", None, "float16", None),
        ("MXNET_SAFE_ACCUMULATION", "0", "float16", None),
        ("MXNET_SAFE_ACCUMULATION", "", "float16", None),
        ("MXNET_SAFE_ACCUMULATION", "1", "float16", True),
        ("MXNET_SAFE_ACCUMULATION", "true", "float16", True),
        ("MXNET_SAFE_ACCUMULATION", None, "float32", True),
        ("MXNET_CUDNN_AUTOTUNE_DEFAULT", None, "float16", True),
        ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0", "float16", None),
        ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "2", "float16", True),
        ("MXNET_CUDA_ALLOW_TENSOR_CORE", None, "float16", True),
        ("MXNET_CUDA_ALLOW_TENSOR_CORE", "False", "float16", False),
        ("MXNET_CUDA_ALLOW_TENSOR_CORE", "0", "float32", True),
        ("MXNET_FC_TRUE_FP16", None, "float16", True),
        ("MXNET_FC_TRUE_FP16", "1", "float16", None),
        ("MXNET_FC_TRUE_FP16", "", "float16", True),
        ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "float16", None),
        ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", "0", "float16", None),
        ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", "1", "float16", True),
        ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "float32", True),
        ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "bfloat16", True),
        ("CUDA_VISIBLE_DEVICES", None, "float16", True),
        ("CUDA_VISIBLE_DEVICES", "1,0", "float16", True),
        ("CUDA_VISIBLE_DEVICES", "", "float16", False),
        ("CUDA_VISIBLE_DEVICES", "-1", "float16", False),
        ("MXNET_MKLDNN_ENABLED", "0", "float16", True),
        ("MXNET_MKLDNN_ENABLED", "0", "bfloat16", False),
        ("DNNL_MAX_CPU_ISA", "AVX512_CORE", "bfloat16", None),
        ("DNNL_MAX_CPU_ISA", "all", "bfloat16", True),
        ("DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX", "bfloat16", True),
    ],
)
def test_a_variable_is_judged_by_its_value(name, value, dtype, ok):
    found = setting(name, value, dtype)
    assert found.ok is ok and bool(found.advice) == (ok is not True)


def test_what_is_found_is_the_value_or_the_default():
    assert setting("MXNET_SAFE_ACCUMULATION", None).found == "not set, which is 0"
    assert setting("CUDA_VISIBLE_DEVICES", "").found == "''"


def test_nothing_is_to_be_done_about_devices_that_are_not_there():
    environ = {"MXNET_CUDA_ALLOW_TENSOR_CORE": "0", "MXNET_FC_TRUE_FP16": "1"}
    assert all(each.ok and not each.advice for each in read_settings(environ, "float16", (CPU,)))


@pytest.mark.bfloat16
@pytest.mark.slow
def test_there_is_no_bfloat16_without_onednn():
    """With it there is, or the mark would leave this out; test_processor has the other variable."""
    code = "from mxmp.devices.speed import runs_bfloat16; print(runs_bfloat16())"
    environ = {**os.environ, "MXNET_MKLDNN_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
