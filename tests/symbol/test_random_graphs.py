"""Properties of a conversion, on random networks.

The bound on the outputs is derived, not chosen: ``balls`` follows the error of every element through
the converted graph, so each output must lie within its own bound of the exact result.
"""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxmp import Policy
from mxmp.symbol import convert_graph, convert_symbol
from tests.symbol.balls import ball, evaluate
from tests.symbol.measure import entries_of
from tests.symbol.random_graphs import INPUTS, networks

POLICIES = ("O1", "O2", "O3", "O1,output=float16", "mixed_bfloat16")


def text_of(symbol):
    return symbol.tojson(remove_amp_cast=False)


def convert(symbol, network, policy, with_shapes):
    shapes = {name: value.shape for name, value in network.values().items()} if with_shapes else {}
    types = {name: "float32" for name in network.inputs}
    args = frozenset(symbol.list_arguments()) - frozenset(network.inputs)
    return convert_graph(symbol, Policy.parse(policy), shapes, types, args)


def run(symbol, network, low=frozenset()):
    arrays = [
        mx.nd.array(network.values()[name], dtype="float16" if name in low else "float32")
        for name in symbol.list_inputs()
    ]
    results = mx.nd.CachedOp(symbol)(*arrays)
    return [result.asnumpy() for result in (results if isinstance(results, list) else [results])]


def bounds(symbol, network, low=frozenset()):
    given = {}
    for name, value in network.values().items():
        exact = ball(value)
        given[name] = (
            exact._replace(error=2.0**-11 * np.abs(value) + 2.0**-25, dtype="float16") if name in low else exact
        )
    with np.errstate(all="ignore"):
        return evaluate(text_of(symbol), given)


def assert_within(found, expected):
    for result, exact in zip(found, expected):
        assert result.dtype == exact.dtype and result.shape == exact.value.shape
        known = np.isfinite(exact.error)
        excess = np.abs(result[known] - exact.value[known]) - exact.error[known]
        assert not np.any(excess > 0)


def check(network, policy, with_shapes):
    found = convert(network.symbol, network, policy, with_shapes)
    low = Policy.parse(policy).compute_dtype
    # It type-checks, by MXNet's own inference.
    shapes = {name: value.shape for name, value in network.values().items()}
    dtypes = {name: low if name in found.low_params else "float32" for name in network.values()}
    if low == "float16":
        entries_of(found.symbol, shapes, dtypes)
    assert found.symbol.list_inputs() == network.symbol.list_inputs()
    # No cast can have the name of an input or of a loop's output, so it is lost with another output dtype.
    unnameable = (*INPUTS, "_foreach") if "output=" in policy else ()
    for before, after in zip(network.symbol.list_outputs(), found.symbol.list_outputs()):
        assert before == after or before.startswith(unnameable)
    # It is idempotent.
    assert text_of(convert(found.symbol, network, policy, with_shapes).symbol) == text_of(found.symbol)
    # Converted to float32, it is the original.
    restored = convert_symbol(found.symbol, "O0")
    assert json.loads(text_of(restored)) == json.loads(text_of(network.symbol))
    if low == "float16":
        assert_within(run(network.symbol, network), bounds(network.symbol, network))
        exact = bounds(found.symbol, network, found.low_params)
        assert_within(run(found.on_cpu(), network, found.low_params), exact)


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(POLICIES), st.booleans())
def test_random(network, policy, with_shapes):
    check(network, policy, with_shapes)
