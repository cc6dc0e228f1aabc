"""Processes of a distributed job: which there are, and how they run together on one machine.

MXNet's parameter server needs a scheduler, servers and workers, told apart by environment
variables (DMLC_ROLE and its like). MXNet has no launcher in its wheel, and where a process dies
its others wait for ever; `run` ends them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .errors import LaunchError
from .interrupt import CLAIMS, Savers

LOOPBACK = "127.0.0.1"
LAUNCHED = "MXMP_LAUNCH"
"""Set to 1 for what `run` starts: servers are ended by the launcher, no worker waits for others at its end."""

TIMED_OUT = 124
"""The exit code of a job that took too long, as that of timeout(1)."""

_SIGNALLED = 128  # and the signal's number, as a shell says it
_GRACE = 3.0  # seconds between the request to end and the end
_POLL = 0.05  # seconds

# Seconds after Ctrl-C. Without anything to save all is over in 3.
_IDLE = 2.0  # for a worker to end, or to begin to save
_TELL = 1.0  # before a word on what is waited for
_SAVING = 30.0  # for workers that save
_SHORT_GRACE = 0.4  # as _GRACE

_TETHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")))
"""Runs a command until a pipe ends; started by its path, so that neither mxmp nor MXNet is imported."""


class Process(NamedTuple):
    """One process of a job.

    Attributes:
        name: 'scheduler', 'server 0', 'worker 0'. MXNet ranks workers by address and port, so that
            the number is the rank, unless a port is taken meanwhile.
        host: The address it listens on.
        command: What it runs.
        environment: The variables it needs beyond those that are there.
    """

    name: str
    host: str
    command: Sequence[str]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """Return it as a line for a shell."""
        pairs = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*pairs, *map(shlex.quote, self.command)])


class End(NamedTuple):
    """How a job ended.

    Attributes:
        code: 0, or the exit code of the process that failed first; 128 and the signal's number if
            a signal ended it; `TIMED_OUT`.
        reason: What to tell, empty if all went well.
    """

    code: int
    reason: str


def plan(
    command: Sequence[str],
    workers: int,
    servers: int = 1,
    hosts: Sequence[str] = (LOOPBACK,),
    port: Optional[int] = None,
) -> List[Process]:
    """Return the processes of a job with MXNet's parameter server.

    Args:
        command: What each worker runs.
        workers: How many, over all hosts; at least 1.
        servers: How many, over all hosts; at least 1.
        hosts: IPv4 addresses to listen on. The first is the scheduler's; workers and servers are
            spread over all, in blocks.
        port: The scheduler's; the others take those that follow. None: free ports of this
            machine.

    Raises:
        LaunchError: If a number or an address is none, or this machine has no such address.
    """
    if workers < 1 or servers < 1:
        raise LaunchError(f"a job of {workers} workers and {servers} servers cannot run; give at least 1 of each.")
    for host in hosts:
        _check_address(host)
    count = 1 + servers + workers
    if port is not None and not 0 < port <= 65536 - count:
        raise LaunchError(f"port {port}: the job needs {count} ports from there; give one from 1 to {65536 - count}.")
    ports = list(range(port, port + count)) if port is not None else free_ports(hosts[0], count)
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
    """Return ports of this machine that nothing listens on at the moment, in ascending order.

    Raises:
        LaunchError: If ``host`` is no address of this machine.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            try:
                listener.bind((host, 0))
            except OSError as e:
                raise LaunchError(f"cannot listen on {host}: {e.strerror}; give an address of this machine.") from e
            found.append(listener.getsockname()[1])
    return sorted(found)


def run(processes: Sequence[Process], timeout: Optional[float] = None) -> End:
    """Run the processes of a job on this machine until its workers are done or something fails.

    Every line that a process prints comes out with its name in front. When a process fails all that
    is left ends with whatever it started. Ctrl-C goes to the workers: those that neither end nor save
    within two seconds are ended, those that save have half a minute; a second one ends all.

    Args:
        processes: The job's; none is a worker whose name does not begin with 'worker'.
        timeout: Seconds; None waits for ever.

    Raises:
        LaunchError: If a command cannot be started, or a port is in use.
    """
    for process in processes:
        _require_free(process)
    deadline = None if timeout is None else time.monotonic() + timeout
    running: Dict[str, subprocess.Popen[bytes]] = {}
    echoes: List[threading.Thread] = []
    grace = _GRACE
    pipe, held = os.pipe()  # ends when this process does, even if nothing could be done any more
    with tempfile.TemporaryDirectory(prefix="mxmp-") as claims:
        try:
            for process in processes:
                running[process.name] = _start(process, pipe, _claims(claims, process.name))
                echoes += _echo(process.name, running[process.name])
            try:
                return _watch(running, deadline, timeout)
            except KeyboardInterrupt:
                grace = _SHORT_GRACE
                return _interrupt(running, claims, deadline, timeout)
        except KeyboardInterrupt:
            grace = _SHORT_GRACE
            raise
        finally:
            _end(list(running.values()), grace)
            os.close(pipe)
            os.close(held)
            _join(echoes, grace)


