"""Graphs and symbol files that are malformed: the first bad node is named, and what is wrong with it."""

import json

from mxmp.errors import GraphError
from mxmp.graph import check_json
from tests import messages

X = {"op": "null", "name": "x", "inputs": []}
RELU = {"op": "relu", "name": "r", "inputs": [[0, 0, 0]]}
ADD = {"op": "elemwise_add", "name": "sum", "attrs": {"__a__": "1"}, "inputs": [[0, 0, 0], [1, 0, 0]]}


def file(x=None, relu=None, add=None, **fields):
    """Return a call that checks a file of three nodes, in which something is another."""
    changes = (X, x), (RELU, relu), (ADD, add)
    nodes = [new if isinstance(new, int) else {**node, **(new or {})} for node, new in changes]
    text = json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[2, 0, 0]], **fields})
    return lambda: check_json(text, {"relu", "elemwise_add", "_foreach", "_Native", "_NDArray", "_backward_relu"})


def text(content):
    return lambda: check_json(content, {"relu"})


BODY = {"nodes": [X, {**RELU, "op": "nix"}], "heads": [[1, 0, 0]]}
MESSAGES = {
    "no JSON": (text("{"), GraphError,
        "not a symbol's JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). "
        "The file is truncated or no symbol file."),
    "a zero byte": (text('{"a": "f\0c"}'), GraphError,
        "not a symbol's JSON: found a zero byte. The file is truncated or no symbol file."),
    "head beyond": (file(heads=[[7, 0, 0]]), GraphError,
        "output 0 of the graph refers to node 7, but the graph has 3 nodes. The file is truncated or was "
        "edited by hand."),
    "unknown operator": (file(relu={"op": "_my_op"}), GraphError,
        "node 'r' (_my_op): this MXNet has no operator '_my_op'. If it comes from a library, load that with "
        "mx.library.load first."),
    "an operator that follows an address": (file(relu={"op": "_Native", "attrs": {"info": "0x10"}}), GraphError,
        "node 'r' (_Native): this operator follows a memory address that stands in the file, so no file with it is "
        "loaded. Write it as a Custom operator."),
    "an address in a body": (file(relu={"subgraphs": [{**BODY, "nodes": [X, {**RELU, "op": "_NDArray"}]}]}), GraphError,
        "node 'r' (_NDArray): this operator follows a memory address that stands in the file, so no file with it is "
        "loaded. Write it as a Custom operator."),
    "an operator of a gradient": (file(relu={"op": "_backward_relu"}), GraphError,
        "node 'r' (_backward_relu): MXNet adds the operators of gradients itself, and no network has them. Save the "
        "network's own symbol."),
    "out of order": (file(relu={"inputs": [[2, 0, 0]]}), GraphError,
        "node 'r' (relu): input 0 refers to node 'sum' (elemwise_add), which comes later or is itself. The "
        "file is truncated or was edited by hand."),
    "in a body": (file(relu={"subgraphs": [BODY]}), GraphError,
        "node 'r' (nix): this MXNet has no operator 'nix'. If it comes from a library, load that with "
        "mx.library.load first."),
}


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
