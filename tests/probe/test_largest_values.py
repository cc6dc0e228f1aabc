"""The largest magnitudes of a graph's tensors: how often the host waits for them."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.probe.largest_values import LargestValues


@pytest.mark.parametrize("as_numpy", [False, True])
@pytest.mark.parametrize(("bad", "runs"), [(1.0, 1), (np.inf, 2)])
def test_a_run_is_read_at_once(as_numpy, bad, runs, monkeypatch):
    """One read for all tensors, and one more where the graph runs again because one is not finite: NaN is counted."""
    symbol = mx.sym.relu(mx.sym.negative(mx.sym.var("x"), name="minus"), name="out")
    value = mx.nd.array([[3.0, -2.0, bad]])
    if as_numpy:
        symbol, value = symbol.as_np_ndarray(), value.as_np_ndarray()
    reads, original = [], mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: reads.append(array.shape) or original(array))
    largest = LargestValues(symbol, ())
    (output,) = largest({"x": value})
    assert reads == [(3,), (6,)][:runs]
    assert largest.found == {"x": 3.0, "minus_output": 3.0, "out_output": 2.0}
    assert type(output) is type(value) and output.shape == (1, 3)
