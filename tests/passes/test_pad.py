"""Channels of zeros around convolutions in bfloat16; without them is the oracle, in float32."""

import mxnet as mx
import pytest

from mxmp.symbol import to_graph
from tests.passes.graphs import (
    assert_as_exact,
    assert_same_steps,
    channels,
    converted,
    step_of,
    values_of,
    without_rounding,
)
from tests.processors import AMD, AMX

DATA = mx.sym.var("data")
SHAPE = (2, 3, 12, 12)


@pytest.fixture(autouse=True)
def _without_amx(on_processor):
    on_processor(AMD)


def layer(data, name="first", channels=16, kernel=(3, 3), **attrs):
    return mx.sym.Convolution(data, num_filter=channels, kernel=kernel, name=name, **attrs)


def network(**attrs):
    return layer(mx.sym.Activation(layer(DATA, **attrs), act_type="relu"), "second")


# Networks that get a channel, and what they read.
PADDED = {
    "three": (network(), SHAPE),
    "seven by seven": (network(kernel=(7, 7), stride=(2, 2), pad=(3, 3)), SHAPE),
    "one": (network(channels=10), (2, 1, 12, 12)),
    "fifteen": (network(kernel=(5, 1), no_bias=True), (2, 15, 12, 12)),
    "one axis": (layer(DATA, kernel=(3,)), (2, 3, 12)),
    "three axes": (layer(DATA, kernel=(3, 1, 3)), (2, 3, 5, 5, 5)),
    "two readers": (layer(DATA, "a") + layer(DATA, "b"), SHAPE),
    "the data is an output": (mx.sym.Group([network(), mx.sym.identity(DATA)]), SHAPE),
}
POLICIES = ["mixed_bfloat16", "param=bfloat16,compute=bfloat16"]
STAYS = {
    "even": (network(), (2, 4, 12, 12)),
    "seventeen": (network(), (2, 17, 12, 12)),
    "1 x 1": (layer(DATA, kernel=(1, 1)), SHAPE),
    "groups": (network(channels=3, num_group=3), SHAPE),
    "computed in bfloat16": (layer(layer(DATA, channels=3, kernel=(1, 1)), "second"), SHAPE),
    "unknown": (network(), None),
}


def on_cpu(symbol, shape, policy="mixed_bfloat16", **options):
    return converted(symbol, {"data": shape} if shape else {}, policy).on_cpu(**options)


def padded(symbol):
    return [node.name for node in to_graph(symbol).nodes if node.name.endswith("data_padded")]


IMAGES = (4, 64, 24, 24)
HEAD = layer(DATA, channels=20)

# Networks of which a layer gets more output channels, what they read, and the output channels of all layers.
LONGER = {
    "twenty": (HEAD * 1, IMAGES, [32]),
    "a kernel that is a number": (
        mx.sym.Convolution(DATA, num_filter=24, kernel=3, name="first") * 1, (8, 192, 400), [32]),
    "one, without a bias": (layer(DATA, channels=1, kernel=(5, 5), no_bias=True) * 1, (8, 64, 40, 40), [16]),
    "of an odd number": (layer(DATA, channels=63, kernel=(7, 7)) * 1, (4, 15, 24, 24), [64]),
    "one axis": (layer(DATA, channels=24, kernel=(3,)) * 1, (8, 192, 400), [32]),
    "three axes": (layer(DATA, channels=24, kernel=(3, 3, 3)) * 1, (2, 64, 8, 8, 8), [32]),
    "a layer behind it": (layer(mx.sym.Activation(HEAD, act_type="relu"), "next", 32), IMAGES, [32, 32]),
    "BatchNorm behind it": (
        mx.sym.tanh(mx.sym.BatchNorm(layer(DATA, channels=20, no_bias=True), fix_gamma=False)), IMAGES, [32]),
    "two readers": (mx.sym.Activation(HEAD, act_type="relu") + HEAD, IMAGES, [32]),
}
SHORT = {
    "sixteens": (layer(DATA, channels=48) * 1, IMAGES),
    "1 x 1": (layer(DATA, channels=20, kernel=(1, 1)) * 1, IMAGES),
    "few pixels": (layer(DATA, channels=504) * 1, (8, 512, 7, 7)),
    "few products for an output": (layer(DATA, channels=20) * 1, (4, 16, 48, 48)),
    "a loop beside it": (
        mx.sym.Group([HEAD * 1, mx.sym.contrib.foreach(lambda x, s: (x + s, s), DATA, mx.sym.var("s"))[0]]), IMAGES),
    "groups": (layer(DATA, channels=20, num_group=4) * 1, IMAGES),
    "unknown": (HEAD * 1, None),
}


