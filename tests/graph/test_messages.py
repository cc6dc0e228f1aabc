"""Graphs and symbol files that are malformed: the first bad node is named, and what is wrong with it."""

import json
from dataclasses import replace

from mxmp.errors import GraphError
from mxmp.graph import Entry, Graph, Node, check_json, from_json, verify
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


GRAPH = Graph((Node("null", "x"), Node("relu", "fc", inputs=(Entry(0),))), (Entry(1),))


def graph(position=1, **fields):
    """Return a call that verifies a graph of two nodes, of which one is another."""
    nodes = [node._replace(**fields) if i == position else node for i, node in enumerate(GRAPH.nodes)]
    return lambda: verify(replace(GRAPH, nodes=tuple(nodes)))


BODY = {"nodes": [X, {**RELU, "op": "nix"}], "heads": [[1, 0, 0]]}
MESSAGES = {
    "no JSON": (text("{"), GraphError,
        "not a symbol's JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). "
        "The file is truncated or no symbol file."),
    "no object": (text("[1]"), GraphError,
        "not a symbol's JSON: it has no 'nodes' and 'heads'."),
    "a zero byte": (text('{"a": "f\0c"}'), GraphError,
        "not a symbol's JSON: found a zero byte. The file is truncated or no symbol file."),
    "no heads": (file(heads=[]), GraphError,
        "the graph has no outputs."),
    "unknown field": (file(extra=1), GraphError,
        "the graph has unknown fields ['extra']. The file is truncated or was edited by hand."),
    "unknown field of a node": (file(relu={"extra": 1}), GraphError,
        "node 'r' (relu) has unknown fields ['extra']. The file is truncated or was edited by hand."),
    "head beyond": (file(heads=[[7, 0, 0]]), GraphError,
        "output 0 of the graph refers to node 7, but the graph has 3 nodes. The file is truncated or was "
        "edited by hand."),
    "node is no object": (file(relu=5), GraphError,
        "node 1: found 5, expected 'op', 'name' and 'inputs'. The file is truncated or was edited by hand."),
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
    "attributes": (file(add={"attrs": [1]}), GraphError,
        "node 'sum' (elemwise_add): 'attrs' is [1]; expected names and texts. The file is truncated or was "
        "edited by hand."),
    "attribute of a number": (file(add={"attrs": {"a": 1}}), GraphError,
        "node 'sum' (elemwise_add): 'attrs' is {'a': 1}; expected names and texts. The file is truncated or "
        "was edited by hand."),
    "no inputs": (file(relu={"inputs": None}), GraphError,
        "node 'r' (relu): 'inputs' is None; expected a list. The file is truncated or was edited by hand."),
    "variable with inputs": (file(x={"inputs": [[0, 0, 0]]}), GraphError,
        "node 'x' (null): a variable cannot have inputs. The file is truncated or was edited by hand."),
    "entry": (file(relu={"inputs": [[0]]}), GraphError,
        "node 'r' (relu): input 0 is [0]; expected [node, output] or [node, output, version]. The file is "
        "truncated or was edited by hand."),
    "negative entry": (file(relu={"inputs": [[-1, 0, 0]]}), GraphError,
        "node 'r' (relu): input 0 is [-1, 0, 0]; expected [node, output] or [node, output, version]. The "
        "file is truncated or was edited by hand."),
    "beyond the end": (file(relu={"inputs": [[9, 0, 0]]}), GraphError,
        "node 'r' (relu): input 0 refers to node 9, but the graph has 3 nodes. The file is truncated or was "
        "edited by hand."),
    "out of order": (file(relu={"inputs": [[2, 0, 0]]}), GraphError,
        "node 'r' (relu): input 0 refers to node 'sum' (elemwise_add), which comes later or is itself. The "
        "file is truncated or was edited by hand."),
    "itself": (file(relu={"inputs": [[1, 0, 0]]}), GraphError,
        "node 'r' (relu): input 0 refers to node 'r' (relu), which comes later or is itself. The file is "
        "truncated or was edited by hand."),
    "in a body": (file(relu={"subgraphs": [BODY]}), GraphError,
        "node 'r' (nix): this MXNet has no operator 'nix'. If it comes from a library, load that with "
        "mx.library.load first."),
    "an empty text": (lambda: from_json(""), GraphError,
        "not a symbol's JSON: Expecting value: line 1 column 1 (char 0). The file is truncated or no symbol "
        "file."),
    "a truncated text": (lambda: from_json("{"), GraphError,
        "not a symbol's JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). "
        "The file is truncated or no symbol file."),
    "a graph's input beyond the end": (graph(inputs=(Entry(57),)), GraphError,
        "node 'fc' (relu): input 0 refers to node 57, but the graph has 2 nodes. The file is truncated or "
        "was edited by hand."),
    "a graph's cycle": (graph(inputs=(Entry(1),)), GraphError,
        "node 'fc' (relu): input 0 refers to node 'fc' (relu), which comes later or is itself. The file is "
        "truncated or was edited by hand."),
    "a graph's missing output": (graph(inputs=(Entry(0, 4),)), GraphError,
        "node 'fc' (relu): input 0 refers to output 4 of node 'x' (null), which has 1. The file is truncated "
        "or was edited by hand."),
    "a graph's variable with inputs": (graph(0, inputs=(Entry(0),)), GraphError,
        "node 'x' (null): a variable cannot have inputs. The file is truncated or was edited by hand."),
    "a graph's node without outputs": (graph(0, num_outputs=0), GraphError,
        "node 'x' (null): found 0 outputs, expected at least one. The file is truncated or was edited by "
        "hand."),
    "a graph without outputs": (lambda: verify(replace(GRAPH, heads=())), GraphError,
        "the graph has no outputs."),
    "a graph's output beyond the end": (lambda: verify(replace(GRAPH, heads=(Entry(9),))), GraphError,
        "output 0 of the graph refers to node 9, but the graph has 2 nodes. The file is truncated or was "
        "edited by hand."),
}


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
