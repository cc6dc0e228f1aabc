"""The processes of a job on this machine, with MXNet's parameter server or with Horovod."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence

import click
from mxmp.launch import LOOPBACK, End, Process, plan, run


class Engine(NamedTuple):
    """What sums gradients.

    Attributes:
        kvstore: What the workers have to ask for.
        processes: Gives the processes of a job, from the command and the number of workers, to be
            run while it is a context manager.
    """

    kvstore: str
    processes: Any


def run_job(engine: str, workers: int, command: Sequence[str], environment: Mapping[str, str]) -> End:
    """Run a command in several processes; Ctrl-C is handed on to them, a second one ends all.

    Args:
        engine: One of `ENGINES`.
        workers: How many.
        command: What each runs, but for ``--kvstore``.
        environment: Variables for all.

    Raises:
        click.ClickException: If the engine is not installed.
    """
    kvstore, make = ENGINES[engine]
    with make([*command, "--kvstore", kvstore], workers) as processes:
        return run([each._replace(environment={**each.environment, **environment}) for each in processes])


@contextlib.contextmanager
def _mxnet(command: Sequence[str], workers: int) -> Iterator[List[Process]]:
    yield plan(command, workers)


@contextlib.contextmanager
def _horovod(command: Sequence[str], workers: int) -> Iterator[List[Process]]:
    """Do what ``horovodrun --gloo`` does; that one hands Ctrl-C on as the end of all, and tells of it at length."""
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
        from horovod.runner.http.http_server import RendezvousServer
    except ImportError as e:
        raise click.ClickException(
            f"--engine horovod: Horovod is not installed ({e}); `make test-horovod` builds it for MXNet in "
            ".venv-horovod, and tools/horovod.sh says how. --engine mxnet needs nothing."
        ) from e
    slots = get_host_assignments(parse_hosts(f"localhost:{workers}"), workers)
    server = RendezvousServer()
    shared = create_run_env_vars(LOOPBACK, ["lo"], server.start())
    try:
        server.init(slots)
        yield [
            Process(f"worker {slot.rank}", LOOPBACK, command, _texts({**shared, **create_slot_env_vars(slot)}))
            for slot in slots
        ]
    finally:
        server.stop()


def _texts(values: Mapping[str, Any]) -> Dict[str, str]:
    return {name: str(value) for name, value in values.items()}


ENGINES: Dict[str, Engine] = {"mxnet": Engine("dist_sync", _mxnet), "horovod": Engine("horovod", _horovod)}
