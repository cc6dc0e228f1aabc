"""Overrides that ask for low precision where an output of the network cannot have it: errors, never silence."""

import re

import mxnet as mx
import pytest

from mxmp.errors import PolicyError
from mxmp.gluon import convert, precision, report, set_policy
from mxmp.symbol import convert_symbol
from tests.gluon.nets import Function, sequence

X = mx.nd.ones((2, 4))


def parts(F, x):
    """Return an operator's outputs, which have names of their own: ``parts_output0``, as no cast is called."""
    return list(F.SliceChannel(F.relu(x, name="relu"), num_outputs=2, name="parts"))


def in_region(net, F, x):
    with precision("low"):
        return parts(F, x)


def symbol():
    return mx.sym.Group(parts(mx.sym, mx.sym.var("data")))


def net(function=lambda net, F, x: parts(F, x), policy=None):
    return sequence(set_policy(Function(function), policy))


ASKED = {
    "a name, of a net": lambda: convert(net(), "O1", names={"*parts": "float16"})(X),
    "a block": lambda: convert(net(), "O1", blocks={"0": "float16"})(X),
    "an operator": lambda: convert(net(), "O1", ops={"SliceChannel": "float16"})(X),
    "set_policy": lambda: convert(net(policy="low"), "O1")(X),
    "a region": lambda: convert(net(in_region), "O1")(X),
    "a name, of a symbol": lambda: convert_symbol(symbol(), "O1,name:parts=float16"),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_low_precision_that_is_asked_for_by_name_and_cannot_be_is_an_error(ask):
    with pytest.raises(PolicyError) as caught:
        ask()
    # The node, the dtype, and what to do: leave it in float32, or have outputs in low precision.
    assert re.search(r"float16 at node '\w*parts' \(SliceChannel\).*float32", str(caught.value))


def test_it_is_met_where_outputs_may_be_in_low_precision():
    found = convert(net(), "O1", names={"*parts": "float16"}, output_dtype="float16")
    assert [output.dtype for output in found(X)] == [mx.np.float16] * 2


def test_nobody_asks_and_it_runs_in_float32():
    found = convert(net(), "O1")
    found(X)
    assert {row.op: row.precision for row in report(found).rows}["SliceChannel"] == "float32"


def test_a_pattern_that_matches_nothing_is_an_error_within_a_hybridized_net_that_is_not_converted():
    inner = convert(sequence(Function(lambda net, F, x: F.relu(x))), "O1", names={"absent*": "float32"})
    outer = sequence(inner)
    outer.hybridize()
    with pytest.raises(PolicyError, match=r"absent\*"):
        outer(X)
