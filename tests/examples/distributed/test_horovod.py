"""Training in two processes with Horovod on loopback; needs Horovod: ``make test-horovod``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.examples.distributed.checks import TRAIN, arguments, check_as_alone, check_resume
from tests.examples.processes import finish, start

HOROVOD = ("--engine", "horovod")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="no Horovod; see make test-horovod"),
]


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    """Train; return API, policy and the folder."""
    api, policy = request.param
    folder = tmp_path_factory.mktemp("run")
    finish(start(TRAIN, *HOROVOD, "--api", api, *arguments(policy, folder)))
    return api, policy, folder


@pytest.mark.parametrize("run", [("gluon", "O0"), ("module", "O2")], indirect=True)
def test_two_workers_train_as_one_with_whole_batches(tmp_path, run):
    api, policy, folder = run
    check_as_alone(api, policy, folder, tmp_path)


@pytest.mark.parametrize("run", [("module", "O2")], indirect=True)
def test_a_job_that_was_interrupted_resumes_to_the_bit(tmp_path, run):
    check_resume(run[2], tmp_path, *HOROVOD, "--api", "module")
