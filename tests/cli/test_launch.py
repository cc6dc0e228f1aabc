"""``mxmp launch``: what it starts, what it prints for several machines, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.checkpoints import mxmp
from tests.cli.test_process import start


def test_it_passes_on_output_and_exit_code():
    out, err = mxmp("launch", "-n", "1", "sh", "-c", "echo $DMLC_ROLE $DMLC_NUM_WORKER; exit 5", code=5)
    assert out == "[worker 0] worker 1\n"
    assert err.splitlines()[-1] == "mxmp: worker 0 failed with exit code 5; ended the others."


def test_options_behind_the_command_are_the_commands():
    out, _ = mxmp("launch", "-n", "1", "echo", "-n", "2", "--timeout", "x")
    assert out == "[worker 0] 2 --timeout x\n"


def test_it_leaves_the_handling_of_signals_as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    mxmp("launch", "-n", "1", "true")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_job_that_takes_too_long():
    _, err = mxmp("launch", "-n", "1", "--timeout", "0.5", "sleep", "60", code=124)
    assert err.splitlines()[-1] == "mxmp: the job took longer than 0.5 s; ended scheduler, server 0, worker 0."


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_workers_too(number, code):
    with start("launch", "-n", "1", "sh", "-c", "echo $$; exec sleep 60", stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline().rsplit(maxsplit=1)[-1])
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert subprocess.run(["kill", "-0", str(pid)], stderr=subprocess.PIPE).returncode == 1


def test_commands_for_several_machines():
    out, _ = mxmp("launch", "-n", "2", "--hosts", "10.0.0.1, 10.0.0.2", "python", "train.py", "--name", "a b")
    first, second = out.split("# on 10.0.0.2\n")
    shared = "DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9091 DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=2"
    worker = "python train.py --name 'a b'"
    assert first.splitlines() == [
        "# on 10.0.0.1",
        f"DMLC_ROLE=scheduler {shared} DMLC_NODE_HOST=10.0.0.1 PORT=9091 {sys.executable} -c 'import mxmp, mxnet' &  # scheduler",
        f"DMLC_ROLE=server {shared} DMLC_NODE_HOST=10.0.0.1 PORT=9092 {sys.executable} -c 'import mxmp, mxnet' &  # server 0",
        f"DMLC_ROLE=worker {shared} DMLC_NODE_HOST=10.0.0.1 PORT=9093 {worker} &  # worker 0",
        "wait",
    ]
    assert second.splitlines() == [
        f"DMLC_ROLE=worker {shared} DMLC_NODE_HOST=10.0.0.2 PORT=9094 {worker} &  # worker 1",
        "wait",
    ]
