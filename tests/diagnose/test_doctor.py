"""The doctor on machines made up of a library, a list of cards and an environment."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import AmxStatus, DoctorReport, doctor
from tests.devices.machines import install_cards
from tests.processors import AMD, AMX, EMULATED, INTEL, KINDS, NO_BFLOAT16, ON, UNKNOWN, processor_of

ROOT = Path(__file__).resolve().parents[2]
V100, A100, H100 = ("Tesla V100", "7.0"), ("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")


@pytest.fixture
def on(tmp_path, monkeypatch, on_processor):
    """Examine a machine with cards, a kind of processor, the speed of its bfloat16 and an environment."""

    def examine_there(policy, *cards, kind=NO_BFLOAT16, speed=None, cuda=True, environ=None, **processor):
        install_cards(tmp_path, monkeypatch, cards, cuda)
        on_processor(processor_of(kind, name="Xeon", **processor))
        monkeypatch.setattr("mxmp.devices.speed.bfloat16_speed", lambda seconds: speed)
        return doctor(policy, environ or {})

    return examine_there


def findings(report, subject):
    return [finding for finding in report.findings if finding.subject == subject]


@pytest.mark.parametrize(
    ("policy", "cards", "kind", "running"),
    [
        ("O1", [], AMX, ()),
        ("O1", [V100], AMX, ("GPU 0 (Tesla V100)",)),
        ("O1", [H100, A100], NO_BFLOAT16, ("GPU 1 (NVIDIA A100)",)),
        ("O1", [H100], AMX, ()),
        ("O1", [("Old driver", "[N/A]")], AMX, ("GPU 0 (Old driver)",)),
        ("mixed_bfloat16", [A100], NO_BFLOAT16, ()),
        ("mixed_bfloat16", [], INTEL, ()),
        ("mixed_bfloat16", [], EMULATED, ()),
        ("mixed_bfloat16", [], AMD, ("CPU (Xeon)",)),
        ("mixed_bfloat16", [], AMX, ("CPU (Xeon)",)),
        ("mixed_bfloat16", [], UNKNOWN, ("CPU (Xeon)",)),
        ("O0", [H100], NO_BFLOAT16, ("CPU (Xeon)",)),
    ],
)
def test_the_devices_are_those_that_run_the_policy_in_hardware(on, policy, cards, kind, running):
    found = on(policy, *cards, kind=kind)
    assert found.devices == running and found.ok == bool(running)


VARIABLES = [  # a value, a policy, and whether it is right: None where it could be better
    ("MXNET_SAFE_ACCUMULATION", None, "O1", None),
    ("MXNET_SAFE_ACCUMULATION", "0", "O1", None),
    ("MXNET_SAFE_ACCUMULATION", "", "O1", None),
    ("MXNET_SAFE_ACCUMULATION", "1", "O1", True),
    ("MXNET_SAFE_ACCUMULATION", "true", "O1", True),
    ("MXNET_SAFE_ACCUMULATION", None, "O0", True),
    ("MXNET_CUDNN_AUTOTUNE_DEFAULT", None, "O1", True),
    ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0", "O1", None),
    ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "2", "O1", True),
    ("MXNET_CUDA_ALLOW_TENSOR_CORE", None, "O1", True),
    ("MXNET_CUDA_ALLOW_TENSOR_CORE", "False", "O1", False),
    ("MXNET_CUDA_ALLOW_TENSOR_CORE", "0", "O0", True),
    ("MXNET_FC_TRUE_FP16", None, "O1", True),
    ("MXNET_FC_TRUE_FP16", "1", "O1", None),
    ("MXNET_FC_TRUE_FP16", "", "O1", True),
    ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "O1", None),
    ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", "0", "O1", None),
    ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", "1", "O1", True),
    ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "O0", True),
    ("MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION", None, "mixed_bfloat16", True),
    ("CUDA_VISIBLE_DEVICES", None, "O1", True),
    ("CUDA_VISIBLE_DEVICES", "1,0", "O1", True),
    ("CUDA_VISIBLE_DEVICES", "", "O1", False),
    ("CUDA_VISIBLE_DEVICES", "-1", "O1", False),
    ("MXNET_MKLDNN_ENABLED", "0", "O1", True),
    ("MXNET_MKLDNN_ENABLED", "0", "mixed_bfloat16", False),
    ("DNNL_MAX_CPU_ISA", "AVX512_CORE", "mixed_bfloat16", None),
    ("DNNL_MAX_CPU_ISA", "all", "mixed_bfloat16", True),
    ("DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX", "mixed_bfloat16", True),
    ("MALLOC_TRIM_THRESHOLD_", None, "mixed_bfloat16", None),
    ("MALLOC_TRIM_THRESHOLD_", "17179869184", "mixed_bfloat16", True),
    ("MALLOC_TRIM_THRESHOLD_", None, "O1", True),
]


@pytest.mark.parametrize("name, value, policy, ok", VARIABLES)
def test_a_variable_is_judged_by_its_value(on, name, value, policy, ok):
    found = on(policy, A100, kind=AMD, environ={} if value is None else {name: value})
    (finding,) = findings(found, name)
    assert finding.ok is ok and bool(finding.advice) == (ok is not True)
    assert finding.message.startswith("not set, which is ") if value is None else finding.message == repr(value)
    assert found.ok == (ok is not False)


TRAIN_ON_CPU = "Use mxmp.gluon.convert(net, 'mixed_bfloat16'), which needs no loss scale, to train on this CPU, and "
FLOAT32 = "Use float32, MXNet's default, to train here, and mxmp.gluon.freeze(net), which chooses float32, to infer"
OFF = AmxStatus(False, "ALL is set.", "Unset it.")


@pytest.mark.parametrize(
    ("cards", "kind", "processor", "use"),
    [
        ([A100], AMX, {}, "Use mxmp.gluon.convert(net, 'O1') and mxmp.gluon.Trainer, which scales the loss, to train on the GPU, and"),
        ([H100], AMD, {}, TRAIN_ON_CPU),
        ([], AMX, {}, TRAIN_ON_CPU),
        *(([], kind, {}, f"{FLOAT32}.") for kind in (NO_BFLOAT16, EMULATED, INTEL)),
        ([], AMX, {"amx": OFF}, f"{FLOAT32}. AMX would be faster, but is off (ALL is set): Unset it."),
    ],
)
@pytest.mark.parametrize("policy", ["O1", "O0", "mixed_bfloat16"])
def test_it_ends_with_what_to_train_and_infer_with_whatever_was_asked(on, policy, cards, kind, processor, use):
    found = on(policy, *cards, kind=kind, **processor)
    assert found.use.startswith(use) and "mxmp.gluon.freeze(net)" in found.use and str(found).endswith(found.use)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_clock_changes_no_advice(on, kind):
    slow, fast = (on("mixed_bfloat16", kind=kind, speed=speed) for speed in ("0.5 times", "2 times"))
    assert (slow.use, slow.devices, slow.ok) == (fast.use, fast.devices, fast.ok)
    assert [(each.subject, each.ok, each.advice) for each in slow.findings] == [(each.subject, each.ok, each.advice) for each in fast.findings]


def test_a_diagnosis_is_shown_and_kept(on, tmp_path):
    found = on("O1", A100)
    found.save(str(tmp_path / "doctor.json"))
    assert DoctorReport.load(str(tmp_path / "doctor.json")) == found and found.to_dict()["ok"] is True
    assert "runs on its tensor cores" in found._repr_html_()


def test_a_cpu_build_runs_on_no_card_and_says_what_to_install_if_there_is_one(on):
    found = on("O1", A100, cuda=False)
    assert not found.ok and str(found).startswith("float16 does not run in hardware on this machine. Use ")
    assert findings(found, "GPU code")[0].message == "none: this MXNet is for CPUs"
    assert findings(found, "GPU")[0].advice == "Install mxnet-cu112 1.9.1 in place of this MXNet."
    found = on("O1", cuda=False, environ={"MXNET_CUDA_ALLOW_TENSOR_CORE": "0", "MXNET_FC_TRUE_FP16": "1"})
    assert findings(found, "GPU")[0].message == "none"
    assert [each.subject for each in found.findings if each.advice] == ["CPU"]  # nothing is to be done about GPUs


def test_it_names_the_command_that_builds_the_rounding_operators(on, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "`mxmp build` compiles an operator" in findings(on("O1"), "emulated float16")[0].message


def test_versions_and_flags_are_those_of_this_process(on):
    found = on("O1", kind=AMX, flags=frozenset(["avx512bw", "amx_bf16"]))
    assert findings(found, "Python")[0].message == platform.python_version() and findings(found, "numpy")[0].message == np.__version__
    assert findings(found, "MXNet")[0].message.startswith(f"{mx.__version__} with ")
    assert findings(found, "CPU flags")[0].message == "avx512bw: yes, amx_bf16: yes, avx512_bf16: no"
    assert "unknown" in findings(on("O1", kind=UNKNOWN), "CPU flags")[0].message


@pytest.mark.parametrize(
    ("policy", "status", "found", "ok"),
    [
        ("mixed_bfloat16", ON, "on: mxmp switched it on.", True),
        ("mixed_bfloat16", OFF, "off: ALL is set.", None),
        ("O1", OFF, "off: ALL is set.", None),
    ],
)
def test_it_says_whether_amx_is_on(policy, status, found, ok, on):
    (finding,) = findings(on(policy, kind=AMX, amx=status), "AMX")
    assert (finding.message, finding.ok, finding.advice) == (found, ok, "" if ok else "Unset it.")


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        ("1.70 times as fast as float32", "measured: 1.70 times as fast as float32"),
        (None, "not measured: it does not run on this processor"),
    ],
)
def test_it_says_how_fast_bfloat16_was_when_it_was_measured(speed, text, on):
    (finding,) = findings(on("mixed_bfloat16", speed=speed), "bfloat16")
    assert finding.message == text and finding.ok
    assert str(on("mixed_bfloat16")).startswith("bfloat16 does not run in hardware on this machine, or is slower than")


def test_the_installed_library_and_this_environment_are_taken_unless_given(monkeypatch):
    monkeypatch.setenv("MXNET_FC_TRUE_FP16", "1")
    found = doctor()
    assert findings(found, "MXNet")[0].message.endswith(mx.libinfo.find_lib_path()[0])
    assert findings(found, "MXNET_FC_TRUE_FP16")[0].message == "'1'"


@pytest.mark.parametrize(
    ("needed", "installed", "found", "ok"),
    [
        (False, False, "not needed: MXNet runs with this Python and numpy as they are", True),
        (True, True, "mxmp gives MXNet the names that this Python or numpy has removed", True),
        (True, False, "missing: MXNet was imported before mxmp", None),
    ],
)
def test_it_says_whether_mxnet_has_the_names_that_it_needs(needed, installed, found, ok, on, monkeypatch):
    monkeypatch.setattr("mxmp.compat.needed", lambda: needed)
    monkeypatch.setattr("mxmp.compat.installed", lambda: installed)
    (finding,) = findings(on("O0"), "names for MXNet")
    assert (finding.message, finding.ok, bool(finding.advice)) == (found, ok, ok is None)


@pytest.mark.bfloat16
@pytest.mark.slow
def test_there_is_no_bfloat16_without_onednn():
    """With it there is, or the mark would leave this out; test_processor has the other variable."""
    code = "from mxmp.diagnose import runs_bfloat16; print(runs_bfloat16())"
    environ = {**os.environ, "MXNET_MKLDNN_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_the_page_of_the_doctor_has_each_finding_and_each_advice_about_a_variable(on):
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")
    reports = [on(policy, *cards, kind=AMX) for policy in ("O1", "mixed_bfloat16") for cards in ([], [A100])]
    environs = [{name: value} for name, value, _, ok in VARIABLES if value is not None and ok is not True]
    reports += [on(policy, A100, kind=AMX, environ=environ) for environ in environs for policy in ("O1", "mixed_bfloat16")]
    every = [finding for report in reports for finding in report.findings]
    assert not sorted({finding.subject for finding in every if f"`{finding.subject}`" not in page})
    variables = {name for name, *_ in VARIABLES}
    assert not sorted({each.advice for each in every if each.subject in variables and each.advice not in page})
