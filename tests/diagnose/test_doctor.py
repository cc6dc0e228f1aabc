"""examine on machines made up of a library, a list of cards and an environment."""

from __future__ import annotations

import platform

import mxnet as mx
import numpy as np
import pytest

from mxmp import compat, rounding
from mxmp.devices import amx, check, speed
from mxmp.devices.processor import Processor
from mxmp.diagnose import doctor, examine
from mxmp.errors import PolicyError
from tests.devices.machines import install_cards

V100, A100, H100 = ("Tesla V100", "7.0"), ("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Examine a machine with cards, a processor's flags, the speed of its bfloat16 and an environment."""

    def examine_there(policy, *cards, flags=None, ratio=None, cuda=True, environ=None):
        install_cards(tmp_path, monkeypatch, cards)
        flags = ("avx2" if ratio is None else "avx512bw avx512_bf16") if flags is None else flags
        seen = Processor("Xeon", frozenset(flags.split()))
        for module in (check, doctor):
            monkeypatch.setattr(module, "read_processor", lambda: seen)
            monkeypatch.setattr(module, "is_for_gpus", lambda: cuda)
        found = None if ratio is None else speed.Speed(ratio, ratio)
        monkeypatch.setattr(speed, "bfloat16_speed", lambda seconds: found)
        return examine(policy, environ or {})

    return examine_there


def checks(found, what):
    return [check for check in found.checks if check.what == what]


@pytest.mark.parametrize(
    ("policy", "cards", "ratio", "running"),
    [
        ("O1", [], 1.7, ()),
        ("O1", [V100], None, ("GPU 0 (Tesla V100)",)),
        ("O1", [H100, A100], None, ("GPU 1 (NVIDIA A100)",)),
        ("O1", [H100], None, ()),
        ("O1", [("Old driver", "[N/A]")], None, ("GPU 0 (Old driver)",)),
        ("mixed_bfloat16", [A100], None, ()),
        ("mixed_bfloat16", [], 0.7, ()),
        ("mixed_bfloat16", [], 1.7, ("CPU (Xeon)",)),
        ("O0", [H100], None, ("CPU (Xeon)",)),
    ],
)
def test_the_devices_are_those_that_run_the_policy_in_hardware(on, policy, cards, ratio, running):
    found = on(policy, *cards, ratio=ratio)
    assert found.devices == running and found.ok == bool(running)


@pytest.mark.parametrize(
    ("policy", "card", "environ"),
    [
        ("O1", [A100], {"MXNET_CUDA_ALLOW_TENSOR_CORE": "0"}),
        ("O1", [A100], {"CUDA_VISIBLE_DEVICES": ""}),
        ("mixed_bfloat16", [], {"MXNET_MKLDNN_ENABLED": "0"}),
    ],
)
def test_a_variable_may_stand_in_the_way(on, policy, card, environ):
    assert on(policy, *card, ratio=1.7).ok and not on(policy, *card, ratio=1.7, environ=environ).ok


@pytest.mark.parametrize("cards, value, advised", [([A100], "0", True), ([A100], "1", False), ([], "0", False)])
def test_recurrent_layers_are_advised_tensor_cores_where_there_is_a_gpu(on, cards, value, advised):
    name = "MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION"
    found = on("O1", *cards, environ={name: value})
    (check,) = checks(found, name)
    assert check.advice.startswith("For LSTM, GRU and RNN layers set it to 1: they stay in float32") == advised
    assert (check.ok is None) == advised and found.ok == bool(cards)


def test_a_cpu_build_runs_on_no_card_and_says_what_to_install(on):
    found = on("O1", A100, cuda=False)
    assert not found.ok and str(found) == "float16 does not run in hardware on this machine."
    assert checks(found, "GPU code")[0].found == "none: this MXNet is for CPUs"
    assert checks(found, "GPU")[0].advice == "Install mxnet-cu112 1.9.1 in place of this MXNet."


def test_a_machine_without_gpu_says_so_and_is_told_nothing_about_gpus(on):
    found = on("O1", cuda=False)
    assert checks(found, "GPU")[0].found == "none"
    assert [check.what for check in found.checks if check.advice] == ["CPU"]


def test_it_names_the_command_that_builds_the_rounding_operators(on, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "`mxmp build` compiles an operator" in checks(on("O1"), "emulated float16")[0].found
    rounding.path().parent.mkdir()
    rounding.path().write_bytes(b"")
    assert checks(on("O1"), "emulated float16")[0].found.endswith(str(rounding.path()))


def test_versions_and_flags_are_those_of_this_process(on):
    found = on("O1", flags="avx512bw amx_bf16")
    assert checks(found, "Python")[0].found == platform.python_version()
    assert checks(found, "numpy")[0].found == np.__version__
    assert checks(found, "MXNet")[0].found.startswith(f"{mx.__version__} with ")
    assert checks(found, "CPU flags")[0].found == "avx512bw: yes, amx_bf16: yes, avx512_bf16: no"


@pytest.mark.parametrize(
    ("policy", "status", "found", "ok"),
    [
        ("mixed_bfloat16", amx.AmxStatus(True, "mxmp switched it on."), "on: mxmp switched it on.", True),
        ("mixed_bfloat16", amx.AmxStatus(False, "ALL is set.", "Unset it."), "off: ALL is set.", None),
        ("O1", amx.AmxStatus(False, "ALL is set.", "Unset it."), "off: ALL is set.", True),
    ],
)
def test_it_says_whether_amx_is_on(policy, status, found, ok, on, monkeypatch):
    monkeypatch.setattr(amx, "amx_status", lambda: status)
    (check,) = checks(on(policy, flags="avx512bw avx512_bf16"), "AMX")
    assert (check.found, check.ok, check.advice) == (found, ok, "" if ok else "Unset it.")


@pytest.mark.parametrize(
    ("policy", "ratio", "text", "advice"),
    [
        ("mixed_bfloat16", 1.7, "measured: 1.70 times as fast as float32 in inference, 1.70 in training", ""),
        ("mixed_bfloat16", 0.7, "measured: 0.70 times as fast as float32", "For speed take float32."),
        ("O1", 0.7, "measured: 0.70 times as fast as float32", ""),
        ("mixed_bfloat16", None, "not measured: it does not run on this processor", ""),
    ],
)
def test_it_says_how_fast_bfloat16_was_when_it_was_measured(policy, ratio, text, advice, on):
    found = on(policy, ratio=ratio)
    (check,) = checks(found, "bfloat16")
    assert check.found.startswith(text) and check.advice == advice and (check.ok is None) == bool(advice)
    if policy == "mixed_bfloat16" and ratio == 0.7:
        assert str(found) == "bfloat16 does not run in hardware on this machine, or is slower than float32."


def test_unknown_flags_are_said_to_be(on):
    assert "unknown" in checks(on("O1", flags=""), "CPU flags")[0].found


def test_the_installed_library_and_this_environment_are_taken_unless_given(monkeypatch):
    monkeypatch.setenv("MXNET_FC_TRUE_FP16", "1")
    found = examine()
    assert checks(found, "MXNet")[0].found.endswith(mx.libinfo.find_lib_path()[0])
    assert checks(found, "MXNET_FC_TRUE_FP16")[0].found == "'1'"


def test_an_unknown_policy_is_named():
    with pytest.raises(PolicyError, match="unknown policy 'O7'"):
        examine("O7")


@pytest.mark.parametrize(
    ("needed", "installed", "found", "ok"),
    [
        (False, False, "none; MXNet takes this Python and numpy as they are", True),
        (True, True, "MXNet has mxmp's, with the names that numpy has removed", True),
        (True, False, "none, though MXNet needs one", None),
    ],
)
def test_it_says_whether_mxnet_has_a_view_of_numpy(needed, installed, found, ok, on, monkeypatch):
    monkeypatch.setattr(compat, "needed", lambda: needed)
    monkeypatch.setattr(compat, "installed", lambda: installed)
    (check,) = checks(on("O0"), "view of numpy")
    assert (check.found, check.ok, bool(check.advice)) == (found, ok, ok is None)
