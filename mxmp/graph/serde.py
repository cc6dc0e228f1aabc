"""Conversion between nnvm JSON and Graph, both ways, without loss.

Reads what MXNet 1.9.1 writes (``Symbol.tojson(remove_amp_cast=False)``); MXNet itself upgrades what versions 0.8 to 1.8
wrote when it loads it (src/nnvm/legacy_json_util.cc at tag 1.9.1). The format is nnvm's SaveJSON pass
(3rdparty/tvm/nnvm/src/pass/saveload_json.cc).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Match

from ..errors import GraphError
from .core import HINT, Entry, Graph, Node, make_attrs, verify

_NODE_KEYS = {"op", "name", "attrs", "inputs", "subgraphs", "control_deps"}
_NEEDED_KEYS = {"op", "name", "inputs"}
_GRAPH_KEYS = {"nodes", "arg_nodes", "node_row_ptr", "heads", "attrs"}  # all that any version of MXNet wrote
_ESCAPE = re.compile(r"\\(u00[01][0-9a-f]|.)")


def from_json(text: str) -> Graph:
    """Return the graph that a symbol's JSON describes; GraphError if it is no JSON or no valid graph."""
    graph = _graph_from(read_json(text))
    verify(graph)
    return graph


def to_json(graph: Graph) -> str:
    """Return JSON that ``mxnet.sym.load_json`` reads."""
    return write_json(_graph_to(graph))


def read_json(text: str) -> Any:
    """Return the data of JSON that MXNet wrote, which has control characters in strings as they are.

    Raises GraphError if it is no JSON, or has a zero byte, where MXNet would stop reading.
    """
    try:
        if "\0" in text:
            raise ValueError("found a zero byte")
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as e:
        raise GraphError(f"not a symbol's JSON: {e}. The file is truncated or no symbol file.") from e


def check_graph_fields(data: Any) -> None:
    """Raise GraphError unless data is an object with lists of nodes and heads, and no unknown fields."""
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("nodes", "heads")):
        raise GraphError("not a symbol's JSON: it has no 'nodes' and 'heads'.")
    if not data.keys() <= _GRAPH_KEYS:
        raise GraphError(f"the graph has unknown fields {sorted(data.keys() - _GRAPH_KEYS)}. {HINT}")


def write_json(data: Any) -> str:
    r"""Return JSON that MXNet reads: with its five escapes and every other character as it is.

    Those are ``\r``, ``\n``, ``\t``, the quote's and the backslash's (JSONReader in
    3rdparty/dmlc-core/include/dmlc/json.h); ``\u00e9`` is an error.
    """
    text = json.dumps(data, ensure_ascii=False)  # without indent: ten times faster
    return _ESCAPE.sub(_unescaped, text) if any(mark in text for mark in ("\\u00", "\\b", "\\f")) else text


def _unescaped(match: Match[str]) -> str:
    escape = match.group(1)
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return {"b": "\b", "f": "\f"}.get(escape, match.group())


def _graph_from(data: Any) -> Graph:
    check_graph_fields(data)
    counts = _output_counts(data)
    nodes = tuple(_node_from(i, node, counts[i]) for i, node in enumerate(data["nodes"]))
    heads = tuple(Entry(*head) for head in data["heads"])
    return Graph(nodes, heads, json.dumps(data.get("attrs", {}), sort_keys=True))


def _output_counts(data: Dict[str, Any]) -> List[int]:
    rows = data.get("node_row_ptr")
    if rows is None or len(rows) != len(data["nodes"]) + 1:
        raise GraphError(
            "symbol JSON lacks a valid 'node_row_ptr', which says how many outputs a node has. "
            "Load it with mxnet.sym.load_json and save it again."
        )
    return [end - start for start, end in zip(rows, rows[1:])]


def _node_from(position: int, data: Dict[str, Any], num_outputs: int) -> Node:
    if not _NEEDED_KEYS <= data.keys() <= _NODE_KEYS:
        raise GraphError(
            f"node {position} ({data.get('name', 'without name')!r}): found fields {sorted(data)}, "
            f"expected 'op', 'name', 'inputs' and optionally 'attrs', 'subgraphs', 'control_deps'."
        )
    return Node(
        op=data["op"],
        name=data["name"],
        attrs=make_attrs(data.get("attrs", {})),
        inputs=tuple(Entry(*entry) for entry in data["inputs"]),
        num_outputs=num_outputs,
        subgraphs=tuple(_graph_from(sub) for sub in data.get("subgraphs", ())),
        control_deps=tuple(data.get("control_deps", ())),
    )


def _graph_to(graph: Graph) -> Dict[str, Any]:
    rows = [0]
    for node in graph.nodes:
        rows.append(rows[-1] + node.num_outputs)
    data: Dict[str, Any] = {
        "nodes": [_node_to(node) for node in graph.nodes],
        "arg_nodes": [i for i, node in enumerate(graph.nodes) if node.is_variable],
        "node_row_ptr": rows,
        "heads": [list(head) for head in graph.heads],
    }
    metadata = json.loads(graph.metadata)
    if metadata:
        data["attrs"] = metadata
    return data


def _node_to(node: Node) -> Dict[str, Any]:
    data: Dict[str, Any] = {"op": node.op, "name": node.name}
    if node.attrs:
        data["attrs"] = dict(node.attrs)
    data["inputs"] = [list(entry) for entry in node.inputs]
    if node.subgraphs:
        data["subgraphs"] = [_graph_to(sub) for sub in node.subgraphs]
    if node.control_deps:
        data["control_deps"] = list(node.control_deps)
    return data
