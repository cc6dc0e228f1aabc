"""Networks in low precision as a processor runs them that has it: float32 arithmetic, each result rounded.

Node by node, with MXNet's float32 operators and numpy's rounding; nothing of mxmp takes part. It needs no
processor with bfloat16.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np

from tests.symbol.measure import BFLOAT16, CASTS, entries_of, nodes_of

LOW = (np.dtype(np.float16), BFLOAT16)


def round_to(values, dtype):
    """Return float32 values rounded to nearest even on another dtype's grid."""
    if dtype != BFLOAT16:
        return values.astype(dtype).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def widen(array):
    """Return an array as float32; it is faster than MXNet's cast where the processor has no bfloat16."""
    values = array.asnumpy()
    if values.dtype == BFLOAT16:
        values = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return mx.nd.array(values, dtype=np.float32)


def run_rounded(symbol, inputs, args, aux):
    """Return a converted symbol's outputs in float64, for inputs of numpy and the arrays that it is stored with."""
    params = {**args, **aux}
    types = {name: array.dtype for name, array in params.items()}
    dtypes = {
        key: dtype for key, (dtype, _) in entries_of(symbol, {n: v.shape for n, v in inputs.items()}, types).items()
    }
    nodes, found = nodes_of(symbol), {}
    for position, node in enumerate(nodes):
        if node["op"] == "null":
            name = node["name"]
            found[position, 0] = widen(params[name]) if name in params else mx.nd.array(inputs[name])
            continue
        results = _call(node, [found[entry[0], entry[1]] for entry in node["inputs"]])
        for index, result in enumerate(results):
            dtype = dtypes.get((position, index))
            found[position, index] = mx.nd.array(round_to(result.asnumpy(), dtype)) if dtype in LOW else result
    heads = [index for index, node in enumerate(nodes) if node["name"] == symbol.name]
    return [found[head, 0].asnumpy().astype(np.float64) for head in heads]


def _call(node, arrays):
    if node["op"] in CASTS:
        return arrays
    attrs = {key: value for key, value in node.get("attrs", {}).items() if not key.startswith("__")}
    operator = getattr(mx.nd, node["op"], None) or getattr(mx.nd.op, node["op"])
    results = operator(*arrays, **attrs)
    return results if isinstance(results, (list, tuple)) else [results]
