"""``set_policy``: blocks with a precision of their own."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

from mxmp.errors import PolicyError
from mxmp.gluon import convert, precision, report, restore, set_policy
from mxmp.gluon.blocks import conversion_of

X = mx.nd.ones((4, 4))


def dense(prefix):
    return nn.Dense(4, in_units=4, prefix=prefix)


def sequence(*blocks, prefix="net_", kind=nn.HybridSequential):
    net = kind(prefix=prefix)
    net.add(*blocks)
    return net


def initialized(net):
    net.initialize(force_reinit=True)
    return net


def three():
    return initialized(sequence(dense("a_"), sequence(dense("b_"), dense("c_"), prefix="inner_"), dense("d_")))


class PastTheParent(gluon.HybridBlock):
    """It calls the blocks within a block of its, never that itself, as detectors do with their features."""

    def __init__(self):
        super().__init__()
        self.features = sequence(dense("b_"), dense("c_"), prefix="inner_")

    def hybrid_forward(self, F, x):
        for block in self.features:
            x = block(x)
        return x


class WithRegion(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="inner_")
        self.inner, self.outer = dense("b_"), dense("c_")

    def hybrid_forward(self, F, x):
        with precision("low"):
            x = self.inner(x)
        return self.outer(x)


class Soft(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.softmax(F.dot(x, x, name="dot"), name="soft")


def symbol_block():
    return gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="b"), mx.sym.var("data"))


def low_layers(net, policy="O1", x=X):
    """Convert a net, and return the names of the nodes that run in float16, and of the others."""
    convert(net, policy)(x)
    rows = report(net).rows
    return [{row.name.replace("_fwd", "") for row in rows if row.precision == each} for each in ("float16", "float32")]


@pytest.mark.behaviour("nested policies")
@pytest.mark.parametrize(
    "make, policies, low, high",
    [
        pytest.param(three, {"inner_": "float32"}, {"a", "d"}, {"b", "c"}, id="the blocks in a block"),
        pytest.param(
            three, {"net_": "float32", "inner_": "mixed_float16", "c_": "float32"}, {"b"}, {"a", "c", "d"}, id="innermost"
        ),
        pytest.param(lambda: sequence(dense("a_")), {"net_": "float32"}, set(), {"a"}, id="the net itself"),
        pytest.param(PastTheParent, {"inner_": "float32"}, set(), {"b", "c"}, id="blocks called past their parent"),
        pytest.param(lambda: sequence(WithRegion()), {"inner_": "float32"}, {"b"}, {"c"}, id="a region is further in"),
        pytest.param(lambda: Soft(prefix="net_"), {"net_": "low"}, {"net_dot", "net_soft"}, set(), id="low forces"),
        pytest.param(lambda: Soft(prefix="net_"), {"net_": "mixed_float16"}, {"net_dot"}, {"net_soft"}, id="mixed"),
        pytest.param(
            lambda: sequence(dense("a_"), dense("b_"), kind=nn.Sequential),
            {"net_": "float32", "b_": "mixed_float16"}, {"b"}, {"a"}, id="a plain block",
        ),
        pytest.param(symbol_block, {"": "float32"}, set(), {"b"}, id="a SymbolBlock"),
    ],
)  # fmt: skip
def test_blocks_compute_under_their_own_policies(make, policies, low, high):
    net = initialized(make())

    def give(block):
        if block.prefix in policies:
            assert set_policy(block, policies[block.prefix]) is block

    net.apply(give)
    assert low_layers(net) == [low, high]


def test_it_is_further_in_than_a_region_around_the_call():
    net = three()
    set_policy(net[1], "float32")
    convert(net, "O1")
    with precision("low"):
        within = net(X).asnumpy()
    assert np.array_equal(within, net(X).asnumpy())


def test_a_symbol_block_within():
    block = symbol_block()
    graph = block._cached_graph[1].tojson()
    set_policy(block, "float32")
    assert low_layers(initialized(sequence(dense("a_"), block))) == [{"a"}, {"b"}]
    assert block._cached_graph[1].tojson() == graph and "forward" not in vars(block)


class Unrolled(gluon.HybridBlock):
    """It unrolls a cell that cannot be called."""

    def __init__(self):
        super().__init__(prefix="net_")
        cells = [gluon.rnn.RNNCell(4, input_size=4, prefix=prefix) for prefix in ("l_", "r_")]
        self.cell, self.out = gluon.rnn.BidirectionalCell(*cells), nn.Dense(4, in_units=16, prefix="out_")

    def hybrid_forward(self, F, x):
        return self.out(self.cell.unroll(2, x, merge_outputs=True)[0])


def test_a_cell_that_is_unrolled():
    net = initialized(Unrolled())
    assert low_layers(net, x=mx.nd.ones((2, 2, 4)))[0] > {"l_t0_i2h", "net_stack0", "net_bi_out", "out"}
    set_policy(net.cell, "float32")
    assert low_layers(net, x=mx.nd.ones((2, 2, 4)))[0] == {"out"}
    assert "unroll" not in vars(net.cell)


def test_a_block_that_stands_in_two_places_goes_by_what_calls_it():
    shared = dense("s_")
    net = initialized(sequence(sequence(shared, prefix="x_"), sequence(shared, prefix="y_")))
    set_policy(net[0], "float32")
    low_layers(net)
    assert [row.precision for row in report(net).rows] == ["float32", "float16"]


def test_converting_again_takes_notice_of_a_change():
    net = three()
    low_layers(net)
    first = conversion_of(net)
    low_layers(net)
    assert conversion_of(net) is first
    set_policy(net[0], "float32")
    assert report(net).count == {"float16": 4}  # until it is converted again
    assert low_layers(net) == [{"b", "c", "d"}, {"a"}]
    set_policy(net[0], None)
    assert low_layers(net) == [{"a", "b", "c", "d"}, set()]


def test_parameters_are_stored_where_blocks_run():
    net = three()
    set_policy(net[2], "float32")
    low_layers(net, "O2")
    stored = {name[0]: np.dtype(p.dtype).name for name, p in net.collect_params(".*weight").items()}
    assert stored == {"a": "float16", "b": "float16", "c": "float16", "d": "float32"}


def test_restore_leaves_only_the_mark():
    net = set_policy(three(), "float32")
    exact, before = net(X).asnumpy(), [set(vars(block)) for block in (net, net[0], net[1])]
    convert(net, "O1")(X)
    restore(net)
    assert [set(vars(block)) for block in (net, net[0], net[1])] == before
    assert np.array_equal(net(X).asnumpy(), exact)


@pytest.mark.parametrize("net_policy", ["mixed_bfloat16", "float32"])
def test_another_dtype_than_the_nets_names_the_block(net_policy):
    net = three()
    set_policy(net[1], "mixed_float16")
    with pytest.raises(PolicyError, match=r"block 'inner': set_policy gave it compute_dtype='float16', but the net's"):
        convert(net, net_policy)
    assert conversion_of(net) is None
