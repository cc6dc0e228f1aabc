"""``mxmp doctor``, ``build``, ``run`` and ``launch``: this machine, and programs and jobs on it."""

from __future__ import annotations

import functools
import os
import pkgutil
import runpy
import signal
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any, Callable, NoReturn, Optional, Sequence

import click

from .. import dtypes
from .. import launch as jobs
from .options import Number, WholeNumber, console, give, make_policy, require_new, result_options

_REPLACED = "mxnet.contrib.amp"
_COUNT = WholeNumber(min=1)


@click.command()
@click.option("--policy", "text", default="auto", show_default=True, help="The policy; its compute dtype counts.")
@result_options
@click.pass_context
def doctor(ctx: click.Context, text: str, out: Optional[str], force: bool, as_json: bool) -> None:
    """Say which policies this machine runs in hardware.

    Looks at the versions, the devices and the environment variables that matter, and names the remedy of each fault.
    If the processor runs bfloat16, its speed is measured and compared with float32's. The exit code is 1 if no device
    runs the policy in hardware, as float16 on a machine without a GPU. The policy 'auto' is the fastest one on this
    machine.

    \b
    Example:
      mxmp doctor --policy mixed_bfloat16
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    policy = make_policy(text)
    if out is not None:
        require_new(out, force=force)
    from .. import diagnose

    found = diagnose.doctor(policy)
    give(found, out, as_json, lambda: console().print(found))
    ctx.exit(0 if found.ok else 1)


@click.command()
def build() -> None:
    """Compile an operator that makes emulated float16 faster.

    On a CPU mxmp emulates float16: it computes in float32 and rounds each result to float16. MXNet's casts round. In
    programs that start after this command, the operator rounds, with the same bits. Compiling takes about ten seconds,
    and a C++ compiler (CXX, c++ or g++). The operator is tried on a network before it is kept. The file is for this
    version of MXNet and of mxmp. It is kept in the folder mxmp of $XDG_CACHE_HOME, or of ~/.cache. Delete it to let
    the casts round again.

    \b
    Example:
      mxmp build
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    from ..rounding.build import build

    click.echo(f"kept: {build()}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("args", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for `python -m`.")
