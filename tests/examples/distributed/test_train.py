"""Training in two processes with MXNet's parameter server on loopback, and what is refused."""

from __future__ import annotations

import json
import sys

import mxnet as mx
import numpy as np
import pytest

from examples.common.workers import Workers
from examples.distributed import train
from examples.image_classification.data import load
from examples.image_classification.train_gluon import GluonLearner
from mxmp.distributed import KVStore
from tests.distributed.engines import Twins
from tests.examples.common.small import float32
from tests.examples.distributed.checks import arguments, check_as_alone, check_resume
from tests.examples.processes import finish, start
from tests.examples.scripts import call

RUNS = [("gluon", "O0"), ("module", "O2")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Train as ``mxmp launch`` does, one run after the other; return folders with what each worker left, by run."""
    folders = {run: tmp_path_factory.mktemp("run") for run in RUNS}
    runs = [
        json.dumps([api, str(folder), [*map(str, arguments(policy, folder / "run")), "--kvstore", "dist_sync"]])
        for (api, policy), folder in folders.items()
    ]
    job = (sys.executable, "-m", "tests.examples.distributed.job", *runs)
    finish(start("-m", "mxmp", "launch", "-n", 2, "--timeout", 80, *job))
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids="-".join)
def test_two_workers_train_alike_and_as_one_with_whole_batches(tmp_path, run, folders):
    folder = folders[run]
    for kind in ("params", "states", "json"):
        first, second = ((folder / f"rank{rank}.{kind}").read_bytes() for rank in range(2))
        assert first == second, kind
    check_as_alone(*run, folder / "run", tmp_path)


@pytest.mark.slow
def test_a_job_that_was_interrupted_resumes_to_the_bit(tmp_path, folders):
    check_resume(folders["module", "O2"] / "run", tmp_path, "--api", "module")


def test_weights_that_onednn_has_laid_out_can_be_sent(tmp_path):
    """The convolutions of the default network have run once when the workers are given worker 0's weights."""
    workers = Workers(KVStore(Twins()))
    learner = GluonLearner("cifar_resnet20_v1", load("digits"), float32(tmp_path), 0.1, workers)
    learner.parts["net"].save_params(str(tmp_path / "params"))
    weights = [value for name, value in mx.nd.load(str(tmp_path / "params")).items() if name.endswith("conv0_weight")]
    assert weights and all(np.isfinite(each.asnumpy()).all() and each.asnumpy().any() for each in weights)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--workers", 3, "--batch-size", 64), 2, "--batch-size: 64 for 3 workers; give a multiple of 3, 3 or more"),
        (("--ctx", "cpu:0,cpu:1", "--batch-size", 2), 2, "2 for 2 workers of 2 contexts each; give a multiple of 2, 4"),
        (("--workers", 0), 2, "0 is not in the range x>=1"),
        (("--kvstore", "device"), 2, "--kvstore is what --engine decides on; leave it out"),
        (("--epochz", 3), 2, "--epochs"),
        (("--engine", "horovod"), 1, "Horovod is not installed"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(args, code, message, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod", None)
    output = tmp_path / "output"
    found, text = call(train.main, "--output", output, *args)
    assert (found, "Traceback" in text) == (code, False)
    assert message in text
    assert not output.exists()


def test_a_checkpoint_is_not_replaced(tmp_path):
    (tmp_path / "run.json").write_text("")
    code, text = call(train.main, "--output", tmp_path)
    assert (code, "holds the checkpoint of a run; --resume goes on with it" in text) == (1, True)
