"""MXNet symbols to graphs and back, and what MXNet infers about them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Tuple

import mxnet as mx

from .. import dtypes
from ..errors import InferenceError, mxnet_reason
from ..graph import Graph, Key, from_json, to_json
from ..mxnet_private import NumpySymbol
from ..passes import Facts
from ..passes.control_flow import Body, bodies_of, check_bodies

Shapes = Mapping[str, Tuple[int, ...]]
Dtypes = Mapping[str, str]

_OPERATOR = re.compile(r"Error in operator ([^:]+):")


def to_graph(symbol: Any, text: Optional[str] = None) -> Graph:
    """Return a symbol's graph; ``text`` is its JSON, if that has been asked for."""
    graph = from_json(json_of(symbol) if text is None else text)
    check_bodies(graph)
    return graph


def json_of(symbol: Any) -> str:
    """Return a symbol's JSON, amp_cast nodes included (MXNet's own ``tojson()`` drops them)."""
    text: str = symbol.tojson(remove_amp_cast=False)
    return text


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
    names = entry_names(internals, graph)
    _, found, _ = _infer(internals.infer_type_partial, _to_numpy(types), "dtypes")
    known = {dtype: dtypes.canonical(dtype) for dtype in set(found or ()) if dtype is not None}
    facts = Facts(
        dtypes={entry: known[dtype] for entry, dtype in zip(names, found or ()) if dtype is not None},
        output_names=names,
        params=params,
    )
    return add_shapes(internals, names, graph, facts, shapes)


def infer_network(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Facts:
    """Return facts about a network, whose variables are float32 where nothing says or implies another dtype.

    The arguments are those of `infer_facts`, of which an InferenceError comes too.
    """
    return infer_facts(symbol, graph, shapes, _input_dtypes(symbol, graph, shapes, types, params), params)


def _input_dtypes(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Dtypes:
    """Return the dtypes of variables, float32 for those that neither declare nor imply another.

    What is given or declared comes first, then inputs that it does not imply, since MXNet infers the
    dtypes of parameters from them; what is unknown even then is float32 too. Casts to low precision imply dtypes too.
    """
    lows = any(node.get("dtype") in dtypes.LOW_PRECISION for node in graph.nodes)
    undeclared = {node.name for node in graph.nodes if node.is_variable and not node.declares_dtype}
    inputs = {name for name in undeclared - params if name in shapes or params}
    variables = {node.name for node in graph.nodes if node.is_variable}
    known = dict(types)
    for names in (inputs, undeclared):
        rest = names - set(known)
        try:
            found = infer_variables(symbol, known) if rest and (lows or known.keys() | (variables - undeclared)) else {}
        except InferenceError:  # Embedding and Dropout, for example, must be told
            return {**dict.fromkeys(undeclared, dtypes.FLOAT32), **types}
        known.update((name, found.get(name, dtypes.FLOAT32)) for name in rest)
    return known


def infer_variables(symbol: Any, types: Dtypes) -> Dict[str, str]:
    """Return the dtypes that MXNet infers for variables from those of some of them; what is unknown is left out."""
    args, _, states = _infer(symbol.infer_type_partial, _to_numpy(types), "dtypes")
    names = (*symbol.list_arguments(), *symbol.list_auxiliary_states())
    return {name: dtypes.canonical(t) for name, t in zip(names, (*(args or ()), *(states or ()))) if t is not None}


def add_shapes(internals: Any, entries: Iterable[Key], graph: Graph, facts: Facts, shapes: Shapes) -> Facts:
    """Return facts about a graph with the shapes that MXNet infers, of its bodies too; with none, unknown ones.

    Shapes in bodies of control flow need the dtypes of what these read, which ``facts`` must have. An
    InferenceError names the node that MXNet's inference fails at.
    """
    _, sizes, _ = _infer(internals.infer_shape_partial, shapes, "shapes") if shapes else (None, None, None)
    facts = replace(facts, shapes={entry: tuple(size) for entry, size in zip(entries, sizes or ()) if size})
    return replace(facts, bodies=_infer_bodies(graph, facts))


def _to_numpy(types: Dtypes) -> Dict[str, Any]:
    """Return the dtypes of inputs that MXNet can be told; of bfloat16 only a variable's own __dtype__ tells.

    python/mxnet/symbol/symbol.py looks dtypes up by numpy type, which bfloat16 has none of.
    """
    return {name: dtypes.to_numpy(t) for name, t in types.items() if t != dtypes.BFLOAT16}


def entry_names(internals: Any, graph: Graph) -> Dict[Key, str]:
    """Return the names of the outputs of the internals of a symbol, whose graph is given, in their order.

    These are the outputs of each node that are not hidden, the first at least.
    """
    names = internals.list_outputs()
    if len(names) == len(graph.nodes):
        return {(node, 0): name for node, name in enumerate(names)}
    text = internals.tojson(remove_amp_cast=False)
    key = '"heads": '  # of the whole graph, which stands behind those of all bodies; the nodes are known
    heads, _ = json.JSONDecoder().raw_decode(text, text.rindex(key) + len(key))
    return {(node, index): name for (node, index, *_), name in zip(heads, names)}


def _infer_bodies(graph: Graph, facts: Facts) -> Dict[Tuple[int, int], Facts]:
    """Return facts on the bodies of control flow nodes, from what their nodes read."""
    found = {}
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(bodies_of(node)):
            inputs = [node.inputs[port] for port in body.ports]
            types = [facts.dtype(entry) for entry in inputs]
            if None in types:
                continue
            sizes = [facts.shape(entry) for entry in inputs]
            sizes = [size[1:] if size and i in body.sliced else size for i, size in enumerate(sizes)]
            found[position, number] = _infer_body(body, types, sizes, graph.metadata)
    return found


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


def _infer(function: Any, known: Mapping[str, Any], what: str) -> Any:
    """Return what MXNet infers of the arguments, outputs and auxiliary states.

    ``known`` may name more than the symbol has: inputs that a net does not use, such as a mask. MXNet refuses these.
    """
    names = function.__self__.list_inputs()
    try:
        return function(**{name: known[name] for name in names if name in known})
    except mx.base.MXNetError as e:
        match = _OPERATOR.search(str(e))
        node = f"node '{match.group(1)}'" if match else "the network"
        reason = _OPERATOR.split(mxnet_reason(e))[-1].strip()
        raise InferenceError(f"{node}: MXNet cannot infer its {what}: {reason}") from e
