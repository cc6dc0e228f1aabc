"""Properties of a conversion, on random networks.

The bound on the outputs is derived, not chosen: ``balls`` follows the error of every element through
the converted graph, so each output must lie within its own bound of the exact result.
"""

import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxmp import Policy
from mxmp.symbol import convert_symbol
from tests.symbol.balls import ball, evaluate
from tests.symbol.random_graphs import INPUTS, networks
from tests.symbol.small import assert_facts, convert, text

POLICIES = ("O1", "O2", "O3", "O1,output=float16", "mixed_bfloat16", "param=bfloat16,compute=bfloat16")


def assert_within_bounds(symbol, runs, network, low=frozenset()):
    """Check that the outputs of ``runs``, the symbol as a CPU runs it, lie within the bounds of the symbol's."""
    balls, arrays = {}, []
    for name, value in network.values().items():
        balls[name] = ball(value)
        if name in low:
            balls[name] = balls[name]._replace(error=2.0**-11 * np.abs(value) + 2.0**-25, dtype="float16")
    for name in runs.list_inputs():
        arrays.append(mx.nd.array(network.values()[name], dtype=balls[name].dtype))
    results = mx.nd.CachedOp(runs)(*arrays)
    with np.errstate(all="ignore"):
        expected = evaluate(text(symbol), balls)
    for result, exact in zip(results if isinstance(results, list) else [results], expected):
        assert np.dtype(result.dtype) == exact.dtype and result.shape == exact.value.shape
        known = np.isfinite(exact.error)
        excess = np.abs(result.asnumpy()[known] - exact.value[known]) - exact.error[known]
        assert not np.any(excess > 0)


@pytest.mark.behaviour(22)
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(POLICIES), st.booleans())
def test_random(network, policy, with_shapes):
    shapes = {name: value.shape for name, value in network.values().items()} if with_shapes else {}
    params = frozenset(network.symbol.list_arguments()) - frozenset(network.inputs)
    options = policy, shapes, params, dict.fromkeys(network.inputs, "float32")
    found = convert(network.symbol, *options)
    assert_facts(found, shapes, params)
    assert found.symbol.list_inputs() == network.symbol.list_inputs()
    # No cast can have the name of an input or of a loop's output, so it is lost with another output dtype.
    unnameable = (*INPUTS, "_foreach") if "output=" in policy else ()
    for before, after in zip(network.symbol.list_outputs(), found.symbol.list_outputs()):
        assert before == after or before.startswith(unnameable)
    assert text(convert(found.symbol, *options).symbol) == text(found.symbol)
    assert json.loads(text(convert_symbol(found.symbol, "O0"))) == json.loads(text(network.symbol))
    if Policy.parse(policy).compute_dtype == "float16":
        assert_within_bounds(network.symbol, network.symbol, network)
        assert_within_bounds(found.symbol, found.on_cpu(), network, found.low_params)
