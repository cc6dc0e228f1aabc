"""MXNet symbols to graphs and back, and what MXNet infers about them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

import mxnet as mx

from .. import dtypes
from ..errors import InferenceError, mxnet_reason
from ..graph import Graph, from_json, to_json
from ..mxnet_private.arrays import NumpySymbol
from ..passes import Facts
from ..passes.control_flow import Body, bodies_of

Shapes = Mapping[str, Tuple[int, ...]]
Dtypes = Mapping[str, str]

_OPERATOR = re.compile(r"Error in operator ([^:]+):")


def to_graph(symbol: Any) -> Graph:
    """Return a symbol's graph, amp_cast nodes included (MXNet's own ``tojson()`` drops them)."""
    return from_json(symbol.tojson(remove_amp_cast=False))


def from_graph(graph: Graph, like: Any = None) -> Any:
    """Return the symbol of a graph; a numpy symbol if ``like`` is one."""
    symbol = mx.sym.load_json(to_json(graph))
    return symbol.as_np_ndarray() if isinstance(like, NumpySymbol) else symbol


def infer_facts(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Facts:
    """Return what MXNet infers about the entries of a symbol's graph and of its bodies.

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
    keys = _entries(internals)
    # MXNet cannot be told that an input is bfloat16 (python/mxnet/symbol/symbol.py looks it up by
    # numpy type, which bfloat16 has none of); the variable's own __dtype__ says it.
    known = {name: dtypes.to_numpy(t) for name, t in types.items() if t != dtypes.BFLOAT16}
    found = _infer(internals.infer_type_partial, known, "dtypes")
    sizes = _infer(internals.infer_shape_partial, dict(shapes), "shapes") if shapes else None
    facts = Facts(
        dtypes={key: dtypes.canonical(t) for key, t in zip(keys, found or ()) if t is not None},
        shapes={key: tuple(s) for key, s in zip(keys, sizes or ()) if s},
        output_names=dict(zip(keys, internals.list_outputs())),
        params=params,
    )
    bodies = _infer_bodies(graph, facts)
    return replace(facts, bodies=bodies) if bodies else facts


class ShapeInference:
    """The shape inference of one symbol for one set of shapes after the other.

    Args:
        symbol: The symbol.
        graph: Its graph, as ``to_graph`` gives it.
        facts: What is known beside shapes; for the shapes in bodies of control flow the dtypes of what
            they read.
    """

    def __init__(self, symbol: Any, graph: Graph, facts: Facts) -> None:
        self._graph, self._known = graph, facts
        self._internals = symbol.get_internals()
        self._keys = _entries(self._internals)

    def __call__(self, shapes: Shapes) -> Facts:
        """Return the facts with the shapes that MXNet infers from those of some variables; with none, unknown ones.

        Raises:
            InferenceError: If MXNet's inference fails; the message names the node.
        """
        sizes = _infer(self._internals.infer_shape_partial, dict(shapes), "shapes") if shapes else None
        facts = replace(self._known, shapes={key: tuple(s) for key, s in zip(self._keys, sizes or ()) if s})
        bodies = _infer_bodies(self._graph, facts)
        return replace(facts, bodies=bodies) if bodies else facts


def infer_variables(symbol: Any, types: Dtypes) -> Dict[str, str]:
    """Return the dtypes that MXNet infers for variables from those of some of them; what is unknown is left out.

    Raises:
        InferenceError: If MXNet's inference fails; the message names the node.
    """
    known = {name: dtypes.to_numpy(t) for name, t in types.items() if t != dtypes.BFLOAT16}
    args, _, states = _inferred(symbol.infer_type_partial, known, "dtypes")
    names = (*symbol.list_arguments(), *symbol.list_auxiliary_states())
    return {name: dtypes.canonical(t) for name, t in zip(names, (*(args or ()), *(states or ()))) if t is not None}


def output_names(symbol: Any) -> Dict[Tuple[int, int], str]:
    """Return the names of all outputs of a symbol's nodes, by (node, output index)."""
    internals = symbol.get_internals()
    return dict(zip(_entries(internals), internals.list_outputs()))


def _entries(internals: Any) -> Tuple[Tuple[int, int], ...]:
    """Return the (node, output index) of each output of a symbol's internals."""
    text = internals.tojson(remove_amp_cast=False)
    key = '"heads": '  # of the whole graph, which stands behind those of all bodies; the nodes are known
    heads, _ = json.JSONDecoder().raw_decode(text, text.rindex(key) + len(key))
    return tuple((node, index) for node, index, *_ in heads)


def _infer_bodies(graph: Graph, facts: Facts) -> Dict[Tuple[int, int], Facts]:
    """Return facts on the bodies of control flow nodes, from what their nodes read."""
    found = {}
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(bodies_of(node)):
            inputs = [node.inputs[port] for port in body.ports]
            types = [facts.dtype(entry) for entry in inputs]
            if None in types:
                continue
            sizes = [_body_shape(body, i, facts.shape(entry)) for i, entry in enumerate(inputs)]
            found[position, number] = _infer_body(body, types, sizes, graph.metadata)
    return found


def _body_shape(body: Body, variable: int, shape: Optional[Tuple[int, ...]]) -> Optional[Tuple[int, ...]]:
    return shape[1:] if shape is not None and variable in body.sliced else shape


def _infer_body(body: Body, types: Any, sizes: Any, metadata: str) -> Facts:
    """Return facts on a body whose variables have the given dtypes and shapes.

    It is loaded with the metadata of the whole, which says that it is of no old version.
    """
    nodes = list(body.graph.nodes)
    shapes = {}
    for position, dtype, shape in zip(body.variables(), types, sizes):
        nodes[position] = nodes[position].with_attrs({"__dtype__": dtypes.to_flag(dtype)})
        if shape is not None and all(shape):  # a scalar's shape () means unknown to MXNet
            shapes[nodes[position].name] = shape
    graph = replace(body.graph, nodes=tuple(nodes), metadata=metadata)
    return infer_facts(from_graph(graph), graph, shapes, {}, frozenset())


def _infer(function: Any, known: Dict[str, Any], what: str) -> Any:
    """Return what MXNet infers of the outputs."""
    return _inferred(function, known, what)[1]


def _inferred(function: Any, known: Dict[str, Any], what: str) -> Any:
    """Return what MXNet infers of the arguments, outputs and auxiliary states."""
    try:
        return function(**known)
    except mx.base.MXNetError as e:
        match = _OPERATOR.search(str(e))
        node = f"node '{match.group(1)}'" if match else "the network"
        reason = _OPERATOR.split(mxnet_reason(e))[-1].strip()
        raise InferenceError(f"{node}: MXNet cannot infer its {what}: {reason}") from e
