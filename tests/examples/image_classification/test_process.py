"""The scripts as programs, from another folder."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.examples.processes import ROOT, finish, start

FOLDER = ROOT / "examples" / "image_classification"


@pytest.mark.slow
def test_ctrl_c_saves_and_names_the_command_that_goes_on(tmp_path):
    args = ("--network", "symbols/mlp", "--epochs", 100000, "--batches", 10, "--output", "run")
    process = start(FOLDER / "train_gluon.py", *args, folder=tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # until an epoch is over: it trains
    process.send_signal(signal.SIGINT)
    said = finish(process, 130)
    assert "interrupted after step" in said
    assert f"{FOLDER / 'train_gluon.py'} --network symbols/mlp" in said
    assert said.rstrip().endswith("--output run --resume")
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["history"]["steps"]["loss"]) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_gluon.py", "train_module.py"])
def test_a_script_runs_from_any_folder_and_another_scores_what_it_left(tmp_path, script):
    small = ("--batches", 1, "--batch-size", 8)
    text = finish(start(FOLDER / script, "--epochs", 1, *small, "--output", "run", folder=tmp_path))
    assert "cifar_resnet20_v1 on digits" in text
    finish(start(FOLDER / "convert_checkpoint.py", "run/net", "half", *small, folder=tmp_path))
    assert (tmp_path / "half-0000.params").stat().st_size < 0.6 * (tmp_path / "run" / "net-0000.params").stat().st_size