@click.option(
    "--amp",
    type=click.Choice(dtypes.LOW_PRECISION),
    help="Replace mxnet.contrib.amp by mxmp.amp for SCRIPT. The dtype is the default of its init().",
)
@click.pass_context
def run(ctx: click.Context, script: str, args: Sequence[str], is_module: bool, amp: Optional[str]) -> NoReturn:
    """Run a Python script with mxmp imported first.

    MXNet 1.9.1 needs numpy below 1.24 and Python below 3.12. With newer ones it can be imported only after mxmp. This
    command imports mxmp for a script that you cannot change. Arguments, exit codes, tracebacks and Ctrl-C are as with
    `python SCRIPT`. All arguments after SCRIPT are the script's.

    With --amp a script or library that uses `mxnet.contrib.amp` gets `mxmp.amp` instead, without an edit.

    Python processes that the script starts (subprocess, multiprocessing with 'spawn') are not changed.

    \b
    Examples:
      mxmp run train.py --epochs 10
      mxmp run -m package.train --epochs 10
      mxmp run --amp float16 -m sockeye.train --amp ...
      mxmp launch -n 2 mxmp run train.py
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if not is_module and not os.path.exists(script):
        hint = "; write `-m` before the name of a module" if "/" not in script and not script.endswith(".py") else ""
        raise click.BadParameter(f"there is no file {script!r}{hint}.", ctx, param_hint="'SCRIPT'")
    if amp is not None:
        sys.meta_path.insert(0, _AmpFinder(amp))  # before Python's finders, which would find MXNet's module.
    raise Program(script, args, is_module)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--workers", type=_COUNT, required=True, metavar="N", help="How many processes run COMMAND.")
@click.option(
    "-s", "--servers", type=_COUNT, default=1, show_default=True, metavar="N", help="How many servers add up gradients."
)
@click.option(
    "--timeout",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="End the job after this time.",
)
@click.option("--host", default=jobs.LOOPBACK, show_default=True, help="The address of this machine to listen on.")
@click.option("--hosts", metavar="A,B,...", help="Addresses of several machines: print the commands for each.")
@click.option(
    "--port",
    type=WholeNumber(1, 65535),
    metavar="PORT",
    help="The first port. Unless given: free ports, with --hosts 9091.",
)
@click.pass_context
def launch(
    ctx: click.Context,
    command: Sequence[str],
    workers: int,
    servers: int,
    timeout: Optional[float],
    host: str,
    hosts: Optional[str],
    port: Optional[int],
) -> None:
    """Run COMMAND as a job of several workers.

    The workers train together with the kvstore 'dist_sync', on this machine. MXNet's scheduler and servers are started
    too. Each printed line begins with the name of its process. When a process fails, all others are ended, and its exit
    code is that of mxmp. The exit code 124 says that the job took too long. All workers have to make the same number of
    steps, because a worker waits for the others in each step. PYTHONUNBUFFERED is set to 1 unless it is set.

    Ctrl-C goes to the workers, which have ten seconds to save and end. A second Ctrl-C ends all processes.

    \b
    Example:
      mxmp launch -n 2 python train.py --epochs 10
    """  # noqa: D301 - click keeps the lines behind its mark as they are
    if hosts is not None:
        if timeout is not None or host != jobs.LOOPBACK:
            raise click.UsageError("--hosts only prints commands; leave --timeout and --host out.", ctx)
        addresses = [address.strip() for address in hosts.split(",")]
        _print_commands(jobs.plan_processes(command, workers, servers, addresses, port or 9091), addresses)
        return
    # SIGTERM ends this program only after it has ended all processes.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        result = jobs.run(jobs.plan_processes(command, workers, servers, [host], port), timeout)
    finally:
        signal.signal(signal.SIGTERM, before)
    if result.reason:
        click.echo(f"mxmp: {result.reason}.", err=True)
    ctx.exit(result.code)


def _print_commands(processes: Sequence[jobs.Process], addresses: Sequence[str]) -> None:
    # The commands of one machine are one script, to be pasted there. An address may be named twice.
    for address in dict.fromkeys(addresses):
        click.echo(f"# on {address}")
        for process in processes:
            if process.host == address:
                click.echo(f"{process} &  # {process.name}")
        click.echo("wait")


class Program(BaseException):
    """A program to run instead of the command line. Raising it leaves all functions of the command line first.

    The program is a file, a folder or zip file with a ``__main__.py``, or the name of a module.
    """

    def __init__(self, name: str, args: Sequence[str], is_module: bool = False) -> None:
        super().__init__(name)
        self._name, self._args, self._is_module = name, args, is_module

    def run(self) -> NoReturn:
        """Run the program as ``__main__`` and end the process.

        An error shows only the frames of the program, as under Python.
        """
        self.__traceback__ = None  # It holds the frames of the command line.
        # The full path, as in Python's `__file__`, because the script may change the folder.
        name = self._name if self._is_module else os.path.join(os.getcwd(), self._name)
        sys.argv[:] = [name, *self._args]
        if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # -I; -P of Python 3.11 and later.
            # The program's folder replaces the command line's. For a folder or zip file runpy adds it.
            is_file = not self._is_module and pkgutil.get_importer(name) is None
            sys.path[:1] = [os.path.dirname(os.path.realpath(name))] if is_file else [os.getcwd()] * self._is_module
        try:
            if self._is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit:
            raise
        except BaseException as e:
            sys.excepthook = _hook(sys.excepthook, e.__traceback__)
            raise
        sys.exit()


def _hook(hook: Callable[..., Any], traceback: Optional[TracebackType]) -> Callable[..., Any]:
    """Return a hook for uncaught errors that leaves the frames of mxmp and runpy out of the traceback."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
        traceback = traceback.tb_next

    def show(kind: Any, error: BaseException, _: Any) -> None:
        hook(kind, error.with_traceback(traceback), traceback)

    return show


class _AmpFinder:
    """Finds ``mxnet.contrib.amp`` before Python's own finders do, and fills it with the names of `mxmp.amp`.

    It works when the program imports the module, so that the program runs before MXNet is imported.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def find_spec(self, name: str, path: Any = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        """Return the spec of ``mxnet.contrib.amp`` and its parts, None for others."""
        if name != _REPLACED and not name.startswith(_REPLACED + "."):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the names of ours; an ImportError for a part that mxmp lacks."""
        part = module.__name__[len(_REPLACED) :]
        from .. import amp

        ours = amp if part == ".amp" else import_module(f"mxmp.amp{part}")  # contrib's functions are in amp.amp
        names = vars(module)
        names.update((name, value) for name, value in vars(ours).items() if not name.startswith("_"))
        names["__file__"] = ours.__file__
        if "init" in names:

            @functools.wraps(amp.init)
            def init(target_dtype: Any = self._dtype, *args: Any, **kwargs: Any) -> None:
                amp.init(target_dtype, *args, **kwargs)

            names["init"] = init
        if ours is amp:
            names["__getattr__"] = lambda name: _private(module, name)


def _private(module: ModuleType, name: str) -> bool:
    """Return contrib.amp's private ``_amp_initialized``, by which GluonNLP chooses the value of masked scores."""
    if name == "_amp_initialized":
        from ..amp.contrib import installed_hook

        return installed_hook() is not None
    raise AttributeError(f"module {module.__name__!r}, which is mxmp.amp here, has no attribute {name!r}")
