"""Starts the processes of a distributed job on this machine, and ends them together.

MXNet's parameter server needs a scheduler, servers and workers. Environment variables such as DMLC_ROLE tell each
process which of them it is. MXNet's wheel has no launcher, and if a process dies the others wait for ever.

`plan_processes` lists the processes of a job. `run` starts them and prints their output. It ends all of them when the
workers are done, when one process fails, or at Ctrl-C. Each process runs under ``die_with_parent.py``, so that none
outlives the launcher.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .errors import LaunchError
from .names import hooks as _hooks

globals().update(_hooks(__name__))

LOOPBACK = "127.0.0.1"

LAUNCHED = "MXMP_LAUNCH"
"""This variable is 1 in processes that `run` starts. A worker then does not wait for the others at its end."""

TIMED_OUT = 124
"""The exit code of a job that took too long, as that of timeout(1)."""

_SIGNALLED = 128  # and the signal's number: the exit code that a shell gives a process that a signal ended
_POLL = 0.05  # seconds
_INTERRUPTED = 10.0  # seconds that workers have after Ctrl-C, to save and end
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_LONGEST_LINE = 65536  # characters; a longer line is printed in several

# Started by its path, so that neither mxmp nor MXNet is imported.
_DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))

_Running = Dict[str, "subprocess.Popen[bytes]"]  # by the names of the processes


class Process(NamedTuple):
    """One process of a job.

    Attributes:
        name: 'scheduler', 'server 0', 'worker 0'. The number of a worker is its rank in MXNet, unless another program
            takes its port before it starts.
        host: The address that the process listens on.
        command: The command of the process.
        environment: The variables that are set for the process, besides those of this process.
    """

    name: str
    host: str
    command: Sequence[str]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """Return it as a line for a shell."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*pairs, *map(shlex.quote, self.command)])


class JobResult(NamedTuple):
    """How a job ended.

    Attributes:
        code: 0 for success. Else the exit code of the process that failed first, or 128 and the number of the signal
            that ended it, or `TIMED_OUT`.
        reason: The reason; empty for success.
    """

    code: int
    reason: str


