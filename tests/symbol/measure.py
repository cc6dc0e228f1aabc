"""Casts and bytes of a symbol, as MXNet's own inference has them: nothing of mxmp takes part."""

import json
import math

import numpy as np

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])  # MXNet's stand-in
CASTS = ("Cast", "amp_cast", "amp_multicast")


def nodes_of(symbol):
    """Return the nodes of a symbol's JSON, amp_cast included."""
    return json.loads(symbol.tojson(remove_amp_cast=False))["nodes"]


def entries_of(symbol, shapes, dtypes):
    """Return (dtype, shape) by (node, output) as MXNet infers them."""
    internals = symbol.get_internals()
    heads = json.loads(internals.tojson(remove_amp_cast=False))["heads"]
    known = {name: dtypes[name] for name in internals.list_inputs() if name in dtypes and dtypes[name] != BFLOAT16}
    types = internals.infer_type(**known)[1]
    sizes = internals.infer_shape(**shapes)[1]
    return {(node, index): (np.dtype(t), s) for (node, index, *_), t, s in zip(heads, types, sizes)}


def measure(symbol, shapes, dtypes):
    """Return the bytes that all operators read and write in one forward pass, and the tensors that casts change.

    Hidden outputs are left out. Inputs have the given shapes and dtypes (float32 if not given).
    """
    entries = entries_of(symbol, shapes, dtypes)
    casts = moved = 0
    for position, node in enumerate(nodes_of(symbol)):
        if node["op"] != "null":
            read = [entries[entry[0], entry[1]] for entry in node["inputs"]]
            written = [entry for (owner, _), entry in entries.items() if owner == position]
            if node["op"] in CASTS:
                casts += sum(before[0] != after[0] for before, after in zip(read, written))
            moved += sum(dtype.itemsize * math.prod(shape) for dtype, shape in read + written)
    return moved, casts
