"""The processes of a job on this machine, with MXNet's parameter server or with Horovod."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Mapping, Sequence

import click
from mxmp.launch import LOOPBACK, End, Process, plan, run


def run_job(engine: str, workers: int, command: Sequence[str], environment: Mapping[str, str]) -> End:
    """Run a command in several processes; Ctrl-C is handed on to them, a second one ends all.

    Args:
        engine: One of `ENGINES`.
        workers: How many.
        command: What each runs, but for ``--kvstore``.
        environment: Variables for all.
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
        variables = [{**shared, **create_slot_env_vars(slot)} for slot in slots]
        texts = [{name: str(value) for name, value in each.items()} for each in variables]
        yield [Process(f"worker {slot.rank}", LOOPBACK, command, each) for slot, each in zip(slots, texts)]
    finally:
        server.stop()


ENGINES = {"mxnet": ("dist_sync", _mxnet), "horovod": ("horovod", _horovod)}
"""What sums gradients: by name the kvstore that workers ask for, and what gives their processes while it is entered."""
