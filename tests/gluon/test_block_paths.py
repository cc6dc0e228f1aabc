"""A policy's ``block:`` patterns name blocks by the paths to them, as ``load_parameters`` names these."""

from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

import mxmp
from mxmp.errors import PolicyError
from mxmp.gluon import convert, export, freeze, precision, report, set_policy
from tests.gluon.nets import Function, initialized, precisions, sequence, started

SQUARE = mx.nd.ones((4, 4))
FLOAT32, FLOAT16 = "float32", "float16"


def dense(prefix):
    return nn.Dense(4, in_units=4, prefix=prefix)


def two(kind=nn.HybridSequential):
    """Return a net of two parts, the second of two layers."""
    return started(sequence(dense("a_"), sequence(dense("b_"), dense("c_"), prefix="inner_"), kind=kind))


def marked(net):
    """Return the names of the nodes that `set_policy` or a pattern of blocks decides."""
    return [row.name for row in report(net).rows if "set_policy" in row.reason or "block override" in row.reason]


@pytest.mark.parametrize(
    "network, path",
    [
        ("resnet18_v1", "output"),
        ("resnet18_v1", "features.4.0"),  # all blocks of the stage have one prefix
        ("resnet18_v1", "features.4.1.body.0"),
        ("resnet18_v2", "features.6.0.downsample"),
        ("mobilenet_v2_0_25", "output"),
        ("mobilenet_v2_0_25", "features.4.out"),
    ],
)
def test_a_path_reaches_the_nodes_that_the_policy_of_that_block_reaches(network, path):
    net = initialized(getattr(vision, network)(classes=10))
    block = set_policy(at(net, path), FLOAT32)
    images = mx.nd.zeros((1, 3, 224, 224))
    convert(net, "O1")(images)
    expected = marked(net)
    set_policy(block, None)
    convert(net, f"O1,block:{path}=float32")(images)
    assert expected and marked(net) == expected
    assert {row.precision for row in report(net).rows if row.name in expected} == {FLOAT32}


def at(net, path):
    for name in path.split("."):
        net = net._children[name]
    return net


def test_a_path_and_a_prefix_and_a_pattern_may_stand_together():
    spec = "O1,block:0=float32,block:c_=float32"
    assert precisions(convert(two(), spec), SQUARE) == {"a": FLOAT32, "b": FLOAT16, "c": FLOAT32}
    assert precisions(convert(two(), "O1,block:1.*=float32"), SQUARE) == {"a": FLOAT16, "b": FLOAT32, "c": FLOAT32}


def test_a_name_beats_a_path_and_a_path_beats_an_operator():
    spec = "O1,block:1=float32,name:b_fwd=float16,op:FullyConnected=float16"
    assert precisions(convert(two(), spec), SQUARE) == {"a": FLOAT16, "b": FLOAT16, "c": FLOAT32}


@pytest.mark.parametrize(
    "overrides, b, c",
    [
        ("block:1=float32,block:1.0=float16", FLOAT16, FLOAT32),
        ("block:1=float16,block:1.0=float32", FLOAT32, FLOAT16),
        ("block:1.*=float16,block:1.0=float32", FLOAT16, FLOAT16),  # of one block: the longer one decides
        ("block:*=float16,block:1.0=float32", FLOAT32, FLOAT16),
        ("block:1.?=float16,block:1.0=float32", FLOAT16, FLOAT16),  # as long: low precision
        ("block:1=float16,block:c_=float32", FLOAT16, FLOAT32),  # a prefix further in
        ("block:net_=float16,block:1.1=float32", FLOAT16, FLOAT32),
        ("block:1=float32,block:c=float16", FLOAT32, FLOAT16),
        ("block:inner_=float32", FLOAT32, FLOAT32),  # of blocks with prefixes of their own
        ("block:inne*=float32,block:1=float16", FLOAT32, FLOAT32),
    ],
)
def test_of_blocks_the_innermost_decides(overrides, b, c):
    found = precisions(convert(two(), f"O1,{overrides}"), SQUARE)
    assert (found["b"], found["c"]) == (b, c)


def test_a_region_and_the_policy_of_a_block_beat_a_path():
    net = Function(lambda net, F, x: net.b(region(lambda: net.a(x))), a=dense("a_"), b=set_policy(dense("b_"), "low"))
    convert(started(net), "O1,block:a=float32,block:b=float32")
    assert precisions(net, SQUARE) == {"a": FLOAT16, "b": FLOAT16}


def region(call):
    with precision("low"):
        return call()


def test_blocks_past_their_parent_and_cells_and_symbol_blocks_are_reached():
    past = Function(lambda net, F, x: net.part[1](net.part[0](x)), part=two()[1])
    assert precisions(convert(past, "O1,block:part.0=float32"), SQUARE) == {"b": FLOAT32, "c": FLOAT16}
    assert precisions(convert(past, "O1,block:part=float32"), SQUARE) == {"b": FLOAT32, "c": FLOAT32}

    cell = gluon.rnn.RNNCell(4, input_size=4, prefix="l_")
    unrolled = Function(lambda net, F, x: net.cell.unroll(2, x, layout="NTC", merge_outputs=True)[0], cell=cell)
    found = precisions(convert(started(unrolled), "O1,block:cell=float32"), mx.nd.ones((2, 2, 4)))
    assert found["l_t0_i2h"] == found["l_t1_h2h"] == FLOAT32

    graph = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="s")
    imported = sequence(dense("a_"), gluon.SymbolBlock(graph, mx.sym.var("data")))
    assert precisions(convert(initialized(imported), "O1,block:1=float32"), SQUARE) == {"a": FLOAT16, "s": FLOAT32}


