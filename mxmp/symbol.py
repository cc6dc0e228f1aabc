"""MXNet symbols to graphs and back, and what MXNet infers about them.

The one place where the engine meets MXNet: facts are gathered here, and the result of a
conversion is checked here with MXNet's own type inference.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

import mxnet as mx

from . import dtypes
from .errors import ConvertError, InferenceError
from .graph import Entry, Graph, from_json, to_json
from .passes import Emulate, EraseCasts, Facts, FoldCasts, GuardAmpCasts, InsertCasts, Sequential
from .policy import Policy
from .report import Report, make_report

Shapes = Mapping[str, Tuple[int, ...]]
Dtypes = Mapping[str, str]

_OPERATOR = re.compile(r"Error in operator ([^:]+):")


def to_graph(symbol: Any) -> Graph:
    """Return a symbol's graph, amp_cast nodes included (MXNet's own ``tojson()`` drops them)."""
    return from_json(symbol.tojson(remove_amp_cast=False))


def from_graph(graph: Graph, like: Any = None) -> Any:
    """Return the symbol of a graph; a numpy symbol if ``like`` is one."""
    symbol = mx.sym.load_json(to_json(graph))
    return symbol.as_np_ndarray() if isinstance(like, mx.sym.numpy._Symbol) else symbol


def infer_facts(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Facts:
    """Return what MXNet infers about the entries of a symbol's graph.

    Args:
        symbol: The symbol.
        graph: Its graph, as ``to_graph`` gives it.
        shapes: Known shapes of variables; with none, shapes are left unknown.
        types: Known dtypes of variables.
        params: Names of the variables that are parameters.

    Raises:
        InferenceError: If MXNet's inference fails; the message names the node.
    """
    internals = symbol.get_internals()
    heads = [Entry(*head) for head in json.loads(internals.tojson(remove_amp_cast=False))["heads"]]
    keys = [(head.node, head.index) for head in heads]
    # MXNet cannot be told that an input is bfloat16 (python/mxnet/symbol/symbol.py looks it up by
    # numpy type, which bfloat16 has none of); the variable's own __dtype__ says it.
    known = {name: dtypes.to_numpy(t) for name, t in types.items() if t != dtypes.BFLOAT16}
    found = _infer(internals.infer_type_partial, known, "dtypes")
    sizes = _infer(internals.infer_shape_partial, dict(shapes), "shapes") if shapes else None
    return Facts(
        dtypes={key: dtypes.canonical(t) for key, t in zip(keys, found or ()) if t is not None},
        shapes={key: tuple(s) for key, s in zip(keys, sizes or ()) if s},
        output_names=dict(zip(keys, internals.list_outputs())),
        params=params,
    )


def _infer(function: Any, known: Dict[str, Any], what: str) -> Any:
    try:
        return function(**known)[1]
    except mx.base.MXNetError as e:
        match = _OPERATOR.search(str(e))
        node = f"node '{match.group(1)}'" if match else "the network"
        last = [line for line in str(e).splitlines() if line.strip()][-1]
        raise InferenceError(f"{node}: MXNet cannot infer its {what}: {last.strip()}") from e


@dataclass(frozen=True)
class Converted:
    """A converted graph with all that is known about it.

    Attributes:
        symbol: The converted symbol, for plain MXNet.
        graph: Its graph.
        facts: What MXNet infers about it.
        low_params: Names of the parameters that it wants in low precision.
        report: What was decided.
    """

    symbol: Any
    graph: Graph
    facts: Facts
    low_params: FrozenSet[str]
    report: Report

    def on_cpu(self) -> Any:
        """Return the symbol that runs on CPU: float16 emulated, bfloat16 casts guarded. Never saved."""
        result = Sequential((Emulate(self.facts), GuardAmpCasts()))(self.graph)
        return from_graph(result.graph, self.symbol) if result.modified else self.symbol


def convert_graph(
    symbol: Any,
    policy: Policy,
    shapes: Optional[Shapes] = None,
    types: Optional[Dtypes] = None,
    params: FrozenSet[str] = frozenset(),
    stored: FrozenSet[str] = frozenset(),
) -> Converted:
    """Convert a symbol: erase earlier casts, insert and fold new ones, and check the result.

    Args:
        symbol: A float32 network, or one that mxmp converted before.
        policy: The policy.
        shapes: Shapes of the inputs; without them casts are counted in place of bytes.
        types: Dtypes of the inputs; float32 unless given here or declared by the variable.
        params: Names of the variables that are parameters.
        stored: Names of those that are stored in low precision already.

    Raises:
        InferenceError: If the network does not type-check by itself; it names the node.
        ConvertError: If its conversion does not; likewise.
        PolicyError: If an override cannot be met.
    """
    shapes = shapes or {}
    erased = EraseCasts()(to_graph(symbol))
    source = from_graph(erased.graph, symbol) if erased.modified else symbol
    graph = to_graph(source) if erased.modified else erased.graph
    types = _input_dtypes(source, graph, shapes, types or {}, params)
    facts = infer_facts(source, graph, shapes, types, params)
    insertion = InsertCasts(policy, facts, stored=stored)
    plan = insertion.plan(graph)
    after = FoldCasts()(insertion(graph).graph).graph
    result = from_graph(after, symbol)
    after = to_graph(result)  # in the order that MXNet writes
    low_params = frozenset(graph.nodes[position].name for position in plan.low_params)
    types = _variable_dtypes(graph, facts, low_params)
    try:
        new_facts = infer_facts(result, after, shapes, types, params)
    except InferenceError as e:
        raise ConvertError(f"the converted network does not type-check: {e}") from e
    _check_outputs(policy, (graph, facts), (after, new_facts))
    return Converted(result, after, new_facts, low_params, make_report(policy, graph, facts, plan, after))


def _input_dtypes(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Dtypes:
    """Return the dtypes of variables, float32 for those that neither declare nor imply another.

    Inputs come first, since MXNet infers the dtypes of parameters from them; what is unknown
    even then is float32 too.
    """
    undeclared = {node.name for node in graph.nodes if node.is_variable and node.get("__dtype__") in (None, "-1")}
    inputs = {name for name in undeclared - params if name in shapes or params}
    known = {**{name: dtypes.FLOAT32 for name in inputs}, **types}
    rest = undeclared - set(known)
    if rest:
        facts = infer_facts(symbol, graph, {}, known, params)
        unknown = [
            node.name
            for position, node in enumerate(graph.nodes)
            if node.name in rest and node.is_variable and facts.dtype(Entry(position)) is None
        ]
        known.update((name, dtypes.FLOAT32) for name in unknown)
    return known


def _variable_dtypes(graph: Graph, facts: Facts, low_params: FrozenSet[str]) -> Dtypes:
    """Return what MXNet inferred for the variables; a cast behind one hides it from inference."""
    found = {node.name: facts.dtype(Entry(i)) for i, node in enumerate(graph.nodes) if node.is_variable}
    return {name: dtype for name, dtype in found.items() if dtype is not None and name not in low_params}


def _check_outputs(policy: Policy, before: Tuple[Graph, Facts], after: Tuple[Graph, Facts]) -> None:
    for number, (old, new) in enumerate(zip(before[0].heads, after[0].heads)):
        was, found = before[1].dtype(old), after[1].dtype(new)
        expected = policy.output_dtype if was == dtypes.FLOAT32 and policy.is_mixed else was
        if found != expected and was is not None:
            raise ConvertError(
                f"node {after[0].nodes[new.node]}: output {number} of the converted network is {found}, expected "
                f"{expected}; this is a bug in mxmp."
            )
