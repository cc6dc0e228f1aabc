"""What two workers must come to, whatever sums their gradients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.examples.image_classification.scripts import SMALL, train

ROOT = Path(__file__).resolve().parents[3]
TRAIN = ROOT / "examples" / "distributed" / "train.py"
TIMEOUT = 90
STEPS = 20
# Sums over two halves of a batch round otherwise than one over the whole: by 7e-8 and 3e-4 of the loss in the end.
TOLERANCE = {"O0": 1e-6, "O2": 2e-3}


def start(*command):
    """Start a program."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=ROOT, env=environment, **streams)


def finish(process, code=0):
    """Wait for a program; return what it printed."""
    try:
        text, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.terminate()  # ends its workers too
        text, _ = process.communicate(timeout=TIMEOUT)
        raise AssertionError(f"it took longer than {TIMEOUT} s:\n{text}") from None
    assert process.returncode == code, text
    return text


def untimed(output):
    """Return what a run recorded but for the times, and the checksums of its files."""
    record = json.loads((output / "run.json").read_text())
    steps = {name: values for name, values in record["history"]["steps"].items() if name != "seconds"}
    return steps, record["history"]["epochs"], record["files"]


def arguments(policy, output):
    """Return the options of a small run of 20 steps."""
    return [*SMALL, "--epochs", 2, *_options(policy), "--output", output]


def _options(policy):
    return ["--batches", STEPS // 2, "--policy", policy, "--loss-scale", 128]


def check_as_alone(api, policy, output, folder):
    """Check that a run of two workers was that of one with whole batches."""
    train(api, folder, *_options(policy))
    (steps, epochs, _), (expected_steps, expected_epochs, _) = untimed(output), untimed(folder)
    assert len(steps["loss"]) == STEPS
    np.testing.assert_allclose(steps["loss"], expected_steps["loss"], rtol=TOLERANCE[policy])
    losses, expected = ([epoch["loss"] for epoch in each] for each in (epochs, expected_epochs))
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE[policy])


def check_resume(unbroken, folder, *args):
    """Check that a job that Ctrl-C ended resumes to the bit of one that ran through."""
    process = start(TRAIN, *args, *arguments("O2", folder))
    begun = ""
    while begun.count("takes 4 examples") < 2:  # each worker says so right before its first step
        begun += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    text = begun + finish(process, 130)
    (said,) = [line for line in text.splitlines() if "interrupted after step" in line]
    assert said.startswith("[worker 0] ") and said.endswith("go on with the same command and --resume")
    assert all(f"[worker {rank}] worker {rank} of 2 takes 4 examples of each step" in text for rank in range(2))
    assert 1 <= len(untimed(folder)[0]["loss"]) < STEPS
    text = finish(start(TRAIN, *args, *arguments("O2", folder), "--resume"))
    assert text.count("symbols/lenet on digits") == 1  # one table, that of worker 0
    assert untimed(folder)[:2] == untimed(unbroken)[:2]
    assert untimed(folder)[2]["net-0000.params"] == untimed(unbroken)[2]["net-0000.params"]