def test_a_block_that_stands_in_two_places_is_meant_by_each_of_its_paths():
    shared = dense("s_")
    net = started(sequence(shared, dense("a_"), shared))
    for path in ("0", "2"):
        convert(net, f"O1,block:{path}=float32")(SQUARE)
        assert [row.precision for row in report(net).rows] == [FLOAT32, FLOAT16, FLOAT32]


def test_paths_begin_at_the_net_that_is_converted():
    net = two(nn.Sequential)  # a graph for each part
    assert precisions(convert(net, "O1,block:0=float32"), SQUARE) == {"a": FLOAT32, "b": FLOAT16, "c": FLOAT16}
    assert precisions(convert(net, "O1,block:1.1=float32"), SQUARE) == {"a": FLOAT16, "b": FLOAT16, "c": FLOAT32}
    assert precisions(convert(net[1], "O1,block:1=float32"), SQUARE) == {"b": FLOAT16, "c": FLOAT32}


def test_parameters_are_stored_where_blocks_run():
    net = convert(two(), "O2,block:1.0=float32")
    net(SQUARE)
    stored = {name[0]: np.dtype(p.dtype).name for name, p in net.collect_params(".*weight").items()}
    assert stored == {"a": FLOAT16, "b": FLOAT32, "c": FLOAT16}


@pytest.mark.parametrize("before", [None, "O1", "O1,block:1.0=float32"])
def test_freeze_takes_paths_whatever_the_net_was_converted_to(before):
    net = two()
    net.hybridize()
    net(SQUARE)
    if before:
        convert(net, before)(SQUARE)
    rows = report(freeze(net, "O1,block:1.1=float32")).rows
    assert [row.precision for row in rows] == [FLOAT16, FLOAT16, FLOAT32]
    with pytest.raises(PolicyError, match="blocks: '1.7' matches no block; the nearest are 1.1, 1.0, 1."):
        freeze(net, "O1,block:1.7=float32")


def test_a_layer_that_freeze_folds_away_may_be_named():
    net = initialized(sequence(nn.Conv2D(2, 1, in_channels=3), nn.BatchNorm(in_channels=2)))
    net.hybridize()
    net(mx.nd.ones((1, 3, 2, 2)))
    assert report(freeze(net, "O1,block:1=float32")).count["folded"] == 1


def test_files_hold_no_paths(tmp_path):
    net = convert(two(), "O1,block:1.0=float32")
    net(SQUARE)
    symbol, _ = export(net, str(tmp_path / "net"))
    assert "Cast" in Path(symbol).read_text() and "__mxmp_blocks__" not in Path(symbol).read_text()


@pytest.mark.parametrize(
    "pattern, text",
    [
        ("ouput", "blocks: 'ouput' matches no block; the nearest are output."),
        ("head", "blocks: 'head' matches no block; expected one of features, output, features.0, features.1, "),
        ("features.99", "blocks: 'features.99' matches no block; the nearest are features.8, "),
        ("output.0", "blocks: 'output.0' matches no block; the nearest are output, "),
    ],
)
def test_an_unknown_block_is_answered_by_paths(pattern, text):
    with pytest.raises(PolicyError) as caught:
        convert(vision.resnet18_v1(classes=10), f"O1,block:{pattern}=float32")
    assert str(caught.value).startswith(text)


def test_a_block_that_runs_no_operator_is_named():
    net = started(Function(lambda net, F, x: net.used(x), used=dense("a_"), unused=dense("b_")))
    convert(net, "O1,block:unused=float32")
    with pytest.raises(PolicyError, match="block 'unused' runs no operator; name one that does, or leave it out."):
        net(SQUARE)


def test_a_module_has_no_blocks():
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="output"), name="softmax")
    module = mxmp.module.Module(symbol, policy="O1,block:features.0=float32")
    with pytest.raises(PolicyError, match="'features.0' matches no block; a symbol has nodes alone, give name:pattern"):
        module.bind([("data", (2, 3))], [("softmax_label", (2,))])


@pytest.mark.parametrize("float32", [0, 1])
def test_a_block_in_two_places_has_the_precision_of_each_place(float32):
    shared = dense("shared_")
    places = [sequence(shared, prefix="first_"), sequence(shared, prefix="second_")]
    set_policy(places[float32], FLOAT32)
    net = started(sequence(*places))
    convert(net, "O1")(SQUARE)
    found = [row.precision for row in report(net).rows if row.op == "FullyConnected"]
    assert found == ([FLOAT32, FLOAT16] if float32 == 0 else [FLOAT16, FLOAT32])
