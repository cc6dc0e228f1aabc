"""The report of ``mxmp inspect``: what a policy decides about a network, or what a converted one contains."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, Mapping, NamedTuple, Optional, Tuple

from ... import dtypes
from ...diagnose.tensor_cores import Uneven, uneven_layers
from ...graph import Graph
from ...passes import Facts
from ...policy import Policy, check_matches
from ...report import Report, report_converted, variable_bytes
from ...symbol import Converted, convert_graph, convert_model, infer_facts, to_graph
from ...symbol.arguments import blaming_params, check_params, known_shapes, make_model, param_names
from ...symbol.params import Change, total_bytes, widened

Params = Tuple[Dict[str, Any], Dict[str, Any]]
"""Arguments and auxiliary states."""


class _Known(NamedTuple):
    """What is known about a network's variables, as ``convert_graph`` takes it."""

    shapes: Dict[str, Tuple[int, ...]]
    types: Dict[str, str]
    params: FrozenSet[str]


@dataclass(frozen=True)
class Inspection:
    """What there is to show about a network.

    Attributes:
        report: Every operator, and the totals.
        changes: What storing parameters in low precision would do to their values.
        out_of_range: Names of the parameters with values beyond its range whose readers would stay in float32.
        uneven: The float16 layers whose sizes, as far as they are known, do not fill tensor cores.
        widened: The dtypes of parameters that are stored in low precision and would be in float32, by name.
    """

    report: Report
    changes: Tuple[Change, ...] = ()
    out_of_range: Tuple[str, ...] = ()
    uneven: Tuple[Uneven, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)


def inspect_policy(
    symbol: Any, params: Optional[Params], policy: Policy, shapes: Mapping[str, Any], types: Mapping[str, str]
) -> Inspection:
    """Return what a policy decides about a network.

    Raises:
        MxmpError: As ``convert_model``.
    """
    model = None if params is None else convert_model(symbol, *params, policy, shapes, types)
    known = _known(symbol, params, shapes, types)
    before = convert_graph(symbol, Policy(), *known)
    if model is not None:
        report = replace(model.report, param_bytes=model.param_bytes)
        return Inspection(report, model.changes, model.out_of_range, _uneven(report, before, params), model.widened)
    found = convert_graph(symbol, policy, *known, final=True)
    check_matches(policy, [(row.op, row.name) for row in found.report.rows])
    sizes = _param_bytes(symbol, known.params, (before.graph, before.facts), (found.graph, found.facts))
    report = replace(found.report, param_bytes=sizes)
    return Inspection(report, uneven=_uneven(report, before, params))


def inspect_converted(
    symbol: Any, params: Optional[Params], shapes: Mapping[str, Any], types: Mapping[str, str]
) -> Inspection:
    """Return the precisions and casts of a network that was converted before.

    Raises:
        MxmpError: If the parameters do not fit it, or it does not type-check.
    """
    known = _known(symbol, params, shapes, types)
    with blaming_params(symbol, {**params[0], **params[1]} if params else {}, known_shapes(symbol, shapes)):
        before = convert_graph(symbol, Policy(), *known)  # in float32, which takes out the casts
    graph = to_graph(symbol)
    facts = infer_facts(symbol, graph, known.shapes, _undeclared(graph, before), known.params)
    views = (before.graph, before.facts), (graph, facts)
    if params is None:
        sizes = _param_bytes(symbol, known.params, *views)
    else:
        args, aux = params
        sizes = total_bytes({**widened(symbol, args), **aux}), total_bytes({**args, **aux})
    report = replace(report_converted(*views[0], *views[1]), param_bytes=sizes)
    return Inspection(report, uneven=_uneven(report, before, params))


def _uneven(report: Report, before: Converted, params: Optional[Params]) -> Tuple[Uneven, ...]:
    """Return the layers to name, from a network's report, its graph without casts and what is stored."""
    layers = {(row.name, row.op) for row in report.rows if row.precision == dtypes.FLOAT16}
    arrays = {} if params is None else {**params[0], **params[1]}
    nodes = enumerate(before.graph.nodes)
    stored = {(i, 0): tuple(arrays[n.name].shape) for i, n in nodes if n.is_variable and n.name in arrays}
    facts = replace(before.facts, shapes={**before.facts.shapes, **stored})
    return uneven_layers(before.graph, facts, layers)


def _known(symbol: Any, params: Optional[Params], shapes: Mapping[str, Any], types: Mapping[str, str]) -> _Known:
    """Return what is known about a network's variables once casts are taken out, as ``convert_model`` does."""
    model = make_model(symbol, shapes, types)
    if params is None:
        return _Known(model.shapes, model.dtypes, param_names(symbol, model.shapes, None))
    args, aux = widened(symbol, params[0]), params[1]
    check_params(symbol, args, aux, model.shapes)
    return _Known(*model.known(args, aux), frozenset(args))


def _undeclared(graph: Graph, before: Converted) -> Dict[str, str]:
    """Return the dtypes of the variables that leave theirs to be inferred: the same as without casts."""
    declared = {node.name for node in graph.nodes if node.declares_dtype}
    found = before.facts.variable_dtypes(before.graph)
    return {name: dtype for name, dtype in found.items() if name not in declared}


def _param_bytes(
    symbol: Any, params: FrozenSet[str], before: Tuple[Graph, Facts], after: Tuple[Graph, Facts]
) -> Optional[Tuple[int, int]]:
    names = params | frozenset(symbol.list_auxiliary_states())
    old, new = variable_bytes(*before, names), variable_bytes(*after, names)
    return None if old is None or new is None else (old, new)
