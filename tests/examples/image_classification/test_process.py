"""The scripts as programs, from another folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "image_classification"


def start(folder, script, *args):
    # mxmp is found without PYTHONPATH: a script adds the repository by itself.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(FOLDER / script), *map(str, args)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env={**environ, "COLUMNS": "160"}, **streams)


@pytest.mark.slow
def test_ctrl_c_saves_and_names_the_command_that_goes_on(tmp_path):
    args = ("--network", "symbols/mlp", "--epochs", 100000, "--batches", 10, "--output", "run")
    with start(tmp_path, "train_gluon.py", *args) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # until an epoch is over: it trains
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted after step" in said
    assert f"{FOLDER / 'train_gluon.py'} --network symbols/mlp" in said
    assert said.rstrip().endswith("--output run --resume")
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["history"]["steps"]["loss"]) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_gluon.py", "train_module.py"])
def test_a_script_runs_from_any_folder_and_another_scores_what_it_left(tmp_path, script):
    with start(tmp_path, script, "--epochs", 1, "--batches", 1, "--batch-size", 8, "--output", "run") as process:
        text, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "cifar_resnet20_v1 on digits" in text
    with start(tmp_path, "convert_checkpoint.py", "run/net", "half", "--batches", 1, "--batch-size", 8) as process:
        text, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert (tmp_path / "half-0000.params").stat().st_size < 0.6 * (tmp_path / "run" / "net-0000.params").stat().st_size
