"""Runs the processes of a job on this machine until the workers are done, one fails or Ctrl-C is pressed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Dict, List, NamedTuple, Optional, Sequence

from ..errors import LaunchError
from .processes import Process
from .saving import FOLDER, SavingWorkers

LAUNCHED = "MXMP_LAUNCH"
"""Set to 1 for what `run` starts: servers are ended by the launcher, no worker waits for others at its end."""

TIMED_OUT = 124
"""The exit code of a job that took too long, as that of timeout(1)."""

_SIGNALLED = 128  # and the signal's number, as a shell says it
_POLL = 0.05  # seconds

# Seconds from SIGTERM to SIGKILL; after Ctrl-C.
_GRACE, _SHORT_GRACE = 3.0, 0.4

# Seconds after Ctrl-C. Without anything to save all is over in 3.
_IDLE = 2.0  # for a worker to end, or to begin to save
_TELL = 1.0  # before the user is told what is waited for
_SAVING = 30.0  # for workers that save

# Runs a command until a pipe is closed; started by its path, so that neither mxmp nor MXNet is imported.
_DIE_WITH_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("die_with_parent.py")))


class End(NamedTuple):
    """How a job ended.

    Attributes:
        code: 0, or the exit code of the process that failed first; 128 and the signal's number if
            a signal ended it; `TIMED_OUT`.
        reason: What to tell, empty if all went well.
    """

    code: int
    reason: str


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
    grace = _GRACE
    read_end, write_end = os.pipe()  # the write end is closed when this process dies, however it does
    with tempfile.TemporaryDirectory(prefix="mxmp-") as folder:
        job = _Job(folder, timeout)
        try:
            for process in processes:
                job.start(process, read_end)
            try:
                return job.wait()
            except KeyboardInterrupt:
                grace = _SHORT_GRACE
                return job.interrupt()
        except KeyboardInterrupt:
            grace = _SHORT_GRACE
            raise
        finally:
            job.terminate(grace)
            os.close(read_end)
            os.close(write_end)
            job.flush(grace)


class _Job:
    """The processes that run; ``folder`` holds one for each, in which it says that it saves."""

    def __init__(self, folder: str, timeout: Optional[float]) -> None:
        self._folder, self._timeout = folder, timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._running: Dict[str, subprocess.Popen[bytes]] = {}
        self._echoes: List[threading.Thread] = []

    def start(self, process: Process, pipe: int) -> None:
        """Start a process that dies when the other end of the pipe is closed."""
        saving = self._saving_folder(process.name)
        os.mkdir(saving)
        # Without PYTHONUNBUFFERED what a process prints would come late, and be lost when it is ended.
        environment = {"PYTHONUNBUFFERED": "1", **os.environ, **process.environment, LAUNCHED: "1", FOLDER: saving}
        program = process.command[0]
        if shutil.which(program) is None:
            hint = f"; it is no executable, so write `python {program}`" if os.path.isfile(program) else ""
            raise LaunchError(f"{process.name}: cannot run {program!r}: there is no such command{hint}.")
        try:
            self._running[process.name] = started = subprocess.Popen(
                [*_DIE_WITH_PARENT, str(pipe), *process.command],
                pass_fds=[pipe],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a group of its own, to end with all that it starts
            )
        except OSError as e:
            raise LaunchError(f"{process.name}: cannot run {program!r}: {e.strerror}.") from e
        for source, target in ((started.stdout, sys.stdout), (started.stderr, sys.stderr)):
            self._echoes.append(threading.Thread(target=_echo, args=(process.name, source, target), daemon=True))
            self._echoes[-1].start()

    def wait(self) -> End:
        """Wait until the workers are done, or something fails."""
        end = self._end()
        while end is None:
            time.sleep(_POLL)
            end = self._end()
        return end

    def interrupt(self) -> End:
        """Send Ctrl-C to the workers, as a terminal would, and wait while one of them saves."""
        workers = {name: process for name, process in self._running.items() if name.startswith("worker")}
        pids = {name: process.pid for name, process in workers.items()}
        savers = SavingWorkers(pids, {name: self._saving_folder(name) for name in workers})
        for process in workers.values():
            _signal(process, signal.SIGINT)
        begin = last = time.monotonic()
        end, told = None, False
        while True:
            left = [name for name, process in workers.items() if process.poll() is None]
            end = end or self._end()  # the first to fail says how all ended
            saving = [name for name in savers.find() if name in left]
            now = time.monotonic()
            last = now if saving else last
            if not left or now - last > _IDLE or now - begin > _SAVING or (end and end.code == TIMED_OUT):
                return end or End(_SIGNALLED + signal.SIGINT, f"interrupted; ended {', '.join(left)}")
            if saving and not told and now - begin > _TELL:
                told = True
                names = ", ".join(saving)
                print(f"mxmp: waiting for {names} to save; Ctrl-C again ends all", file=sys.stderr, flush=True)
            time.sleep(_POLL)

    def terminate(self, grace: float) -> None:
        """End the groups of all processes: by SIGTERM, and after so many seconds by SIGKILL."""
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._running.values():
            _signal(process, signal.SIGKILL)  # a group may outlive its first process
            process.wait()

    def flush(self, seconds: float) -> None:
        """Wait until all that the processes printed is printed here, but no longer than so."""
        deadline = time.monotonic() + seconds
        for thread in self._echoes:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self) -> Optional[End]:
        """Return how the job has ended, None while it goes on."""
        codes = {name: process.poll() for name, process in self._running.items()}
        for name, code in codes.items():
            if code and code < 0:
                return End(_SIGNALLED - code, f"{name} was ended by {signal.Signals(-code).name}; ended the others")
            if code:
                return End(code, f"{name} failed with exit code {code}; ended the others")
        if all(code == 0 for name, code in codes.items() if name.startswith("worker")):
            return End(0, "")
        if self._deadline is not None and time.monotonic() > self._deadline:
            left = ", ".join(name for name, code in codes.items() if code is None)
            return End(TIMED_OUT, f"the job took longer than {self._timeout:g} s; ended {left}")
        return None

    def _saving_folder(self, name: str) -> str:
        return os.path.join(self._folder, name.replace(" ", "-"))


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


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _echo(name: str, source: IO[bytes], target: IO[str]) -> None:
    """Print the lines of a stream, each with a process's name in front, until it ends."""
    with source:
        for line in source:
            text = line.decode(errors="replace").rstrip("\n")
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more; the job goes on
                target.write(f"[{name}] {text}\n")
                target.flush()
