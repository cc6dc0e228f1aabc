"""Conversion between nnvm JSON and Graph, both ways, without loss; checks of JSON before MXNet loads it.

It reads JSON of MXNet 1.9.1 (``Symbol.tojson(remove_amp_cast=False)``). MXNet itself upgrades JSON of versions 0.8 to
1.8 when it loads it (src/nnvm/legacy_json_util.cc at tag 1.9.1). The format is that of nnvm's SaveJSON pass
(3rdparty/tvm/nnvm/src/pass/saveload_json.cc). Malformed JSON makes MXNet abort, read beyond its arrays, or fail without
the name of a node.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, starmap
from typing import Any, Collection, Dict, Match

from ..errors import GraphError
from .core import HINT, VARIABLE, Entry, Graph, Node, make_attrs, verify

_GRAPH_KEYS = {"nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"}  # all that any version of MXNet wrote
# The fields that nnvm's reader accepts (3rdparty/tvm/nnvm/src/pass/saveload_json.cc), older spellings included.
_NODE_KEYS = {"op", "name", "attrs", "inputs", "subgraphs", "control_deps", "attr", "param", "backward_source_id"}
# Each takes an address as the attribute ``info``, and MXNet follows it when it reads the JSON (Init in
# src/operator/custom/native_op-inl.h and ndarray_op-inl.h at tag 1.9.1).
_FOLLOW_ADDRESSES = {"_Native", "_NDArray"}
GRADIENT = "_backward_"
"""How the names of the operators begin that MXNet adds for gradients."""

_VERSION = re.compile(r'"mxnet_version": \["int", (\d+)\]')
_NO_VERSION = 1000000  # from which on MXNet reads no attributes (upgrader_list in src/nnvm/legacy_json_util.cc)
_UNLIMITED = 1 << 32  # outputs, more than JSON can name
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ESCAPE = re.compile(r"\\(u00[01][0-9a-f]|.)")


def from_json(text: str) -> Graph:
    """Return the graph of JSON that MXNet wrote; GraphError if it is no JSON or no valid graph.

    JSON of anyone else's goes through `check_json` and MXNet first.
    """
    graph = _graph_from(_read_json(text))
    verify(graph)
    return graph


def to_json(graph: Graph) -> str:
    r"""Return JSON that ``mxnet.sym.load_json`` reads: with its five escapes and every other character as it is.

    Those are ``\r``, ``\n``, ``\t``, the quote's and the backslash's (JSONReader in
    3rdparty/dmlc-core/include/dmlc/json.h); ``\u00e9`` is an error.
    """
    text = _encode(_data_of(graph))
    return _ESCAPE.sub(_unescaped, text) if any(mark in text for mark in ("\\u00", "\\b", "\\f")) else text


def check_json(text: str, operators: Collection[str]) -> Graph:
    """Check that a text is a symbol's JSON of any version of MXNet; ``operators`` are all of this MXNet.

    Returns its graph, in which each node has unlimited outputs. Raises GraphError if it is not one. The error names the
    first node that is malformed or out of order, or whose operator is not allowed. Not allowed are unknown operators,
    operators that follow an address in the file, and operators of gradients.
    """
    data = _read_json(text)
    _check_data(data, frozenset(operators) | {VARIABLE})
    graph = _graph_from(data, sized=False)
    verify(graph)
    if version_of(graph) >= _NO_VERSION:
        raise GraphError(f"found the version {version_of(graph)} of MXNet, expected one such as 10901 of 1.9.1. {HINT}")
    return graph


def version_of(graph: Graph) -> int:
    """Return the version of MXNet that wrote a graph, 10901 for 1.9.1; that of 0.8, which wrote none, by default."""
    version = _VERSION.search(graph.metadata)
    return 800 if version is None else int(version.group(1))


def _read_json(text: str) -> Any:
    """Return the data of JSON that MXNet wrote, which has control characters in strings as they are.

    MXNet would stop reading at a zero byte.
    """
    try:
        if "\0" in text:
            raise ValueError("found a zero byte")
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as e:
        raise GraphError(f"not a symbol's JSON: {e}. The file is truncated or no symbol file.") from e


def _graph_from(data: Any, sized: bool = True) -> Graph:
    """Return the graph of data that is well formed; with unlimited outputs of each node unless their numbers count."""
    # The outputs of all nodes, counted on. Versions before 0.9 wrote none, and of other JSON they may be anything.
    rows = data["node_row_ptr"] if sized else range(0, (len(data["nodes"]) + 1) * _UNLIMITED, _UNLIMITED)
    nodes = tuple(_node_from(node, end - start, sized) for node, start, end in zip(data["nodes"], rows, rows[1:]))
    return Graph(nodes, tuple(starmap(Entry, data["heads"])), json.dumps(data.get("attrs", {}), sort_keys=True))


def _node_from(data: Dict[str, Any], num_outputs: int, sized: bool) -> Node:
    attrs = make_attrs({**data.get("param", {}), **data.get("attr", {}), **data.get("attrs", {})})
    inputs = tuple(starmap(Entry, data["inputs"]))
    subgraphs = tuple(_graph_from(body, sized) for body in data.get("subgraphs", ()))
    return Node(data["op"], data["name"], attrs, inputs, num_outputs, subgraphs, tuple(data.get("control_deps", ())))


def _data_of(graph: Graph) -> Dict[str, Any]:
    variables = [i for i, node in enumerate(graph.nodes) if node.is_variable]
    rows = list(accumulate([node.num_outputs for node in graph.nodes], initial=0))
    nodes = [_node_data(node) for node in graph.nodes]
    data = {"nodes": nodes, "arg_nodes": variables, "node_row_ptr": rows, "heads": graph.heads}
    metadata = json.loads(graph.metadata)
    return {**data, "attrs": metadata} if metadata else data


def _node_data(node: Node) -> Dict[str, Any]:
    data: Dict[str, Any] = {"op": node.op, "name": node.name, "inputs": node.inputs}
    if node.attrs:
        data["attrs"] = dict(node.attrs)
    if node.subgraphs:
        data["subgraphs"] = [_data_of(body) for body in node.subgraphs]
    if node.control_deps:
        data["control_deps"] = node.control_deps
    return data


def _unescaped(match: Match[str]) -> str:
    return str(json.loads(f'"{match.group()}"')) if match.group(1)[0] in "ubf" else match.group()


def _check_data(data: Any, operators: Collection[str]) -> None:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("nodes", "heads")):
        raise GraphError("not a symbol's JSON: it has no 'nodes' and 'heads'.")
    if not data.keys() <= _GRAPH_KEYS:
        raise GraphError(f"the graph has unknown fields {sorted(data.keys() - _GRAPH_KEYS)}. {HINT}")
    for position, node in enumerate(data["nodes"]):
        _check_node(position, node, operators)
    for number, head in enumerate(data["heads"]):
        _check_entry(f"output {number} of the graph", head)


def _check_node(position: int, node: Any, operators: Collection[str]) -> None:
    if not isinstance(node, dict) or not all(isinstance(node.get(key), str) for key in ("op", "name")):
        raise GraphError(f"node {position}: found {_short(node)}, expected 'op', 'name' and 'inputs'. {HINT}")
    where = f"node '{node['name']:.80}' ({node['op']:.80})"
    if node["op"] not in operators:
        raise GraphError(
            f"{where}: this MXNet has no operator '{node['op']:.80}'. If it comes from a library, load that with "
            f"mx.library.load first."
        )
    if node["op"] in _FOLLOW_ADDRESSES:
        raise GraphError(
            f"{where}: this operator follows a memory address that stands in the file, so no file with it is loaded. "
            f"Write it as a Custom operator."
        )
    if node["op"].startswith(GRADIENT):
        raise GraphError(
            f"{where}: MXNet adds the operators of gradients itself, and no network has them. Save the network's own "
            f"symbol."
        )
    if not node.keys() <= _NODE_KEYS:
        raise GraphError(f"{where} has unknown fields {sorted(node.keys() - _NODE_KEYS)}. {HINT}")
    for key in ("attrs", "attr", "param"):
        attrs = node.get(key, {})
        if not isinstance(attrs, dict) or not all(isinstance(value, str) for value in attrs.values()):
            raise GraphError(f"{where}: '{key}' is {_short(node[key])}; expected names and texts. {HINT}")
    for key, default in (("inputs", None), ("control_deps", []), ("subgraphs", [])):
        if not isinstance(node.get(key, default), list):
            raise GraphError(f"{where}: '{key}' is {_short(node.get(key))}; expected a list. {HINT}")
    for port, entry in enumerate(node["inputs"]):
        _check_entry(f"{where}: input {port}", entry)
    for before in node.get("control_deps", ()):
        _check_entry(f"{where}: a control dependency", [before, 0])
    for body in node.get("subgraphs", ()):
        _check_data(body, operators)


def _check_entry(where: str, entry: Any) -> None:
    # The type itself: a bool is an int to isinstance. Version 0.8 wrote entries of two numbers.
    if not isinstance(entry, list) or not 2 <= len(entry) <= 3 or not all(type(n) is int and n >= 0 for n in entry):
        raise GraphError(f"{where} is {_short(entry)}; expected [node, output] or [node, output, version]. {HINT}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
