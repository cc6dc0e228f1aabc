"""MXNet symbols to graphs and back, and MXNet's inference of their shapes and dtypes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

import mxnet as mx
from mxnet.symbol.numpy import _Symbol as NumpySymbol

from .. import dtypes
from ..errors import GraphError, InferenceError, mxnet_reason
from ..graph import GRADIENT, HINT, Graph, Key, from_json, to_json, version_of
from ..mxnet_private import count_inputs
from ..passes import Facts
from ..passes.control_flow import bodies_of, check_bodies

Shapes = Mapping[str, Tuple[int, ...]]
Dtypes = Mapping[str, str]

_FUSED = "_sg_"  # the operators of fused subgraphs: _sg_mkldnn_conv
_OPERATOR = re.compile(r"Error in operator ([^:]+):")


def to_graph(symbol: Any) -> Graph:
    """Return a symbol's graph, amp_cast nodes included (MXNet's own ``tojson()`` drops them)."""
    graph = from_json(symbol.tojson(remove_amp_cast=False))
    check_bodies(graph)
    return graph


def check_inputs(graph: Graph) -> None:
    """Raise a GraphError that names the first node of a file's graph that has not the inputs of its operator.

    MXNet checks them where it composes a symbol, and not in a file: it then reads beyond a node's inputs, and ends the
    process. Files before version 0.9 have no auxiliary states, which MXNet adds (UpgradeJSON_000800_000900 in
    src/nnvm/legacy_json_util.cc at tag 1.9.1). MXNet itself refuses attributes that an operator does not have.
    """
    lacks_states = version_of(graph) < 900
    for node in graph.operators():
        if node.op.startswith(_FUSED):
            if len(node.subgraphs) != 1:
                raise GraphError(f"node {node}: found {len(node.subgraphs)} subgraphs, expected 1. {HINT}")
            continue  # the subgraph decides, and MXNet compares
        if node.op.startswith(GRADIENT):
            continue  # in no file; MXNet cannot make it by itself
        numbers = count_inputs(node.op, node.attrs, len(node.inputs))
        if numbers is None:
            continue
        arguments, inputs = numbers
        fewest = arguments if lacks_states else inputs
        if not fewest <= len(node.inputs) <= inputs:
            raise GraphError(f"node {node}: found {len(node.inputs)} inputs, expected {inputs}. {HINT}")


def from_graph(graph: Graph, like: Any = None) -> Any:
    """Return the symbol of a graph; a numpy symbol if ``like`` is one."""
    symbol = mx.sym.load_json(to_json(graph))
    return symbol.as_np_ndarray() if isinstance(like, NumpySymbol) else symbol


def infer_facts(
    symbol: Any, graph: Graph, shapes: Shapes, types: Optional[Dtypes], params: FrozenSet[str]
) -> Facts:
    """Return dtypes and shapes, as MXNet infers them, of the entries of a symbol's graph and of its bodies.

    Args:
        symbol: The symbol.
        graph: Its graph, as ``to_graph`` gives it.
        shapes: Known shapes of variables; with none, shapes are left unknown.
        types: Known dtypes of variables; with None, dtypes are left unknown.
        params: Names of the variables that are parameters.

    Raises:
        InferenceError: If MXNet's inference fails; the message names the node.
    """
    internals = symbol.get_internals()
    names = entry_names(internals, graph)
    unknown = (None, None, None)
    _, types_of, _ = unknown if types is None else _infer(internals, "dtypes", types)
    _, sizes, _ = _infer(internals, "shapes", shapes) if shapes else unknown
    canonical = {dtype: dtypes.canonical(dtype) for dtype in set(types_of or ()) if dtype is not None}
    facts = Facts(
        dtypes={entry: canonical[dtype] for entry, dtype in zip(names, types_of or ()) if dtype is not None},
        shapes={entry: tuple(size) for entry, size in zip(names, sizes or ()) if size},
        output_names=names,
        params=params,
    )
    return replace(facts, bodies=_infer_bodies(graph, facts))


def infer_network(symbol: Any, graph: Graph, shapes: Shapes, types: Dtypes, params: FrozenSet[str]) -> Facts:
    """Return facts about a network, whose variables are float32 where nothing says or implies another dtype.

    Given and declared dtypes come first. Inputs whose dtypes these do not imply are next, because MXNet infers the
    dtypes of parameters from inputs. Dtypes that are unknown even then are float32 too. Casts to low precision imply
    dtypes too. The arguments are those of `infer_facts`, of which an InferenceError comes too.
    """
    lows = any(node.get("dtype") in dtypes.LOW_PRECISION for node in graph.nodes)
    variables = {node.name for node in graph.nodes if node.is_variable}
    undeclared = {node.name for node in graph.nodes if node.is_variable and not node.declares_dtype}
    inputs = {name for name in undeclared - params if name in shapes or params}
    known_types = dict(types)
    for names in (inputs, undeclared):
        rest = names - set(known_types)
        tells = rest and (lows or known_types.keys() | (variables - undeclared))
        try:
            implied = infer_variables(symbol, known_types) if tells else {}
        except InferenceError:  # Embedding and Dropout, for example, must be told
            known_types = {**dict.fromkeys(undeclared, dtypes.FLOAT32), **types}
            break
        known_types.update((name, implied.get(name, dtypes.FLOAT32)) for name in rest)
    return infer_facts(symbol, graph, shapes, known_types, params)


def infer_shapes(symbol: Any, shapes: Shapes) -> Dict[str, Tuple[int, ...]]:
    """Return the shapes that MXNet infers for variables from those of inputs; unknown ones are left out."""
    args, _, states = _infer(symbol, "shapes", shapes)
    names = (*symbol.list_arguments(), *symbol.list_auxiliary_states())
    return {name: size for name, size in zip(names, (*(args or ()), *(states or ()))) if size and min(size) > 0}


def infer_variables(symbol: Any, types: Dtypes) -> Dict[str, str]:
    """Return the dtypes that MXNet infers for variables from those of some of them; unknown ones are left out."""
    args, _, states = _infer(symbol, "dtypes", types)
    names = (*symbol.list_arguments(), *symbol.list_auxiliary_states())
    return {name: dtypes.canonical(t) for name, t in zip(names, (*(args or ()), *(states or ()))) if t is not None}


def entry_names(internals: Any, graph: Graph) -> Dict[Key, str]:
    """Return the names of all entries of a symbol's graph, from the symbol's internals.

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
    """Return facts on the bodies of control flow nodes; their variables have the dtypes of the nodes' inputs."""
    facts_of = {}
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(bodies_of(node)):
            inputs = [node.inputs[port] for port in body.ports]
            if any(facts.dtype(entry) is None for entry in inputs):
                continue
            nodes, shapes = list(body.graph.nodes), {}
            for i, (variable, entry) in enumerate(zip(body.variables(), inputs)):
                nodes[variable] = nodes[variable].with_attrs({"__dtype__": dtypes.to_flag(facts.dtypes[entry.key])})
                shape = facts.shape(entry)
                if shape and i in body.sliced:
                    shape = shape[1:]
                if shape:  # a scalar's shape () means unknown to MXNet
                    shapes[nodes[variable].name] = shape
            # With the metadata of the whole, which says that it is of no old version.
            inner = replace(body.graph, nodes=tuple(nodes), metadata=graph.metadata)
            facts_of[position, number] = infer_facts(from_graph(inner), inner, shapes, {}, frozenset())
    return facts_of