def require_same(symbol, after, shape):
    """Compare a step of training of two symbols, in float32, for two sizes of a batch."""
    for batch in (2, 5):
        assert_same_steps(symbol, without_rounding(after), values_of(symbol, {"data": (batch, *shape[1:])}))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("symbol, shape", PADDED.values(), ids=PADDED)
def test_a_channel_of_zeros_changes_neither_values_nor_gradients(symbol, shape, policy):
    result = converted(symbol, {"data": shape}, policy)
    assert not padded(result.symbol)  # what is reported, saved and counted
    after = result.on_cpu(trains=True)
    assert padded(after)
    require_same(symbol, after, shape)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("symbol, shape, expected", LONGER.values(), ids=LONGER)
def test_more_output_channels_change_neither_values_nor_gradients(symbol, shape, expected, policy):
    result = converted(symbol, {"data": shape}, policy)
    assert channels(result.symbol) == channels(symbol)
    after = result.on_cpu(trains=True)
    assert channels(after) == expected
    require_same(symbol, after, shape)


@pytest.mark.bfloat16
@pytest.mark.parametrize("name", [*PADDED, *LONGER])
def test_in_native_bfloat16_it_is_as_exact_as_without(name):
    symbol, shape, *_ = {**PADDED, **LONGER}[name]
    plain, found = (on_cpu(symbol, shape, trains=True, watched=watched) for watched in (True, False))
    assert len(to_graph(found).nodes) > len(to_graph(plain).nodes)
    values = values_of(symbol, {"data": shape})
    assert_as_exact(*(step_of(each, values) for each in (symbol, plain, found)), factor=1.25)  # sums in another order


@pytest.mark.parametrize("symbol, shape", SHORT.values(), ids=SHORT)
def test_what_gets_no_more_output_channels(symbol, shape):
    assert channels(on_cpu(symbol, shape, trains=True)) == channels(symbol)


def test_a_layer_keeps_its_channels_if_it_is_an_output_or_watched_or_takes_in_what_follows():
    assert channels(on_cpu(HEAD, IMAGES, "mixed_bfloat16,output=bfloat16")) == [20]
    assert channels(on_cpu(HEAD * 1, IMAGES, trains=True, watched=True)) == [20]
    relu = mx.sym.Activation(HEAD, act_type="relu")
    assert channels(on_cpu(relu, IMAGES, fused=True)) == [20] and channels(on_cpu(HEAD * 1, IMAGES, fused=True)) == [32]


@pytest.mark.parametrize("symbol, shape", STAYS.values(), ids=STAYS)
def test_the_rest_stays(symbol, shape):
    assert not padded(on_cpu(symbol, shape))


def test_other_policies_and_amx_stay(on_processor):
    assert not padded(on_cpu(network(), SHAPE, "O1")) and not padded(on_cpu(network(), SHAPE, "float32"))
    on_processor(AMX)
    assert not padded(on_cpu(network(), SHAPE)) and not padded(on_cpu(network(), SHAPE, fused=True))


def test_with_amx_a_lone_channel_gets_another_before_a_window_that_infers(on_processor):
    on_processor(AMX)
    lone, shape = network(), (2, 1, 12, 12)
    assert padded(on_cpu(lone, shape, fused=True)) and not padded(on_cpu(lone, shape, trains=True))
    assert not padded(on_cpu(network(kernel=(7, 7), pad=(3, 3)), shape, fused=True))
    require_same(lone, on_cpu(lone, shape, fused=True), shape)


def test_each_of_two_layers_that_share_a_weight_has_its_own():
    weight = mx.sym.var("weight")
    symbol = layer(DATA, "a", weight=weight) * layer(DATA + 1, "b", weight=weight)
    assert len(padded(on_cpu(symbol, SHAPE, trains=True))) == 2