def plan_processes(
    command: Sequence[str],
    workers: int,
    servers: int = 1,
    hosts: Sequence[str] = (LOOPBACK,),
    port: Optional[int] = None,
) -> List[Process]:
    """Return the processes of a job with MXNet's parameter server.

    Args:
        command: The command of each worker.
        workers: The number of workers on all hosts; at least 1.
        servers: The number of servers on all hosts; at least 1.
        hosts: IPv4 addresses to listen on. The scheduler runs on the first. Workers and servers are spread over all
            hosts, in blocks.
        port: The port of the scheduler; the other processes take the ports after it. None: free ports of this machine.

    Raises:
        LaunchError: If the command is a text, if a number or an address is invalid, or if this machine does not have
            the address.
    """
    for name, value in (("command", command), ("hosts", hosts)):
        if isinstance(value, (str, bytes)):
            raise LaunchError(f"{name} is the text {value!r}; give a list, as {shlex.split(os.fsdecode(value))}.")
    if workers < 1 or servers < 1:
        raise LaunchError(f"a job of {workers} workers and {servers} servers cannot run; give at least 1 of each.")
    for host in hosts:
        try:
            usable = not ipaddress.IPv4Address(host).is_unspecified
        except ValueError:  # no IPv4 address
            usable = False
        if not usable:
            raise LaunchError(f"host {host!r}: MXNet's processes listen on and are found by an IPv4 address; give one.")
    count = 1 + servers + workers
    if port is not None and not 0 < port <= 65536 - count:
        raise LaunchError(f"port {port}: the job needs {count} ports from there; give one from 1 to {65536 - count}.")
    ports = free_ports(hosts[0], count) if port is None else list(range(port, port + count))
    shared = {
        "DMLC_PS_ROOT_URI": hosts[0],
        "DMLC_PS_ROOT_PORT": str(ports[0]),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": str(workers),
    }
    # ps-lite sorts addresses as text to give ranks (ProcessAddNodeCommandAtScheduler in its src/van.cc).
    ordered = sorted(hosts)
    places = [("scheduler", "scheduler", hosts[0])]
    places += [("server", f"server {i}", ordered[i * len(hosts) // servers]) for i in range(servers)]
    places += [("worker", f"worker {i}", ordered[i * len(hosts) // workers]) for i in range(workers)]
    serve = [sys.executable, "-c", "import mxmp, mxnet"]  # runs until the job is over
    return [
        Process(
            name,
            host,
            command if role == "worker" else serve,
            {"DMLC_ROLE": role, **shared, "DMLC_NODE_HOST": host, "PORT": str(number)},
        )
        for (role, name, host), number in zip(places, ports)
    ]


def free_ports(host: str, count: int) -> List[int]:
    """Return free ports of this machine, in ascending order: nothing listens on them now.

    Raises:
        LaunchError: If this machine does not have the address ``host``.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            try:
                listener.bind((host, 0))
            except OSError as e:
                raise LaunchError(f"cannot listen on {host}: {e.strerror}; give an address of this machine.") from e
            ports.append(listener.getsockname()[1])
    return sorted(ports)


def run(processes: Sequence[Process], timeout: Optional[float] = None) -> JobResult:
    """Run the processes of a job on this machine until its workers are done or a process fails.

    Every line that a process prints begins with its name. A line that ends in a carriage return, as those of progress
    bars, keeps that end. If a process fails, all others are ended, with the processes that they started. Ctrl-C goes to
    the workers, which have ten seconds to save and end. A second Ctrl-C ends all processes.

    Args:
        processes: The processes of `plan_processes`. The names of workers begin with 'worker'.
        timeout: Seconds after which the job is ended; None for no limit.

    Raises:
        LaunchError: If a command cannot be started, or a port is in use.
    """
    for process in processes:
        if "PORT" in process.environment:
            _require_free_port(process, process.environment["PORT"])
    running: _Running = {}
    echoes: List[threading.Thread] = []
    read_end, write_end = os.pipe()  # the system closes the write end when this process dies
    try:
        for process in processes:
            started = running[process.name] = _start(process, read_end)
            echoes.append(_echo(process.name, started.stdout, sys.stdout))
            echoes.append(_echo(process.name, started.stderr, sys.stderr))
        _until(lambda: _result(running) is not None, timeout)
        result = _result(running)
        if result is None:
            result = JobResult(TIMED_OUT, f"the job took longer than {timeout:g} s; ended {_names_left(running)}")
        return result
    except KeyboardInterrupt:
        return _interrupt(running, len(running) == len(processes))
    finally:
        _terminate(running)
        os.close(read_end)
        os.close(write_end)
        # Wait for the last lines. A process that left its group may hold the pipe open.
        _until(lambda: not any(thread.is_alive() for thread in echoes), _GRACE)


def _start(process: Process, pipe: int) -> subprocess.Popen[bytes]:
    """Start a process that dies when the other end of the pipe is closed."""
    # Without PYTHONUNBUFFERED the output of a process would come late, and be lost when the process is ended.
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **process.environment, LAUNCHED: "1"}
    program = process.command[0]
    if shutil.which(program) is None:
        hint = f"; it is no executable, so write `python {program}`" if os.path.isfile(program) else ""
        raise LaunchError(f"{process.name}: cannot run {program!r}: there is no such command{hint}.")
    return subprocess.Popen(
        [*_DIE_WITH_PARENT, str(pipe), *process.command],
        pass_fds=[pipe],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a group of its own, to end with all that it starts
    )


def _interrupt(running: _Running, is_complete: bool) -> JobResult:
    """Send Ctrl-C to the workers, as a terminal would, and wait until they end, for `_INTERRUPTED` seconds at most.

    A job is not complete if Ctrl-C came before its last process was started. A worker never sees the Ctrl-C if it is
    blocked in MXNet because another worker has ended.
    """
    workers = {name: process for name, process in running.items() if name.startswith("worker")}
    for process in workers.values():
        os.killpg(process.pid, signal.SIGINT)
    print(f"mxmp: workers have {_INTERRUPTED:g} s to save and end; Ctrl-C again ends all", file=sys.stderr, flush=True)
    _until(lambda: not _names_left(workers), _INTERRUPTED)
    left = _names_left(workers)
    interrupted = JobResult(_SIGNALLED + signal.SIGINT, f"interrupted; ended {left}" if left else "interrupted")
    return (_result(running) if is_complete else None) or interrupted


def _until(is_over: Callable[[], bool], seconds: Optional[float]) -> None:
    """Wait until a condition holds, for so many seconds at most; None waits for ever."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while not is_over() and (deadline is None or time.monotonic() < deadline):
        time.sleep(_POLL)


def _result(running: _Running) -> Optional[JobResult]:
    """Return the result of a job; None if the job still runs."""
    codes = {name: _exit_code(process) for name, process in running.items()}
    for name, code in codes.items():
        if code and code < 0:
            return JobResult(_SIGNALLED - code, f"{name} was ended by {_name_of(-code)}; ended the others")
        if code:
            return JobResult(code, f"{name} failed with exit code {code}; ended the others")
    workers = [code for name, code in codes.items() if name.startswith("worker")]
    return JobResult(0, "") if all(code == 0 for code in workers) else None


def _names_left(running: _Running) -> str:
    return ", ".join(name for name, process in running.items() if _exit_code(process) is None)


def _name_of(number: int) -> str:
    """Return a signal's name. `signal.Signals` lacks the names of most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_code(process: subprocess.Popen[bytes]) -> Optional[int]:
    """Return the exit code of a process, the negative number of a signal that ended it, or None while it runs.

    The process is not reaped here but in `_terminate`. Until then no other process can get its number, which is also
    the number of its group. So a signal never reaches a process that this job did not start.
    """
    status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _terminate(running: _Running) -> None:
    """End the groups of all processes by SIGTERM, and after `_GRACE` seconds by SIGKILL."""
    for process in running.values():
        os.killpg(process.pid, signal.SIGTERM)
    _until(lambda: not _names_left(running), _GRACE)
    for process in running.values():
        os.killpg(process.pid, signal.SIGKILL)  # a group may outlive its first process
        process.wait()


def _echo(name: str, source: Any, target: IO[str]) -> threading.Thread:
    """Start a thread that prints the lines of a process's stream, each with the name of the process in front."""

    def echo() -> None:
        # With an empty newline, lines end in \n, \r or \r\n and keep their end.
        with io.TextIOWrapper(source, "utf-8", "replace", newline="") as lines:
            for line in iter(lambda: lines.readline(_LONGEST_LINE), ""):
                text = line.rstrip("\r\n")
                end = "\r" if line.endswith("\r") else "\n"
                if not text and end == "\r":  # a progress bar that begins with \r looks like an empty line
                    continue
                with contextlib.suppress(OSError, ValueError):  # if nobody reads any more, the job goes on
                    target.write(f"[{name}] {text}{end}")
                    target.flush()

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    return thread


def _require_free_port(process: Process, port: str) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port may have been used just now
        try:
            listener.bind((process.host, int(port)))
        except OSError as e:
            raise LaunchError(f"{process.name}: port {port} of {process.host}: {e.strerror}; give another port.") from e
