"""Two workers of Horovod on loopback, started by ``horovodrun``; needs Horovod: ``make test-horovod``."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.checks import check_training

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="no Horovod; see make test-horovod"),
]


def launch(*job):
    """Run a job of two workers."""
    command = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", "2", "--network-interface", "lo"]
    command += [sys.executable, "-m", "tests.distributed.job", *map(str, job)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT)


@pytest.mark.parametrize("transport", ["float32", "float16"])
def test_workers_train_alike(tmp_path, transport):
    done = launch("horovod", transport, tmp_path, "train")
    assert done.returncode == 0, done.stdout + done.stderr
    check_training(tmp_path / "train", transport)


def test_a_job_that_lost_a_worker_ends(tmp_path):
    done = launch("horovod", "float32", tmp_path, "resume=dies")
    assert done.returncode != 0
    assert (tmp_path / "resume").is_dir() and not (tmp_path / "resume" / "rank0.npz").exists()
