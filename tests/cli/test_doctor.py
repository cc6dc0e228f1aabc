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


def test_each_row_is_what_was_found_and_what_to_do_and_the_end_what_to_use(machine):
    out = machine(cards=[A100, H100])
    rows = {row[0]: row[1:] for row in table(out)}
    assert rows["what"] == ["found", "what to do"] and rows["MXNet"][0].endswith(mx.libinfo.find_lib_path()[0])
    assert rows["MXNET_SAFE_ACCUMULATION"][1].startswith("Set it to 1: softmax, LayerNorm and norm in float16")
    gpus = [row[1:] for row in table(out) if row[0] == "GPU"]
    assert gpus[0] == ["GPU 0 (NVIDIA A100), compute capability 8.0: float16 runs on its tensor cores.", ""]
    assert gpus[1][1].startswith("Build MXNet for this card")
    said = "float16 runs in hardware here: GPU 0 (NVIDIA A100). Use mxmp.gluon.convert(net, 'O1')"
    assert said in out.splitlines()[-1]


def test_the_exit_code_is_1_where_no_device_runs_the_policy(machine):
    out = machine(cards=[H100], code=1)
    assert "float16 does not run in hardware on this machine. Use float32 here" in out.splitlines()[-1]
    assert "float32 runs in hardware here" in machine("--policy", "O0", cards=[H100])
    assert [row[0] for row in table(machine(cuda=False, code=1)) if row[2:] and row[2]] == ["what", "CPU"]


def test_json_has_all_of_it(machine):
    found = json.loads(machine("--json", cards=[H100], code=1))
    assert (found["dtype"], found["ok"], found["devices"]) == ("float16", False, [])
    (gpu,) = [check for check in found["checks"] if check["what"] == "GPU"]
    assert gpu["ok"] is False and gpu["advice"].startswith("Build MXNet")


def test_it_wraps_where_there_is_no_terminal_and_shows_names_as_they_are(machine):
    """Rich would take some for markup."""
    assert "GPU 0 ([red]:smile:), compute" in machine(cards=[("[red]:smile:", "8.0")])
    for columns, widest in (("", 100), (72, 72)):
        lines = machine(cards=[A100, H100], columns=columns).splitlines()
        assert max(map(len, lines)) <= widest and any("A100" in line for line in lines)
