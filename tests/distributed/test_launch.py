"""The launcher, with programs that need no MXNet: what runs, what is printed, and how it ends."""

import _thread
import contextlib
import io
import subprocess
import sys
import threading
import time
from collections import UserDict

import pytest

from mxmp import launch
from mxmp.launch import TIMED_OUT, Process, plan_processes, run

SLEEP = "sleep 60"
SERVE = "import mxmp, mxnet"


def job(*workers, server=SLEEP):
    """Return a job of one server and workers, each a line for a shell."""
    lines = [("server 0", server), *((f"worker {i}", line) for i, line in enumerate(workers))]
    return [Process(name, "127.0.0.1", ["sh", "-c", line], {"NAME": name}) for name, line in lines]


def ends(pid):
    """Return whether a process ends soon; one that only waits for its parent to notice has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if not found or found.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_plan_tells_every_process_its_part():
    processes = plan_processes(["python", "train.py"], 2, servers=3)
    names = ["scheduler", "server 0", "server 1", "server 2", "worker 0", "worker 1"]
    assert [p.name for p in processes] == names
    ports = [int(p.environment["PORT"]) for p in processes]
    assert ports == sorted(set(ports))  # ascending, which is what ranks go by
    for process, name in zip(processes, names):
        role = name.split()[0]
        assert process.command == (["python", "train.py"] if role == "worker" else [sys.executable, "-c", SERVE])
        assert process.host == "127.0.0.1"
        assert {k: v for k, v in process.environment.items() if k != "PORT"} == {
            "DMLC_ROLE": role,
            "DMLC_NUM_SERVER": "3",
            "DMLC_NUM_WORKER": "2",
            "DMLC_NODE_HOST": "127.0.0.1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(ports[0]),
        }


def test_plan_spreads_workers_over_hosts_in_the_order_of_ranks():
    processes = plan_processes(["true"], 4, servers=2, hosts=["10.0.0.9", "10.0.0.10"], port=9000)
    assert [p.host for p in processes] == ["10.0.0.9", "10.0.0.10", "10.0.0.9", *["10.0.0.10"] * 2, *["10.0.0.9"] * 2]
    assert [p.environment["PORT"] for p in processes] == [str(9000 + i) for i in range(7)]
    assert {p.environment["DMLC_PS_ROOT_URI"] for p in processes} == {"10.0.0.9"}


def test_a_process_prints_as_a_line_for_a_shell():
    process = Process("worker 0", "127.0.0.1", ["sh", "-c", 'echo "$A" $B'], {"A": "one  two", "B": "3"})
    assert subprocess.run(["sh", "-c", str(process)], capture_output=True, text=True).stdout == "one  two 3\n"


@pytest.mark.behaviour(37)
def test_each_line_is_printed_behind_the_name_of_its_process(capfd):
    """Each to the stream that the process wrote it to."""
    assert run(job("echo one; echo four >&2", "echo two; echo three")).code == 0
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == ["[worker 0] one", "[worker 1] three", "[worker 1] two"]
    assert printed.err == "[worker 0] four\n"


def test_progress_bars_come_out_before_the_line_ends(tmp_path):
    seen = tmp_path / "seen"

    class Terminal(io.StringIO):
        def write(self, text):
            seen.touch()
            return super().write(text)

    with contextlib.redirect_stdout(Terminal()):
        assert run(job(f"printf '\\r10%%\\r20%%\\r'; while [ ! -e {seen} ]; do sleep 0.02; done"), timeout=20) == (0, "")


def test_the_number_of_a_worker_that_has_ended_is_kept_until_the_job_is_over(tmp_path):
    """Or another process could have it when all are ended: it stays as a zombie."""
    file = tmp_path / "group"
    ends_at_once = f"ps -o pgid= -p $$ | tr -d ' ' > {file}.part; mv {file}.part {file}"
    waits = f"while [ ! -e {file} ]; do sleep 0.02; done; group=/proc/$(cat {file})"
    waits += "; while [ -e $group ] && ! grep -q 'State:.Z' $group/status; do sleep 0.02; done; sleep 0.3; [ -e $group ]"
    assert run(job(ends_at_once, waits), timeout=20) == (0, "")


ENDS = {
    "the workers are done": (["true", "sleep 0.2"], {}, (0, "")),
    "exit code": ([SLEEP, "exit 7"], {}, (7, "worker 1 failed with exit code 7; ended the others")),
    "signal": ([SLEEP, "kill -KILL $$"], {}, (137, "worker 1 was ended by SIGKILL; ended the others")),
    "real-time signal": ([SLEEP, "kill -40 $$"], {}, (168, "worker 1 was ended by signal 40; ended the others")),
    "server": ([SLEEP], {"server": "exit 3"}, (3, "server 0 failed with exit code 3; ended the others")),
}


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("workers, server, end", ENDS.values(), ids=ENDS.keys())
def test_run_ends_all_when_the_workers_are_done_or_one_fails_and_passes_its_code_on(workers, server, end):
    begin = time.monotonic()
    assert run(job(*workers, **server)) == end
    assert time.monotonic() - begin < 5


# Workers that leave the number of a process that shall not outlive the job: started by one, or deaf to requests.
STUBBORN = {
    "started by a worker": "sleep 60 & echo $! > {0}.part; mv {0}.part {0}; sleep 60",
    "deaf to SIGTERM": "trap '' TERM; echo $$ > {0}.part; mv {0}.part {0}; while true; do sleep 1; done",
}


@pytest.mark.behaviour(36)
@pytest.mark.parametrize("line", STUBBORN.values(), ids=STUBBORN)
def test_run_ends_all_that_workers_have_started(line, tmp_path):
    file = tmp_path / "pid"
    assert run(job(line.format(file), f"while [ ! -e {file} ]; do sleep 0.05; done; exit 1")).code == 1
    assert ends(int(file.read_text()))


@pytest.mark.parametrize("line", STUBBORN.values(), ids=STUBBORN)
def test_all_of_them_end_with_a_launcher_that_is_killed(line, tmp_path):
    file = tmp_path / "pid"
    command = ["sh", "-c", line.format(file)]
    code = f"from mxmp.launch import Process, run; run([Process('worker 0', '127.0.0.1', {command!r}, {{}})])"
    with subprocess.Popen([sys.executable, "-c", code]) as launcher:
        while not file.exists():
            assert launcher.poll() is None
            time.sleep(0.05)
        launcher.kill()
    assert ends(int(file.read_text()))


def interrupt_when(*files):
    """Press Ctrl-C once for each file, when it is there; return the times of it."""
    pressed = []

    def press():
        for file in files:
            while not file.exists():
                time.sleep(0.02)
            pressed.append(time.monotonic())
            _thread.interrupt_main()

    threading.Thread(target=press, daemon=True).start()
    return pressed


def test_ctrl_c_goes_to_the_workers_which_may_save(tmp_path):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    worker = f"trap 'sleep 0.3; touch {saved}; exit 130' INT; touch {ready}; while :; do sleep 0.02; done"
    interrupt_when(ready)
    end = run(job(worker, server=f"trap 'touch {tmp_path}/server' INT; {SLEEP}"))
    assert (end.code, saved.exists()) == (130, True)
    assert not (tmp_path / "server").exists()


def test_ctrl_c_while_processes_are_started_goes_to_those_that_run(tmp_path):
    """It comes while the environment of worker 1 is read."""
    ready, saved = tmp_path / "ready", tmp_path / "saved"

    class Pressed(UserDict):
        def __iter__(self):
            while not ready.exists():
                time.sleep(0.02)
            raise KeyboardInterrupt

    worker = f"trap 'touch {saved}; exit 0' INT; touch {ready}; while :; do sleep 0.02; done"
    first = Process("worker 0", "127.0.0.1", ["sh", "-c", worker], {})
    assert run([first, Process("worker 1", "127.0.0.1", ["true"], Pressed())]).code == 130
    assert saved.exists()


def test_a_worker_that_ends_at_once_leaves_the_others_time_to_save(tmp_path):
    """The other one saves when the first has ended, and is no process any more."""
    one, two, saved = tmp_path / "one", tmp_path / "two", tmp_path / "saved"
    wait = "while :; do sleep 0.02; done"
    quick = f"while [ ! -e {two} ]; do sleep 0.02; done; trap 'exit 130' INT; echo $$ > {one}.part; mv {one}.part {one}; {wait}"
    gone = f"while kill -0 $(cat {one}) 2>/dev/null; do sleep 0.02; done"
    slow = f"trap '{gone}; touch {saved}; exit 0' INT; touch {two}; {wait}"
    interrupt_when(one)
    assert (run(job(quick, slow)).code, saved.exists()) == (130, True)


def test_a_second_ctrl_c_ends_all(tmp_path):
    ready, again, pid = tmp_path / "ready", tmp_path / "again", tmp_path / "pid"
    worker = f"trap 'touch {again}' INT; echo $$ > {pid}; touch {ready}; while :; do sleep 0.02; done"
    interrupt_when(ready, again)
    with pytest.raises(KeyboardInterrupt):
        run(job(worker))
    assert ends(int(pid.read_text()))


LATER = "trap '' INT; while [ ! -e {0}.first ]; do sleep 0.02; done; touch {0}; exec sleep 60"
DEAF = {
    "one": (["touch {0}.first; exec sleep 60", LATER], "worker 0 was ended by SIGINT; ended the others"),
    "all": (["trap '' INT TERM; touch {0}; while :; do sleep 1; done"], "interrupted; ended worker 0"),
}


@pytest.mark.parametrize("workers, reason", DEAF.values(), ids=DEAF)
@pytest.mark.slow
def test_workers_that_do_not_see_ctrl_c_are_ended(workers, reason, tmp_path, monkeypatch, capfd):
    """As one that waits in MXNet for another."""
    monkeypatch.setattr(launch, "_INTERRUPTED", 2.0)
    pressed = interrupt_when(tmp_path / "ready")
    assert run(job(*(line.format(tmp_path / "ready") for line in workers))) == (130, reason)
    assert time.monotonic() - pressed[0] < 40  # not the 60 s of their own
    assert "mxmp: workers have 2 s to save and end; Ctrl-C again ends all\n" in capfd.readouterr().err


def test_run_ends_a_job_that_takes_too_long():
    end = run(job("true", SLEEP), timeout=0.5)
    assert end == (TIMED_OUT, "the job took longer than 0.5 s; ended server 0, worker 1")
