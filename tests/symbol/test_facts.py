"""What a conversion says of its graph, from the plan, is what MXNet infers of it."""

from __future__ import annotations

import mxnet as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxmp import Policy
from mxmp.symbol import convert_graph, infer_facts, to_graph
from tests.symbol import test_control_flow as loops
from tests.symbol.measure import BFLOAT16
from tests.symbol.random_graphs import networks

POLICIES = ("O1", "O2", "O3", "O1,output=float16", "mixed_bfloat16", "param=bfloat16,compute=bfloat16")


def check(symbol, policy, shapes, types=None, params=frozenset()):
    """Compare a conversion's facts with MXNet's, for which its variables have the dtypes that they had."""
    found = convert_graph(symbol, Policy.parse(policy), shapes, types, params)
    read = found.read_dtypes
    types = {name: dtype for name, dtype in read.items() if name not in found.low_params}
    compare(found.facts, infer_facts(found.symbol, to_graph(found.symbol), shapes, types, params))


def compare(found, expected):
    assert found.dtypes == expected.dtypes
    assert found.shapes == expected.shapes
    assert found.output_names == expected.output_names
    assert found.bodies.keys() == expected.bodies.keys()
    for key, body in found.bodies.items():
        compare(body, expected.bodies[key])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [loops.foreach, loops.while_loop, loops.cond])
def test_of_control_flow(make, policy):
    symbol = make()
    shapes = {name: shape for name, shape in loops.SHAPES.items() if name in symbol.list_inputs()}
    check(symbol, policy, shapes)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks(), st.sampled_from(POLICIES), st.booleans())
def test_of_a_random_network(network, policy, with_shapes):
    shapes = {name: value.shape for name, value in network.values().items()} if with_shapes else {}
    params = frozenset(network.symbol.list_arguments()) - frozenset(network.inputs)
    check(network.symbol, policy, shapes, dict.fromkeys(network.inputs, "float32"), params)


@pytest.mark.parametrize(("policy", "dtype", "flag"), [("O1", "float16", "2"), ("mixed_bfloat16", BFLOAT16, "12")])
def test_of_a_network_with_casts_of_its_own(policy, dtype, flag):
    data = mx.sym.Cast(mx.sym.var("data", attr={"__dtype__": flag}), dtype="float32")
    low = mx.sym.amp_cast(mx.sym.FullyConnected(data, num_hidden=4, name="fc"), dtype=dtype)
    net = mx.sym.FullyConnected(mx.sym.amp_cast(mx.sym.relu(low), dtype="float32"), num_hidden=3)
    check(mx.sym.Group([net, low]), policy, {"data": (2, 3)})


def test_of_a_stand_in_with_a_factor():
    left, right = mx.sym.var("left"), mx.sym.var("right")
    net = mx.sym.linalg_gemm2(mx.sym.exp(left), right, alpha=0.5, name="gemm")
    check(mx.sym.exp(net), "O1", {"left": (2, 3, 4), "right": (2, 4, 5)})
