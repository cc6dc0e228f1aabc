"""What two workers must come to, whatever sums their gradients."""

from __future__ import annotations

import json
import signal

import numpy as np

from tests.examples import scripts
from tests.examples.processes import ROOT, finish, start

TRAIN = ROOT / "examples" / "distributed" / "train.py"
STEPS = 20
# Sums over two halves of a batch round otherwise than one over the whole: by 7e-8 and 3e-4 of the loss in the end.
TOLERANCE = {"O0": 1e-6, "O2": 2e-3}


def record_of(output):
    return json.loads((output / "run.json").read_text())


def arguments(policy, output):
    """Return the options of a small run of 20 steps."""
    return [*scripts.CLASSIFIER, *_options(policy), "--output", output]


def _options(policy):
    return ["--batches", STEPS // 2, "--policy", policy, "--loss-scale", 128]


def check_as_alone(api, policy, output, folder):
    """Check that a run of two workers was that of one with whole batches."""
    expected = scripts.train(api, folder, *_options(policy))[0]["history"]
    found = record_of(output)["history"]
    assert len(found["steps"]["loss"]) == STEPS
    np.testing.assert_allclose(found["steps"]["loss"], expected["steps"]["loss"], rtol=TOLERANCE[policy])
    losses, alone = ([epoch["loss"] for epoch in each["epochs"]] for each in (found, expected))
    np.testing.assert_allclose(losses, alone, rtol=TOLERANCE[policy])


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
    assert 1 <= len(record_of(folder)["history"]["steps"]["loss"]) < STEPS
    text = finish(start(TRAIN, *args, *arguments("O2", folder), "--resume"))
    assert text.count("symbols/lenet on digits") == 1  # one table, that of worker 0
    resumed, expected = record_of(folder), record_of(unbroken)
    assert scripts.untimed(resumed) == scripts.untimed(expected)
    assert resumed["files"]["net-0000.params"] == expected["files"]["net-0000.params"]
