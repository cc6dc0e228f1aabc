"""What a user can check of jobs, by public names only. docs/behaviours.md lists it."""

import os
import time

import pytest

from mxmp.launch import LOOPBACK, Process
from mxmp.launch import run as launch


def job(*workers):
    return [Process(f"worker {i}", LOOPBACK, ["sh", "-c", line], {}) for i, line in enumerate(workers)]


@pytest.mark.behaviour(36)
def test_a_worker_that_fails_ends_the_others_and_its_exit_code_is_passed_on(tmp_path):
    """With what they have started themselves."""
    begin, file = time.monotonic(), tmp_path / "started"
    started = f"sleep 60 & echo $! > {file}; wait"
    code, reason = launch(job(started, f"while [ ! -s {file} ]; do sleep 0.01; done; exit 7"), timeout=50)
    assert code == 7 and "worker 1" in reason and time.monotonic() - begin < 50
    with pytest.raises(ProcessLookupError):
        while time.monotonic() - begin < 50:  # whoever inherits it may need a moment to reap it
            os.kill(int(file.read_text()), 0)
            time.sleep(0.01)


@pytest.mark.behaviour(37)
def test_each_line_of_a_job_is_printed_behind_the_name_of_its_process(capfd):
    """Each to the stream that the process wrote it to."""
    assert launch(job("echo one; echo four >&2", "echo two; echo three")).code == 0
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == ["[worker 0] one", "[worker 1] three", "[worker 1] two"]
    assert printed.err == "[worker 0] four\n"
