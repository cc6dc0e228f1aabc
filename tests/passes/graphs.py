"""Graphs from text with facts on them, conversions of symbols, and one step of a symbol."""

from dataclasses import replace

import mxnet as mx

from mxmp import Policy
from mxmp.passes import Facts
from mxmp.symbol import convert_graph, from_graph, to_graph
from tests.graph.text import from_text


def with_facts(text, dtypes=None, shapes=None, **fields):
    """Return (graph, facts): all is float32 of unknown shape but for the dtypes and shapes given by node name."""
    graph = from_text(text)
    at = {node.name: (i, 0) for i, node in enumerate(graph.nodes)}
    known = {**Facts.assume_float32(graph).dtypes, **{at[name]: dtype for name, dtype in (dtypes or {}).items()}}
    sizes = {at[name]: shape for name, shape in (shapes or {}).items()}
    return graph, Facts(known, sizes, **{name: frozenset(value) for name, value in fields.items()})


def converted(net, shapes, policy="O1"):
    """Return a symbol's conversion, all its arguments float32."""
    types = dict.fromkeys(net.list_arguments(), "float32")
    return convert_graph(net, Policy.parse(policy), shapes, types, inputs=frozenset(shapes))


def precisions(net, shapes, policy="O1"):
    """Return the precision of each operator of a converted symbol, by name."""
    return {row.name: row.precision for row in converted(net, shapes, policy).report.rows}


def without_rounding(symbol):
    """Return what runs on a CPU under a bfloat16 policy, with casts that round nothing, for any processor.

    Like casts to bfloat16, SwapAxis gives the default layout, forward and backward; amp_cast to float32 would not.
    """
    graph, attrs = to_graph(symbol), (("dim1", "0"), ("dim2", "0"))
    nodes = (node._replace(op="SwapAxis", attrs=attrs) if node.op == "amp_cast" else node for node in graph.nodes)
    text = from_graph(replace(graph, nodes=tuple(nodes)), symbol).tojson(remove_amp_cast=False)
    return mx.sym.load_json(text.replace('"__dtype__": "12"', '"__dtype__": "0"'))


def step(symbol, values, wrt=None, head_grads=None):
    """Return (outputs, gradients by name) of a step of training, in numpy.

    Args:
        symbol: The symbol.
        values: The inputs and auxiliary states by name, of numpy or MXNet; the latter are bound themselves.
        wrt: The names of the inputs whose gradients are computed, by default all.
        head_grads: The gradient of each output, by default ones.
    """
    arrays = {name: value if isinstance(value, mx.nd.NDArray) else mx.nd.array(value) for name, value in values.items()}
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    grads = {name: mx.nd.zeros_like(arrays[name]) for name in (names if wrt is None else wrt)}
    wanted = {name: "write" if name in grads else "null" for name in names}
    executor = symbol.bind(mx.cpu(), {n: arrays[n] for n in names}, grads, wanted, {n: arrays[n] for n in states})
    outputs = executor.forward(is_train=True)
    if grads:
        heads = head_grads or [mx.nd.ones(output.shape) for output in outputs]
        executor.backward([mx.nd.array(head, dtype=output.dtype) for head, output in zip(heads, outputs)])
    return [output.asnumpy() for output in outputs], {name: grad.asnumpy() for name, grad in grads.items()}
