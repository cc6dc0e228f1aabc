"""The launcher, with programs that need no MXNet: what runs, what is printed, and how it ends."""

from __future__ import annotations

import _thread
import io
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mxmp import launch
from mxmp.errors import LaunchError
from mxmp.launch import TIMED_OUT, Process, free_ports, plan, run

SLEEP = "sleep 60"


def job(*workers, server=SLEEP):
    """Return a job of one server and workers, each a line for a shell."""
    lines = [("server 0", server), *((f"worker {i}", line) for i, line in enumerate(workers))]
    return [Process(name, "127.0.0.1", ["sh", "-c", line], {"NAME": name}) for name, line in lines]


def ends(pid):
    """Return whether a process ends soon; one that only waits for its parent to notice has ended."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if not found or found.startswith("Z"):
            return True
        time.sleep(0.05)
    return False


def test_plan_tells_every_process_its_part():
    processes = plan(["python", "train.py"], 2, servers=3)
    assert [p.name for p in processes] == ["scheduler", "server 0", "server 1", "server 2", "worker 0", "worker 1"]
    roles = [p.environment["DMLC_ROLE"] for p in processes]
    assert roles == ["scheduler", *["server"] * 3, *["worker"] * 2]
    assert all((p.environment["DMLC_NUM_SERVER"], p.environment["DMLC_NUM_WORKER"]) == ("3", "2") for p in processes)
    assert [p.command for p in processes[4:]] == [["python", "train.py"]] * 2
    assert {tuple(p.command) for p in processes[:4]} == {(sys.executable, "-c", "import mxmp, mxnet")}


def test_plan_listens_on_loopback_alone():
    for process in plan(["true"], 1):
        assert process.host == process.environment["DMLC_NODE_HOST"] == "127.0.0.1"
        assert process.environment["DMLC_PS_ROOT_URI"] == "127.0.0.1"


def test_plan_gives_ascending_ports_which_are_what_ranks_go_by():
    processes = plan(["true"], 4, servers=2)
    ports = [int(p.environment["PORT"]) for p in processes]
    assert ports == sorted(set(ports))
    assert {p.environment["DMLC_PS_ROOT_PORT"] for p in processes} == {str(ports[0])}


def test_plan_spreads_workers_over_hosts_in_the_order_of_ranks():
    processes = plan(["true"], 4, servers=2, hosts=["10.0.0.9", "10.0.0.10"], port=9000)
    assert [p.host for p in processes] == ["10.0.0.9", "10.0.0.10", "10.0.0.9", *["10.0.0.10"] * 2, *["10.0.0.9"] * 2]
    assert [p.environment["PORT"] for p in processes] == [str(9000 + i) for i in range(7)]
    assert {p.environment["DMLC_PS_ROOT_URI"] for p in processes} == {"10.0.0.9"}


def test_a_process_prints_as_a_line_for_a_shell():
    process = Process("worker 0", "127.0.0.1", ["sh", "-c", 'echo "$A" $B'], {"A": "one  two", "B": "3"})
    assert subprocess.run(["sh", "-c", str(process)], capture_output=True, text=True).stdout == "one  two 3\n"


@pytest.mark.parametrize(
    "match, kwargs",
    [
        ("a job of 0 workers and 1 servers cannot run", {"workers": 0}),
        ("a job of 1 workers and 0 servers cannot run", {"workers": 1, "servers": 0}),
        ("host 'node1': MXNet's processes listen on and are found by an IPv4 address", {"hosts": ["node1"]}),
        ("host '0.0.0.0'", {"hosts": ["0.0.0.0"]}),
        ("cannot listen on 192.0.2.1: .*; give an address of this machine", {"hosts": ["192.0.2.1"]}),
        ("port 65534: the job needs 3 ports from there; give one from 1 to 65533", {"port": 65534}),
    ],
)
def test_plan_refuses(match, kwargs):
    with pytest.raises(LaunchError, match=match):
        plan(["true"], **{"workers": 1, **kwargs})


def test_free_ports_can_be_listened_on():
    ports = free_ports("127.0.0.1", 5)
    assert len(set(ports)) == 5 and ports == sorted(ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_run_prints_every_line_with_its_process_in_front(capfd):
    assert run(job("echo one; echo two >&2", "printf 'no end'; printf '\\377\\n' >&2")) == (0, "")
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[worker 0] one", "[worker 1] no end"]
    assert sorted(err.splitlines()) == ["[worker 0] two", "[worker 1] \N{REPLACEMENT CHARACTER}"]


def test_run_prints_a_line_without_an_end_in_parts(capfd):
    """As they come, so that a process that never ends its line fills no memory."""
    assert run(job("head -c 200000 /dev/zero | tr '\\0' x; echo")) == (0, "")
    lines = capfd.readouterr().out.splitlines()
    assert {line[:11] for line in lines} == {"[worker 0] "} and max(map(len, lines)) <= 65536 + 11
    assert "".join(line[11:] for line in lines) == "x" * 200000


BARS = {
    "ends": ("printf '10%%\\r'; sleep 0.1; printf '20%%\\r\\n'", "[worker 0] 10%\r[worker 0] 20%\n"),
    "begins": ("printf '\\r10%%'; sleep 0.1; printf '\\r20%%\\n'", "[worker 0] 10%\r[worker 0] 20%\n"),
}


@pytest.mark.parametrize("line, printed", BARS.values(), ids=BARS)
def test_progress_bars_stay_on_their_line(line, printed, capfd):
    assert run(job(line)) == (0, "")
    assert capfd.readouterr().out == printed


def test_progress_bars_come_out_before_the_line_ends(tmp_path, monkeypatch):
    seen = tmp_path / "seen"

    class Terminal(io.StringIO):
        def write(self, text):
            seen.touch()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run(job(f"printf '10%%\\r20%%\\r'; while [ ! -e {seen} ]; do sleep 0.02; done"), timeout=20) == (0, "")


def test_run_signals_no_process_that_it_did_not_start(tmp_path, monkeypatch):
    """The number of a worker that has ended is not given to another process before the job is over."""
    kept = []
    real = os.killpg

    def killpg(group, number):
        kept.append(Path(f"/proc/{group}/stat").exists())  # as a zombie, if it has ended
        real(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    assert run(job("true", "sleep 0.3")) == (0, "")
    assert len(kept) == 6 and all(kept)


def test_run_gives_each_process_its_environment_on_top_of_ours(capfd, monkeypatch):
    monkeypatch.setenv("OURS", "kept")
    run(job("echo $NAME $OURS $MXMP_LAUNCH"))
    assert capfd.readouterr().out == "[worker 0] worker 0 kept 1\n"
    assert "MXMP_LAUNCH" not in os.environ


ENDS = {
    "the workers are done": (["true", "sleep 0.2"], {}, (0, "")),
    "exit code": ([SLEEP, "exit 7"], {}, (7, "worker 1 failed with exit code 7; ended the others")),
    "signal": ([SLEEP, "kill -KILL $$"], {}, (137, "worker 1 was ended by SIGKILL; ended the others")),
    "real-time signal": ([SLEEP, "kill -40 $$"], {}, (168, "worker 1 was ended by signal 40; ended the others")),
    "server": ([SLEEP], {"server": "exit 3"}, (3, "server 0 failed with exit code 3; ended the others")),
}


@pytest.mark.parametrize("workers, server, end", ENDS.values(), ids=ENDS.keys())
def test_run_ends_all_when_the_workers_are_done_or_one_fails_and_passes_its_code_on(workers, server, end):
    begin = time.monotonic()
    assert run(job(*workers, **server)) == end
    assert time.monotonic() - begin < 5


def test_run_ends_what_a_process_has_started_too(tmp_path):
    file = tmp_path / "pid"
    run(job(f"sleep 60 & echo $! > {file}; sleep 60", f"while [ ! -s {file} ]; do sleep 0.05; done; exit 1"))
    assert ends(int(file.read_text()))


def test_run_ends_what_does_not_listen_to_requests(tmp_path):
    file = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {file}; while true; do sleep 1; done"
    begin = time.monotonic()
    assert run(job(stubborn, f"while [ ! -s {file} ]; do sleep 0.05; done; exit 1")).code == 1
    assert ends(int(file.read_text()))
    assert time.monotonic() - begin < 20


def interrupt_when(*files, pause=0.0):
    """Press Ctrl-C once for each file, some seconds after it is there; return the times of it."""
    pressed = []

    def press():
        for file in files:
            while not file.exists():
                time.sleep(0.02)
            time.sleep(pause)
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


def test_a_worker_that_ends_at_once_leaves_the_others_time_to_save(tmp_path):
    one, two, saved = tmp_path / "one", tmp_path / "two", tmp_path / "saved"
    wait = "while :; do sleep 0.02; done"
    quick = f"while [ ! -e {two} ]; do sleep 0.02; done; trap 'exit 130' INT; touch {one}; {wait}"
    slow = f"trap 'sleep 1; touch {saved}; exit 0' INT; touch {two}; {wait}"
    interrupt_when(one)
    assert (run(job(quick, slow)).code, saved.exists()) == (130, True)


def test_a_second_ctrl_c_ends_all(tmp_path):
    ready, again, pid = tmp_path / "ready", tmp_path / "again", tmp_path / "pid"
    worker = f"trap 'touch {again}' INT; echo $$ > {pid}; touch {ready}; while :; do sleep 0.02; done"
    interrupt_when(ready, again)
    with pytest.raises(KeyboardInterrupt):
        run(job(worker))
    assert ends(int(pid.read_text()))


@pytest.fixture
def two_seconds(monkeypatch):
    """Give workers less time after Ctrl-C, for tests of those that do not use it."""
    monkeypatch.setattr(launch, "_INTERRUPTED", 2.0)


def test_a_worker_that_does_not_see_ctrl_c_is_ended(tmp_path, two_seconds, capfd):
    """As one that waits in MXNet for another."""
    pressed = interrupt_when(tmp_path / "ready", pause=0.2)
    end = run(job("sleep 60", f"trap '' INT; touch {tmp_path}/ready; exec sleep 60"))
    assert end == (130, "worker 0 was ended by SIGINT; ended the others")
    assert time.monotonic() - pressed[0] < 5
    assert "mxmp: workers have 2 s to save and end; Ctrl-C again ends all\n" in capfd.readouterr().err


def test_workers_that_all_ignore_ctrl_c_are_ended(tmp_path, two_seconds):
    pressed = interrupt_when(tmp_path / "ready", pause=0.2)
    end = run(job(f"trap '' INT TERM; touch {tmp_path}/ready; while :; do sleep 1; done"))
    assert end == (130, "interrupted; ended worker 0")
    assert time.monotonic() - pressed[0] < 2 + 3 + 2


def test_run_ends_a_job_that_takes_too_long():
    end = run(job("true", SLEEP), timeout=0.5)
    assert end == (TIMED_OUT, "the job took longer than 0.5 s; ended server 0, worker 1")


def test_run_says_what_it_cannot_start():
    missing = Process("worker 1", "127.0.0.1", ["no-such-program"], {})
    with pytest.raises(LaunchError, match="worker 1: cannot run 'no-such-program': there is no such command"):
        run([*job(SLEEP), missing])


def test_run_tells_how_to_run_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(LaunchError, match=r"train.py': there is no such command; .*write `python .*train.py`"):
        run([Process("worker 0", "127.0.0.1", [str(script)], {})])


def test_run_refuses_a_port_in_use():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        taken = Process("scheduler", "127.0.0.1", ["sleep", "60"], {"PORT": port})
        with pytest.raises(LaunchError, match=f"scheduler: port {port} of 127.0.0.1: Address already in use"):
            run([taken])


@pytest.mark.parametrize("line", ["echo $$ > {}; exec sleep 60", "sleep 60 & echo $! > {}; wait"])
def test_processes_end_with_a_launcher_that_is_killed(line, tmp_path):
    file = tmp_path / "pid"
    command = ["sh", "-c", line.format(file)]
    code = f"from mxmp.launch import Process, run; run([Process('worker 0', '127.0.0.1', {command!r}, {{}})])"
    launcher = subprocess.Popen([sys.executable, "-c", code])
    while not file.exists() or not file.read_text().strip():
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    assert ends(int(file.read_text()))
