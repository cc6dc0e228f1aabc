"""``mxmp doctor`` on machines made up of a library, a list of cards and an environment."""

from __future__ import annotations

import json

import mxnet as mx
import pytest

from mxmp.devices import check
from mxmp.diagnose import doctor
from tests.cli.checkpoints import mxmp, table
from tests.devices.machines import install_cards

A100, H100 = ("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine whose MXNet has CUDA or not, and return what the command prints there."""

    def run(*args, cards=(), cuda=True, code=0, columns=1000):
        install_cards(tmp_path, monkeypatch, cards)
        monkeypatch.setenv("COLUMNS", str(columns))
        for module in (check, doctor):
            monkeypatch.setattr(module, "is_for_gpus", lambda: cuda)
        out, err = mxmp("doctor", *args, code=code)
        assert err == ""
        return out

    return run


def test_each_row_is_what_was_found_and_what_to_do(machine):
    out = machine(cards=[A100, H100])
    rows = {row[0]: row[1:] for row in table(out)}
    assert rows["what"] == ["found", "what to do"]
    assert rows["MXNet"][0].endswith(f": {mx.libinfo.find_lib_path()[0]}")
    assert rows["GPU code"] == ["machine code for 5.0, 6.0, 7.0, 8.0, 8.6; no PTX, as a released wheel", ""]
    advice = (
        "Set it to 1: softmax, LayerNorm and norm in float16, as under O3, then sum in float32; nothing else heeds it."
    )
    assert rows["MXNET_SAFE_ACCUMULATION"][1] == advice
    gpus = [row[1:] for row in table(out) if row[0] == "GPU"]
    assert gpus[0] == ["GPU 0 (NVIDIA A100), compute capability 8.0: float16 runs on its tensor cores.", ""]
    assert "no released MXNet 1.9.1 runs here" in gpus[1][0] and gpus[1][1].startswith("Build MXNet for this card")
    assert out.splitlines()[-1].startswith("float16 runs in hardware here: GPU 0 (NVIDIA A100). Use mxmp.gluon.convert(")


def test_the_exit_code_is_1_where_no_device_runs_the_policy(machine):
    out = machine(cards=[H100], code=1)
    assert out.splitlines()[-1].startswith("float16 does not run in hardware on this machine. Use float32 here")


def test_the_policy_decides(machine):
    assert "float32 runs in hardware here" in machine("--policy", "O0", cards=[H100])


def test_a_machine_without_a_gpu_is_clear(machine):
    rows = table(machine(cuda=False, code=1))
    assert [row[1] for row in rows if row[0] in ("GPU", "GPU code")] == ["none: this MXNet is for CPUs", "none"]
    assert [row[0] for row in rows if row[2]] == ["what", "CPU"]


def test_json_has_all_of_it(machine):
    found = json.loads(machine("--json", cards=[H100], code=1))
    assert (found["dtype"], found["ok"], found["devices"]) == ("float16", False, [])
    (gpu,) = [check for check in found["checks"] if check["what"] == "GPU"]
    assert gpu["ok"] is False and gpu["advice"].startswith("Build MXNet")
    assert [check["what"] for check in found["checks"]] == [row[0] for row in table(machine(cards=[H100], code=1))[1:]]


def test_names_are_printed_as_they_are(machine):
    """Rich would take some for markup."""
    assert "GPU 0 ([red]:smile:), compute" in machine(cards=[("[red]:smile:", "8.0")])


def test_an_unknown_policy_is_refused():
    out, err = mxmp("doctor", "--policy", "O9", code=2)
    assert out == "" and "unknown policy 'O9'; the nearest are" in err


def test_it_wraps_where_there_is_no_terminal(machine):
    for columns, widest in (("", 100), (72, 72)):
        lines = machine(cards=[A100, H100], columns=columns).splitlines()
        assert max(map(len, lines)) <= widest and any("A100" in line for line in lines)
