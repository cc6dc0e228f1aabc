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

X = mx.nd.ones((2, 4))


def dense(prefix=None):
    return nn.Dense(4, in_units=4, prefix=prefix)


def sequence(*blocks, prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    net.add(*blocks)
    return net


def precisions(net, x=X):
    net(x)
    return {row.name.replace("_fwd", ""): row.precision for row in report(net).rows}


def initialized(net):
    net.initialize()
    return net


def three():
    return initialized(sequence(dense("a_"), sequence(dense("b_"), dense("c_"), prefix="inner_"), dense("d_")))


@pytest.mark.behaviour("nested policies")
def test_a_block_in_float32_takes_the_blocks_in_it_along():
    net = three()
    assert set_policy(net[1], "float32") is net[1]
    convert(net, "O1")
    assert precisions(net) == {"a": "float16", "b": "float32", "c": "float32", "d": "float16"}


@pytest.mark.behaviour("nested policies")
def test_the_innermost_policy_wins():
    net = three()
    set_policy(net, "float32")
    set_policy(net[1], "mixed_float16")
    set_policy(net[1][1], "float32")
    convert(net, "O1")
    assert precisions(net) == {"a": "float32", "b": "float16", "c": "float32", "d": "float32"}


def test_the_converted_net_itself_may_have_one():
    net = set_policy(dense("a_"), "float32")
    net.initialize()
    convert(net, "O1")
    assert precisions(net) == {"a": "float32"}


class PastTheParent(gluon.HybridBlock):
    """It calls the blocks within a block of its, never that itself, as detectors do with their features."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.features = sequence(dense("b_"), dense("c_"), prefix="inner_")

    def hybrid_forward(self, F, x):
        for block in self.features:
            x = block(x)
        return x


def test_blocks_called_past_their_parent():
    net = PastTheParent()
    net.initialize()
    set_policy(net.features, "float32")
    convert(net, "O1")
    assert precisions(net) == {"b": "float32", "c": "float32"}


class WithRegion(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.outer = dense("b_"), dense("c_")

    def hybrid_forward(self, F, x):
        with precision("low"):
            x = self.inner(x)
        return self.outer(x)


def test_a_region_in_hybrid_forward_is_further_in():
    net = initialized(sequence(WithRegion()))
    set_policy(net[0], "float32")
    convert(net, "O1")
    assert precisions(net) == {"b": "float16", "c": "float32"}


def test_it_is_further_in_than_a_region_around_the_call():
    net = three()
    set_policy(net[1], "float32")
    convert(net, "O1")
    with precision("low"):
        found = net(X).asnumpy()
    assert np.array_equal(found, net(X).asnumpy())


def test_low_forces_what_the_policy_leaves_in_float32():
    class Soft(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.softmax(F.dot(x, x), name="soft")

    for policy, expected in (("low", "float16"), ("mixed_float16", "float32")):
        net = set_policy(Soft(prefix=""), policy)
        convert(net, "O1")
        assert precisions(net, mx.nd.ones((2, 2)))["soft"] == expected


def test_blocks_of_a_plain_block():
    net = nn.Sequential()
    net.add(dense("a_"), dense("b_"))
    net.initialize()
    set_policy(net, "float32")
    set_policy(net[1], "mixed_float16")
    convert(net, "O1")
    assert precisions(net) == {"a": "float32", "b": "float16"}


def test_a_symbol_block_within():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="b")
    block = gluon.SymbolBlock(symbol, mx.sym.var("data"))
    net = initialized(sequence(dense("a_"), block))
    set_policy(block, "float32")
    convert(net, "O1")
    assert precisions(net) == {"a": "float16", "b": "float32"}
    assert block._cached_graph[1].tojson() == symbol.tojson() and "forward" not in vars(block)


def test_a_symbol_block_by_itself():
    block = gluon.SymbolBlock(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="b"), mx.sym.var("data"))
    block.initialize()
    set_policy(block, "float32")
    convert(block, "O1")
    assert precisions(block) == {"b": "float32"}


class Unrolled(gluon.HybridBlock):
    """It unrolls a cell that cannot be called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        cells = [gluon.rnn.RNNCell(4, input_size=4, prefix=prefix) for prefix in ("l_", "r_")]
        self.cell, self.out = gluon.rnn.BidirectionalCell(*cells), nn.Dense(4, in_units=16, prefix="out_")

    def hybrid_forward(self, F, x):
        return self.out(self.cell.unroll(2, x, merge_outputs=True)[0])


def test_a_cell_that_is_unrolled():
    net, x = initialized(Unrolled(prefix="net_")), mx.nd.ones((2, 2, 4))
    low = []
    for policy in (None, "float32"):
        set_policy(net.cell, policy)
        convert(net, "O1")
        low.append({name for name, found in precisions(net, x).items() if found == "float16"})
    assert low[0] > {"l_t0_i2h", "net_stack0", "net_bi_out", "out"} and low[1] == {"out"}
    assert "unroll" not in vars(net.cell)


def test_a_block_that_stands_in_two_places_goes_by_what_calls_it():
    shared = dense("s_")
    net = initialized(sequence(sequence(shared, prefix="x_"), sequence(shared, prefix="y_")))
    set_policy(net[0], "float32")
    convert(net, "O1")
    net(X)
    assert [row.precision for row in report(net).rows] == ["float32", "float16"]


def test_converting_again_takes_notice():
    net = three()
    convert(net, "O1")
    set_policy(net[0], "float32")
    assert precisions(net)["a"] == "float16"
    convert(net, "O1")
    assert precisions(net)["a"] == "float32"
    set_policy(net[0], None)
    convert(net, "O1")
    assert set(precisions(net).values()) == {"float16"}


def test_converting_again_without_a_change_keeps_the_conversion():
    net = set_policy(three(), "mixed_float16")
    convert(net, "O1")
    first = conversion_of(net)
    convert(net, "O1")
    assert conversion_of(net) is first


def test_parameters_are_stored_where_blocks_run():
    net = three()
    set_policy(net[2], "float32")
    convert(net, "O2")
    net(X)
    stored = {name: np.dtype(p.dtype).name for name, p in net.collect_params(".*weight").items()}
    assert stored == {"a_weight": "float16", "b_weight": "float16", "c_weight": "float16", "d_weight": "float32"}


def test_restore_leaves_only_the_mark():
    net = set_policy(three(), "float32")
    exact, before = net(X).asnumpy(), [set(vars(block)) for block in (net, net[0], net[1])]
    convert(net, "O1")
    net(X)
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