def _claims(folder: str, name: str) -> str:
    """Return the folder where a process says that it saves."""
    return os.path.join(folder, name.replace(" ", "-"))


def _require_free(process: Process) -> None:
    port = process.environment.get("PORT")
    if port is None:
        return
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was used just now will do
        try:
            listener.bind((process.host, int(port)))
        except OSError as e:
            raise LaunchError(f"{process.name}: port {port} of {process.host}: {e.strerror}; give another port.") from e


def _start(process: Process, pipe: int, claims: str) -> subprocess.Popen[bytes]:
    os.mkdir(claims)
    # Without PYTHONUNBUFFERED what a process prints would come late, and be lost when it is ended.
    environment = {"PYTHONUNBUFFERED": "1", **os.environ, **process.environment, LAUNCHED: "1", CLAIMS: claims}
    program = process.command[0]
    if shutil.which(program) is None:
        hint = f"; it is no executable, so write `python {program}`" if os.path.isfile(program) else ""
        raise LaunchError(f"{process.name}: cannot run {program!r}: there is no such command{hint}.")
    try:
        return subprocess.Popen(
            [*_TETHER, str(pipe), *process.command],
            pass_fds=[pipe],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a group of its own, to end with all that it starts
        )
    except OSError as e:
        raise LaunchError(f"{process.name}: cannot run {program!r}: {e.strerror}.") from e


def _watch(running: Mapping[str, subprocess.Popen[bytes]], deadline: Optional[float], timeout: Optional[float]) -> End:
    """Wait until the workers are done, or something fails."""
    while True:
        end = _state(running, deadline, timeout)
        if end is not None:
            return end
        time.sleep(_POLL)


def _interrupt(
    running: Mapping[str, subprocess.Popen[bytes]], claims: str, deadline: Optional[float], timeout: Optional[float]
) -> End:
    """Hand Ctrl-C on to the workers, as a terminal would, and wait while one of them saves."""
    workers = {name: process for name, process in running.items() if name.startswith("worker")}
    savers = Savers({name: process.pid for name, process in workers.items()}, {n: _claims(claims, n) for n in workers})
    for process in workers.values():
        _signal(process, signal.SIGINT)
    begin = last = time.monotonic()
    end, told = None, False
    while True:
        left = [name for name, process in workers.items() if process.poll() is None]
        end = end or _state(running, deadline, timeout)  # the first to fail says how all ended
        saving = [name for name in savers.find() if name in left]
        now = time.monotonic()
        last = now if saving else last
        if not left or now - last > _IDLE or now - begin > _SAVING or (end and end.code == TIMED_OUT):
            return end or End(_SIGNALLED + signal.SIGINT, f"interrupted; ended {', '.join(left)}")
        if saving and not told and now - begin > _TELL:
            told = True
            print(f"mxmp: waiting for {', '.join(saving)} to save; Ctrl-C again ends all", file=sys.stderr, flush=True)
        time.sleep(_POLL)


def _state(
    running: Mapping[str, subprocess.Popen[bytes]], deadline: Optional[float], timeout: Optional[float]
) -> Optional[End]:
    """Return how the job has ended, None while it goes on."""
    codes = {name: process.poll() for name, process in running.items()}
    failed = next(((name, code) for name, code in codes.items() if code), None)
    if failed is not None:
        return _failure(*failed)
    if all(code == 0 for name, code in codes.items() if name.startswith("worker")):
        return End(0, "")
    if deadline is not None and time.monotonic() > deadline:
        left = ", ".join(name for name, code in codes.items() if code is None)
        return End(TIMED_OUT, f"the job took longer than {timeout:g} s; ended {left}")
    return None


def _failure(name: str, code: int) -> End:
    if code < 0:
        return End(_SIGNALLED - code, f"{name} was ended by {signal.Signals(-code).name}; ended the others")
    return End(code, f"{name} failed with exit code {code}; ended the others")


def _end(processes: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    """End the groups of processes: politely, then not."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        _signal(process, signal.SIGKILL)  # a group may outlive its first process
        process.wait()


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait until all have ended, but no longer than so."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _echo(name: str, process: subprocess.Popen[bytes]) -> List[threading.Thread]:
    """Start the threads that print a process's lines."""
    assert process.stdout is not None and process.stderr is not None
    streams: List[Tuple[IO[bytes], IO[str]]] = [(process.stdout, sys.stdout), (process.stderr, sys.stderr)]
    threads = [threading.Thread(target=_copy, args=(name, *pair), daemon=True) for pair in streams]
    for thread in threads:
        thread.start()
    return threads


def _copy(name: str, source: IO[bytes], target: IO[str]) -> None:
    with source:
        for line in source:
            text = line.decode(errors="replace").rstrip("\n")
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more; the job goes on
                target.write(f"[{name}] {text}\n")
                target.flush()


def _check_address(host: str) -> None:
    try:
        known = not ipaddress.IPv4Address(host).is_unspecified
    except ValueError:
        known = False
    if not known:
        raise LaunchError(f"host {host!r}: MXNet's processes listen on and are found by an IPv4 address; give one.")
