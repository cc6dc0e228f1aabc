"""A graph run operator by operator."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet.ndarray import CachedOp

from mxmp.symbol import from_graph
from mxmp.symbol.imperative import run_imperatively
from tests.graph.text import from_text

GRAPH = from_text(
    "a = null()\nb = null() {__lr_mult__: 2.0}\nparts = SliceChannel(a) {axis: 0; num_outputs: 2} x2\n"
    "low = Cast(parts#1) {dtype: float16}\nt = transpose(b) {__ctx_group__: dev; axes: (1, 0)}\n"
    "both = Concat(t, parts) {dim: 0; num_args: 2}\nreturn low, both, a, parts#1"
)


def arrays():
    rng = np.random.RandomState(0)
    return {"a": mx.nd.array(rng.randn(4, 3)), "b": mx.nd.array(rng.randn(3, 5))}


def test_its_outputs_are_those_of_a_cached_operator():
    known, symbol = arrays(), from_graph(GRAPH)
    found = run_imperatively(GRAPH, known)
    expected = CachedOp(symbol)(*(known[name] for name in symbol.list_inputs()))
    assert len(found) == len(expected) == 4
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.asnumpy(), theirs.asnumpy())


def test_numpy_arrays_stay_numpy_arrays():
    outputs = run_imperatively(GRAPH, {name: array.as_np_ndarray() for name, array in arrays().items()})
    assert {type(output) for output in outputs} == {mx.np.ndarray}