def _infer(symbol: Any, what: str, known_values: Mapping[str, Any]) -> Any:
    """Return MXNet's inference of the 'shapes' or 'dtypes' of the arguments, outputs and auxiliary states.

    ``known_values`` may name inputs that the symbol does not have, such as a mask that a net does not use. MXNet would
    refuse these. A dtype bfloat16 is left out, because MXNet looks dtypes up by the types of numpy
    (python/mxnet/symbol/symbol.py); a variable's own ``__dtype__`` says it.
    """
    values = {name: known_values[name] for name in symbol.list_inputs() if name in known_values}
    try:
        if what == "shapes":
            return symbol.infer_shape_partial(**values)
        types = {name: dtypes.to_numpy(dtype) for name, dtype in values.items() if dtype != dtypes.BFLOAT16}
        return symbol.infer_type_partial(**types)
    except mx.base.MXNetError as e:
        match = _OPERATOR.search(str(e))
        node = f"node '{match.group(1)}'" if match else "the network"
        reason = _OPERATOR.split(mxnet_reason(e))[-1].strip()
        raise InferenceError(f"{node}: MXNet cannot infer its {what}: {reason}") from e
    except KeyError as e:  # of numpy's dtypes by the numbers in ``__dtype__``
        raise InferenceError(f"the network: it has the dtype number {e}, and MXNet has no such dtype.") from e
