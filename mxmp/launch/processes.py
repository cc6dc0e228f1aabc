"""The processes of a job with MXNet's parameter server: what each runs, and with which environment."""

from __future__ import annotations

import contextlib
import ipaddress
import shlex
import socket
import sys
from typing import List, Mapping, NamedTuple, Optional, Sequence

from ..errors import LaunchError

LOOPBACK = "127.0.0.1"


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
    ports = _ports(hosts[0], port, 1 + servers + workers)
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


def _ports(host: str, first: Optional[int], count: int) -> List[int]:
    """Return as many ports, from the first one on or, without one, free ones of a host."""
    if first is None:
        return free_ports(host, count)
    if not 0 < first <= 65536 - count:
        raise LaunchError(f"port {first}: the job needs {count} ports from there; give one from 1 to {65536 - count}.")
    return list(range(first, first + count))


def _check_address(host: str) -> None:
    try:
        known = not ipaddress.IPv4Address(host).is_unspecified
    except ValueError:
        known = False
    if not known:
        raise LaunchError(f"host {host!r}: MXNet's processes listen on and are found by an IPv4 address; give one.")
