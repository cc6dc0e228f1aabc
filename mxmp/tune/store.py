"""Plans that were stored: loaded where they hold, refused elsewhere."""

from __future__ import annotations

import os
from typing import AbstractSet, Any, FrozenSet, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..dtypes import canonical
from ..errors import CheckpointError, TuneError
from ..policy import Policy
from ..symbol.arguments import LABEL_SUFFIX, label_names
from .holds import Named, Shapes, digest
from .result import TRAINING, TuneResult
from .speed.gluon_net import Forward
from .speed.problem import Workload
from .speed.workloads import make_workload, symbol_of


def load(
    path: str,
    net_or_model: Any = None,
    batches: Any = None,
    *,
    shapes: Optional[Mapping[str, Any]] = None,
    dtypes: Optional[Mapping[str, Any]] = None,
    forward: Optional[Forward] = None,
) -> TuneResult:
    """Return the tuned plan in a file, if it holds here.

    Processor, AMX, the environment variables of threads, and MXNet's build are compared always; network, shapes and
    dtypes if they are given, and with batches how the network is run. ``load(path).policy`` is what `convert` takes.

    Args:
        path: A file that `TuneResult.save`, ``tune(..., store=path)`` or ``mxmp tune -o`` wrote.
        net_or_model: The network that it is to be used for, as for `tune`, or a symbol alone.
        batches: Batches, as for `tune`; of a Gluon net they are needed to see its graph.
        shapes: The shapes of the inputs by name, in place of batches; those of labels do not count.
        dtypes: Dtypes of inputs by name, likewise; those that are not named count as the plan's.
        forward: As for `tune`.

    Raises:
        TuneError: If the file is missing or damaged, or the plan does not hold here; the message names all that
            differs. If both batches and shapes or dtypes are given.
        DtypeError: If one of the dtypes is unknown.
    """
    for name, given in (("shapes", shapes), ("dtypes", dtypes)):
        if batches is not None and given is not None:
            raise TuneError(f"{name}: the batches tell the {name} of the inputs already; give one of the two.")
    plan = read_plan(file_name("path", path))
    if batches is not None:
        workload = make_workload(net_or_model, batches, plan.objective == TRAINING, plan.for_inference, forward)
        different = workload_differences(plan, workload)
    else:
        symbol = None if net_or_model is None else _symbol_of(net_or_model)
        labels: FrozenSet[str] = frozenset() if symbol is None else label_names(symbol)
        network = None if symbol is None else digest([symbol])
        known = None if shapes is None else _data_shapes(shapes, plan, labels)
        found = None if dtypes is None else _data_dtypes(dtypes, plan, labels)
        different = plan.holds_for.differences(known, network, found)
    if different:
        raise TuneError(f"{path}: the plan does not hold here. {'; '.join(different)}. Tune again here.")
    return plan


def workload_differences(plan: TuneResult, workload: Workload) -> List[str]:
    """Return a phrase for each thing in which a workload, here, is not what a plan holds for."""
    network = digest(workload.symbols)
    return plan.holds_for.differences(workload.shapes, network, workload.dtypes, workload.options)


def _symbol_of(network: Any) -> Any:
    """Return the symbol of a network that has one."""
    if isinstance(network, gluon.Block):
        raise TuneError("batches: give one, with which the net is called once: its graph is not known before.")
    return network.symbol if isinstance(network, mx.mod.Module) else symbol_of(network)


def _data_shapes(shapes: Mapping[str, Any], plan: TuneResult, labels: AbstractSet[str]) -> Shapes:
    """Return the shapes of inputs without those of labels, which a plan does not have."""
    known = plan.holds_for.shapes
    try:
        found = {str(name): tuple(map(int, shape)) for name, shape in dict(shapes).items()}
    except (TypeError, ValueError):
        raise TuneError(f"shapes is {shapes!r}; expected shapes by the names of inputs, {{'data': (8, 3)}}.") from None
    return {name: shape for name, shape in found.items() if _is_data(name, known, labels)}


def _data_dtypes(types: Mapping[str, Any], plan: TuneResult, labels: AbstractSet[str]) -> Optional[Named]:
    """Return the dtypes of a plan's inputs with those in their place that are given, None if it does not say."""
    known = plan.holds_for.dtypes
    if not isinstance(types, Mapping):
        raise TuneError(f"dtypes is {types!r}; expected dtypes by the names of inputs, {{'data': 'int32'}}.")
    found = {name: canonical(dtype) for name, dtype in types.items()}
    return known and {**known, **{name: dtype for name, dtype in found.items() if _is_data(name, known, labels)}}


def _is_data(name: str, known: Mapping[str, Any], labels: AbstractSet[str]) -> bool:
    """Return whether an input is none of the labels that a plan does not have."""
    return name in known or not (name in labels or name.endswith(LABEL_SUFFIX))


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
    different += workload_differences(plan, workload)
    return (None, different) if different else (plan, [])
