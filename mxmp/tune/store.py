"""Plans that were stored: loaded where they hold, refused elsewhere."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import gluon

from ..errors import CheckpointError, TuneError
from ..policy import Policy
from .holds import Shapes, digest
from .result import TRAINING, TuneResult
from .speed.gluon_net import Forward
from .speed.problem import Workload
from .speed.workloads import LABEL, make_workload, symbol_of


def load(
    path: str,
    net_or_model: Any = None,
    batches: Any = None,
    *,
    shapes: Optional[Mapping[str, Any]] = None,
    forward: Optional[Forward] = None,
) -> TuneResult:
    """Return the tuned plan in a file, if it holds here.

    Processor, AMX, the environment variables of threads, and MXNet's build are compared always; network and shapes if
    they are given. ``load(path).policy`` is what `convert` takes.

    Args:
        path: A file that `TuneResult.save`, ``tune(..., store=path)`` or ``mxmp tune -o`` wrote.
        net_or_model: The network that it is to be used for, as for `tune`, or a symbol alone.
        batches: Batches, as for `tune`; of a Gluon net they are needed to see its graph.
        shapes: The shapes of the inputs by name, in place of batches; those of labels do not count.
        forward: As for `tune`.

    Raises:
        TuneError: If the file is missing or damaged, or the plan does not hold here; the message names all that
            differs. If both batches and shapes are given.
    """
    if batches is not None and shapes is not None:
        raise TuneError("shapes: the batches tell the shapes of the inputs already; give one of the two.")
    plan = read_plan(file_name("path", path))
    symbols: Optional[Sequence[Any]] = None
    if batches is not None:
        workload = make_workload(net_or_model, batches, plan.objective == TRAINING, plan.for_inference, forward)
        shapes, symbols = workload.shapes, workload.symbols
    elif net_or_model is not None:
        symbols = [_symbol_of(net_or_model)]
    network = None if symbols is None else digest(symbols)
    different = plan.holds_for.differences(None if shapes is None else _data_shapes(shapes, plan), network)
    if different:
        raise TuneError(f"{path}: the plan does not hold here. {'; '.join(different)}. Tune again here.")
    return plan


def _symbol_of(network: Any) -> Any:
    """Return the symbol of a network that has one."""
    if isinstance(network, gluon.Block):
        raise TuneError("batches: give one, with which the net is called once: its graph is not known before.")
    return network.symbol if isinstance(network, mx.mod.Module) else symbol_of(network)


def _data_shapes(shapes: Mapping[str, Any], plan: TuneResult) -> Shapes:
    """Return the shapes of inputs without those of labels, which a plan does not have."""
    known = plan.holds_for.shapes
    try:
        found = {str(name): tuple(map(int, shape)) for name, shape in dict(shapes).items()}
    except (TypeError, ValueError):
        raise TuneError(f"shapes is {shapes!r}; expected shapes by the names of inputs, {{'data': (8, 3)}}.") from None
    return {name: shape for name, shape in found.items() if name in known or not name.endswith(LABEL)}


def file_name(argument: str, path: Any) -> str:
    """Return a path as text, or raise a TuneError that names the argument."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TuneError(f"{argument} is a {type(path).__name__}; expected the name of a file.") from None


def require_writable(path: str) -> None:
    """Raise a CheckpointError, before anything is measured, if a plan cannot be written to a file."""
    file = os.path.realpath(path)
    for each in (os.path.dirname(file), file):
        if os.path.lexists(each) and not os.access(each, os.W_OK):
            raise CheckpointError(f"{path}: {each} is write-protected; give another file to store.")


def read_plan(path: str) -> TuneResult:
    """Return the plan in a file, whatever it holds for; a TuneError begins with the file's name."""
    try:
        with open(path, encoding="utf-8") as file:
            return TuneResult.from_json(file.read())
    except FileNotFoundError:
        raise TuneError(f"{path}: there is no such file; `mxmp tune -o` or tune(..., store=...) writes it.") from None
    except UnicodeDecodeError:
        raise TuneError(f"{path}: this is no tuned plan of mxmp: it is no text.") from None
    except OSError as e:
        raise TuneError(f"{path}: it cannot be read: {e.strerror or e}") from e
    except TuneError as e:
        raise TuneError(f"{path}: {e}") from e


def stored_plan(
    path: str, workload: Workload, policy: Policy, objective: str, for_inference: bool, searched: bool = False
) -> Tuple[Optional[TuneResult], List[str]]:
    """Return the plan in a file if it holds for a workload and was tuned for the same, else None and what differs.

    A file that is not there holds no plan; TuneError if it is something else than a plan. ``searched`` says that a
    search within a tolerance may have added name overrides to the policy that the plan began with.
    """
    if not os.path.lexists(path):
        return None, []
    try:
        plan = read_plan(path)
    except TuneError as e:
        raise TuneError(f"{e} Nothing is written over it: give another file to store, or remove this one.") from e
    asked = {"policy": policy, "objective": objective, "for_inference": for_inference}
    begun = plan.untuned.replace(names=policy.names) if searched else plan.untuned
    had = {"policy": begun, "objective": plan.objective, "for_inference": plan.for_inference}
    different = [f"{name}: found {asked[name]}, expected {had[name]}" for name in asked if asked[name] != had[name]]
    different += plan.holds_for.differences(workload.shapes, digest(workload.symbols))
    return (None, different) if different else (plan, [])
