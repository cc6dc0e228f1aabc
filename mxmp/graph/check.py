"""Symbol JSON of any version of MXNet, checked before MXNet loads it.

MXNet upgrades what versions 0.8 to 1.8 wrote (src/nnvm/legacy_json_util.cc at tag 1.9.1), but what
is malformed makes it abort, read beyond its arrays or name no node.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, List

from ..errors import GraphError
from .core import HINT, VARIABLE
from .serde import check_graph_fields, read_json

# The fields that nnvm's reader accepts (3rdparty/tvm/nnvm/src/pass/saveload_json.cc), older spellings included.
_NODE_KEYS = frozenset(
    {"op", "name", "attrs", "attr", "param", "inputs", "subgraphs", "control_deps", "backward_source_id"}
)


def check_json(text: str, operators: Collection[str]) -> None:
    """Check that a text is a symbol's JSON, whatever version wrote it; ``operators`` are all of this MXNet.

    Raises GraphError if it is not, naming the first node that is malformed, out of order or of an unknown operator.
    """
    _check_graph(read_json(text), frozenset(operators) | {VARIABLE})


def _check_graph(data: Any, operators: Collection[str]) -> None:
    check_graph_fields(data)
    nodes = data["nodes"]
    for position, node in enumerate(nodes):
        _check_node(position, node, nodes, operators)
    if not data["heads"]:
        raise GraphError("the graph has no outputs.")
    for number, head in enumerate(data["heads"]):
        _check_entry(f"output {number} of the graph", head, len(nodes), nodes)


def _check_node(position: int, node: Any, nodes: List[Any], operators: Collection[str]) -> None:
    if not isinstance(node, dict) or not all(isinstance(node.get(key), str) for key in ("op", "name")):
        raise GraphError(f"node {position}: found {_short(node)}, expected 'op', 'name' and 'inputs'. {HINT}")
    where = f"node '{node['name']}' ({node['op']})"
    if node["op"] not in operators:
        raise GraphError(
            f"{where}: this MXNet has no operator '{node['op']}'. If it comes from a library, load that with "
            f"mx.library.load first."
        )
    if not node.keys() <= _NODE_KEYS:
        raise GraphError(f"{where} has unknown fields {sorted(node.keys() - _NODE_KEYS)}. {HINT}")
    for key in ("attrs", "attr", "param"):
        if not _is_texts(node.get(key, {})):
            raise GraphError(f"{where}: '{key}' is {_short(node[key])}; expected names and texts. {HINT}")
    for key, default in (("inputs", None), ("control_deps", []), ("subgraphs", [])):
        if not isinstance(node.get(key, default), list):
            raise GraphError(f"{where}: '{key}' is {_short(node.get(key))}; expected a list. {HINT}")
    if node["op"] == VARIABLE and node["inputs"]:
        raise GraphError(f"{where}: a variable cannot have inputs. {HINT}")
    for port, entry in enumerate(node["inputs"]):
        _check_entry(f"{where}: input {port}", entry, position, nodes)
    for before in node.get("control_deps", ()):
        if type(before) is not int or not 0 <= before < position:
            raise GraphError(f"{where}: 'control_deps' has {_short(before)}; expected nodes before it. {HINT}")
    for body in node.get("subgraphs", ()):
        _check_graph(body, operators)


def _check_entry(where: str, entry: Any, limit: int, nodes: List[Any]) -> None:
    if not isinstance(entry, list) or not 2 <= len(entry) <= 3 or not all(type(n) is int and n >= 0 for n in entry):
        raise GraphError(f"{where} is {_short(entry)}; expected [node, output] or [node, output, version]. {HINT}")
    if entry[0] >= len(nodes):
        raise GraphError(f"{where} refers to node {entry[0]}, but the graph has {len(nodes)} nodes. {HINT}")
    if entry[0] >= limit:
        later: Dict[str, Any] = nodes[entry[0]] if isinstance(nodes[entry[0]], dict) else {}
        raise GraphError(f"{where} refers to node '{later.get('name')}', which comes later or is itself. {HINT}")


def _is_texts(attrs: Any) -> bool:
    return isinstance(attrs, dict) and all(isinstance(value, str) for value in attrs.values())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
