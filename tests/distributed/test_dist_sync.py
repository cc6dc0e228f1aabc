"""Two workers and a server of MXNet on loopback, started by ``mxmp launch``."""

import functools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from tests.distributed.checks import check_training, results
from tests.distributed.job import BATCH, STEPS, data, fit, network

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60

pytestmark = pytest.mark.slow


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(command, folder=ROOT, **environment):
    """Run a command to its end; return how it ended."""
    environment = {**ENVIRONMENT, **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT)


# The jobs by name: what memory holds that MXNet does not initialize, and their parts. A job starts four processes
# that import MXNet, so one of them does what several tests look at.
JOBS = {
    "whole": ("0", ("float64=3", "train", "train_in_float16", "resume=lives")),
    "broken": ("0", ("resume=dies",)),
    "goes on": ("255", ("float64=3", "resume=dies", "module")),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs a job once; it returns the folder, what was printed, and when the job had ended."""

    @functools.lru_cache(maxsize=None)
    def run(name, code=0):
        perturb, parts = JOBS[name]
        folder = run("broken", 137)[0] if name == "goes on" else tmp_path_factory.mktemp("job")
        command = [sys.executable, "-m", "mxmp", "launch", "-n", "2", "--timeout", str(TIMEOUT - 10), sys.executable]
        command += ["-m", "tests.distributed.job", "dist_sync", "float32", str(folder), *parts]
        done = start(command, MALLOC_PERTURB_=perturb)
        assert done.returncode == code, done.stdout + done.stderr
        return folder, done.stdout, done.stderr, time.time()

    return run


@pytest.mark.behaviour("an overflow on one context")
@pytest.mark.parametrize(("transport", "part"), [("float32", "train"), ("float16", "train_in_float16")])
def test_workers_train_alike(run, transport, part):
    """Inf and NaN on one worker included; and as numpy does with all batches in one place.

    The process ends in peace, though it holds the kvstore to its end.
    """
    folder, out, err, _ = run("whole")
    assert sorted(out.splitlines()) == [f"[worker {rank}] rank {rank} of 2 is done" for rank in range(2)]
    assert err == ""
    check_training(folder / part, transport)


@pytest.mark.parametrize("job", ["whole", "goes on"], ids=["0", "255"])
def test_float64_sums_are_of_float64(run, job):
    """Whatever memory of the server holds that MXNet does not initialize; with glibc 255 makes it add in float32."""
    expected = [(step + 1 / 7) + (step + 2 / 7) for step in range(3)]
    for worker in results(run(job)[0] / "float64"):
        assert worker["sums"].tolist() == expected


def test_a_job_that_lost_a_worker_goes_on_from_its_checkpoint(run):
    _, out, err, ended = run("broken", 137)
    assert ended - float(out.split("[worker 1] dies at ")[1]) < 10  # MXNet by itself waits for ever
    assert err.splitlines()[-1] == "mxmp: worker 1 was ended by SIGKILL; ended the others."
    for whole, broken in zip(*(results(run(job)[0] / "resume") for job in ("whole", "goes on"))):
        assert whole.pop("begun") == 0
        assert 0 < broken.pop("begun") <= 5  # less where worker 0 was ended while it saved
        for name in whole:
            np.testing.assert_array_equal(whole[name], broken[name], err_msg=name)


def test_a_module_trains_as_mxnets_with_all_batches_in_one_place(run):
    both = results(run("goes on")[0] / "module")
    pairs = [[data(rank, step, 5, 3) for rank in range(2)] for step in range(STEPS)]
    batches = [[mx.nd.concat(*arrays, dim=0) for arrays in zip(*pair)] for pair in pairs]
    alone = fit(mx.mod.Module(network(), label_names=["label"]), batches, None, 7, 2 * BATCH)
    for name in alone:
        if not name.startswith("before_"):  # worker 1 was initialized otherwise
            np.testing.assert_array_equal(both[0][name], both[1][name], err_msg=name)
        np.testing.assert_allclose(both[0][name], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_commands_of_the_guide(tmp_path):
    page = (ROOT / "docs" / "guides" / "devices.md").read_text(encoding="utf-8")
    text = page.split("## Several processes")[1].split("\n## ")[0].split("```python\nfrom")[0]
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    commands = commands.replace("mxmp launch", f"{sys.executable} -m mxmp launch").replace(
        "python train", f"{sys.executable} train"
    )
    done = start(["sh", "-ec", commands], tmp_path)
    assert (done.stdout, done.returncode) == (printed, 0), done.stderr
