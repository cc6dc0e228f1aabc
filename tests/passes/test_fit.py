"""Networks that infer in bfloat16, with the channels, windows and norms that are fast; float32's values are the oracle."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.symbol import convert_model
from tests.passes.graphs import channels, conv, operators, without_rounding
from tests.processors import AMD, AMX, KINDS
from tests.symbol.inference_networks import fill, run

DATA = mx.sym.var("data")
WEIGHT = mx.sym.var("w")
BIG = (2, 64, 8, 8)


def relu(data):
    return mx.sym.Activation(data, act_type="relu")


def depthwise(data, channels):
    return conv(data, channels, num_group=channels)


def last(data):
    """Return the dense layer behind a tensor, which may have any number of channels."""
    return mx.sym.FullyConnected(data, num_hidden=10, name="last")


def pooled(data, **attrs):
    return mx.sym.Pooling(data, kernel=(2, 2), stride=(2, 2), **{"pool_type": "max", **attrs})


def concat(*data):
    return mx.sym.Concat(*data, dim=1)


def sums(a, b):
    return mx.sym.elemwise_add(a, b)


def head(data, channels):
    """Return a class head as SqueezeNet's."""
    scores = relu(conv(data, channels, 1))
    return mx.sym.Flatten(mx.sym.Pooling(scores, kernel=(8, 8), global_pool=True, pool_type="avg"))


def infer(symbol, policy="mixed_bfloat16"):
    return convert(fill(symbol, {"data": BIG}), policy)


def convert(network, policy="mixed_bfloat16"):
    return convert_model(network.symbol, *network.params(), policy, network.shapes, for_inference=True)


def require_same(symbol, model):
    require_same_network(fill(symbol, {"data": BIG}), model)


def require_same_network(network, model):
    """Compare what a model gives with its network in float32, by casts that round nothing."""
    found = run(without_rounding(model.symbol), network.inputs, model.arg_params, model.aux_params)
    assert model.symbol.list_outputs() == network.symbol.list_outputs()
    for one, other in zip(network.run(), found):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-5 * np.nanmax(np.abs(one), initial=1), equal_nan=True)


# Networks, and the channels that their convolutions have with AMX and on an EPYC.
NETWORKS = {
    "read by a window": (last(conv(relu(conv(DATA, 48)), 64)), [64, 64], [48, 64]),
    "read by a window of few": (last(conv(relu(conv(DATA, 24)), 64)), [32, 64], [32, 64]),
    "read by one pixel": (last(conv(relu(conv(DATA, 16)), 64, 1)), [32, 64], [16, 64]),
    "read by one pixel, few channels": (last(conv(relu(conv(DATA, 8)), 64, 1)), [16, 64], [16, 64]),
    "odd": (last(conv(relu(conv(DATA, 63)), 64)), [64, 64], [64, 64]),
    "fitting": (last(conv(relu(conv(DATA, 64)), 96)), [64, 96], [64, 96]),
    "read by a dense layer": (last(relu(conv(DATA, 20))), [32], [32]),
    "one pixel, read by a dense layer": (last(relu(conv(DATA, 20, 1))), [32], [20]),
    "pooling and clip": (last(conv(pooled(mx.sym.clip(conv(DATA, 40), 0, 6)), 64)), [64, 64], [48, 64]),
    "depthwise": (last(conv(depthwise(relu(conv(DATA, 24, 1)), 24), 64, 1)), [32, 32, 64], [32, 32, 64]),
    "concat": (last(conv(concat(relu(conv(DATA, 40)), DATA, relu(conv(DATA, 24))), 64)), [64, 32, 64], [48, 32, 64]),
    "concat that fits": (last(conv(concat(relu(conv(DATA, 48)), relu(conv(DATA, 16, 5))), 64)), [48, 16, 64], [48, 16, 64]),
    "sum": (last(conv(sums(conv(DATA, 40), relu(conv(DATA, 40))), 64)), [64, 64, 64], [48, 48, 64]),
    "flattened by hand": (last(mx.sym.Flatten(relu(conv(DATA, 20)))), [32], [32]),
    "without biases": (last(conv(relu(conv(DATA, 40, no_bias=True)), 64, no_bias=True)), [64, 64], [48, 64]),
    "class head": (head(DATA, 100), [112], [100]),
    "a window's class head": (mx.sym.Pooling(conv(DATA, 100), kernel=(8, 8), global_pool=True, pool_type="avg"), [112], [112]),
}  # fmt: skip
SHARED = conv(DATA, 20)
STAYS = {
    "an output": conv(DATA, 20),
    "also an output": mx.sym.Group([last(relu(SHARED)), SHARED]),
    "softmax": mx.sym.softmax(conv(DATA, 20), axis=1),
    "a sum with data": last(sums(conv(DATA, 64), DATA)),
    "a product": last(mx.sym.broadcast_mul(conv(DATA, 20), mx.sym.var("scale", shape=(1, 20, 1, 1)))),
    "groups": last(conv(conv(DATA, 40), 40, num_group=4)),
    "one pixel of an image": last(conv(mx.sym.Pooling(DATA, kernel=(8, 8), pool_type="avg"), 20, 1)),
    "dense layers": last(mx.sym.FullyConnected(DATA, num_hidden=20)),
    "prelu": last(mx.sym.LeakyReLU(conv(DATA, 20), mx.sym.var("slope"), act_type="prelu")),
    "transposed": last(mx.sym.Deconvolution(conv(DATA, 20), kernel=(3, 3), num_filter=8)),
    "a shared weight": last(concat(*(conv(data, 20, weight=WEIGHT, no_bias=True) for data in (DATA, DATA + 1)))),
}


@pytest.mark.parametrize("kind", [AMX, AMD], ids=lambda kind: kind.name)
@pytest.mark.parametrize("symbol, with_amx, with_amd", NETWORKS.values(), ids=NETWORKS)
def test_layers_have_the_channels_that_are_fast_and_the_same_values(symbol, with_amx, with_amd, kind, on_processor):
    on_processor(kind)
    model = infer(symbol)
    expected = with_amx if kind == AMX else with_amd
    assert channels(model.symbol) == expected
    assert bool(model.padded) == (expected != channels(symbol))
    require_same(symbol, model)


@pytest.mark.parametrize("symbol", STAYS.values(), ids=STAYS)
def test_what_cannot_carry_zeros_stays(symbol, on_processor):
    on_processor(AMX)
    model = infer(symbol)
    assert not model.padded and channels(model.symbol) == channels(symbol)
    require_same(symbol, model)


def test_the_report_says_so_and_counts_the_bytes(on_processor):
    on_processor(AMX)
    model = infer(NETWORKS["read by a window"][0])
    (note,) = model.report.notes
    assert note.startswith("1 layers have channels of zeros, as 'convolution")
    assert model.param_bytes[1] > model.param_bytes[0]


def test_what_is_exported_is_final(on_processor, tmp_path):
    on_processor(AMX)
    symbol = NETWORKS["concat"][0]
    model = infer(symbol)
    for policy in ("float32", "mixed_bfloat16", "O2"):
        again = convert_model(*model, policy, {"data": BIG}, for_inference=True)
        assert channels(again.symbol) == channels(model.symbol) and not again.padded


def test_a_flattened_head_is_right_for_images_of_other_sizes(on_processor):
    on_processor(AMX)
    scores = conv(DATA, 100, name="scores")
    symbol = mx.sym.Flatten(mx.sym.Pooling(scores, kernel=(8, 8), stride=(8, 8), pool_type="avg"))
    network = fill(symbol, {"data": BIG})
    model = convert(network)
    assert channels(model.symbol) == [112]
    large = np.random.RandomState(1).uniform(-1, 1, (2, 64, 16, 16)).astype("float32")
    require_same_network(network._replace(inputs={"data": large}), model)


def test_sums_behind_one_another_have_one_number_of_channels(on_processor):
    on_processor(AMX)
    tensor = conv(DATA, 40, 1)
    for _ in range(1500):
        tensor = sums(tensor, tensor)
    assert channels(infer(last(conv(tensor, 64))).symbol) == [64, 64]


def test_a_slice_beyond_the_channels_keeps_its_values(on_processor):
    on_processor(AMX)
    cut = mx.sym.slice(relu(conv(DATA, 40)), begin=(None, 8), end=(None, 99))
    rows = mx.sym.slice(mx.sym.FullyConnected(DATA, num_hidden=40), begin=(None, 8), end=(None, 99))
    for symbol in (last(conv(cut, 64)), last(rows)):
        require_same(symbol, infer(symbol))


# ------------------------------------------------------------------ 1 x 1 and 3 x 3 as one


def fire(data, left=64, right=64, act=True, **attrs):
    outputs = [conv(data, left, 1), conv(data, right, 3, **attrs)]
    return concat(*map(relu, outputs)) if act else concat(*outputs)


MERGED = {
    "relus": (last(fire(relu(conv(DATA, 32)))), [32, 128]),
    "no relus": (last(fire(DATA, act=False)), [128]),
    "three": (last(concat(relu(conv(DATA, 32, 1)), relu(conv(DATA, 64)), relu(conv(DATA, 32, 1)))), [128]),
    "strides": (last(concat(*(conv(DATA, 64, kernel, stride=(2, 2)) for kernel in (3, 1)))), [128]),
    "an output": (fire(DATA), [128]),
    "one behind another": (last(fire(fire(DATA))), [128, 128]),
}
APART = {
    "another activation": last(concat(relu(conv(DATA, 64, 1)), mx.sym.tanh(conv(DATA, 64)))),
    "one without": last(concat(conv(DATA, 64, 1), relu(conv(DATA, 64)))),
    "other data": last(concat(conv(DATA + 1, 64, 1), conv(DATA, 64))),
    "no window": last(concat(conv(DATA, 64, 1), conv(DATA, 64, 1))),
    "dilated": last(fire(DATA, dilate=(2, 2), pad=(2, 2))),
    "without a bias": last(concat(conv(DATA, 64, 1), conv(DATA, 64, no_bias=True))),
    "larger": last(concat(conv(DATA, 64, 1), conv(DATA, 64, 5))),
    "sigmoids": last(concat(mx.sym.sigmoid(conv(DATA, 64, 1)), mx.sym.sigmoid(conv(DATA, 64)))),
    "pools": last(concat(pooled(conv(DATA, 64, 1)), pooled(conv(DATA, 64)))),
    "clips": last(concat(mx.sym.clip(conv(DATA, 64, 1), 0, 6), mx.sym.clip(conv(DATA, 64), 0, 6))),
    "sums": last(concat(sums(conv(DATA, 64, 1), DATA), sums(conv(DATA, 64), DATA))),
    "variables": last(concat(mx.sym.var("one", shape=BIG), mx.sym.var("two", shape=BIG), conv(DATA, 64))),
    "more pixels than windows": last(fire(DATA, left=96)),
}


@pytest.mark.parametrize("symbol, expected", MERGED.values(), ids=MERGED)
def test_a_window_takes_in_the_pixels_beside_it(symbol, expected, on_processor):
    on_processor(AMX)
    model = infer(symbol)
    assert channels(model.symbol) == expected and "Concat" not in operators(model.symbol)
    require_same(symbol, model)


@pytest.mark.parametrize("symbol", APART.values(), ids=APART)
def test_what_is_not_alike_stays_apart(symbol, on_processor):
    on_processor(AMX)
    model = infer(symbol)
    assert "Concat" in operators(model.symbol)
    require_same(symbol, model)


# ------------------------------------------------------------------ BatchNorm and relu


def norm(data, **attrs):
    return mx.sym.BatchNorm(data, name="norm", **{"fix_gamma": False, **attrs})


LOW = pooled(relu(conv(DATA, 64)))
NORMS = {
    "concat": last(conv(relu(norm(concat(DATA, relu(conv(DATA, 32))))), 64, 1)),
    "pooling": last(conv(relu(norm(LOW)), 64)),
    "fixed gamma": last(conv(relu(norm(LOW, fix_gamma=True)), 64)),
    "two readers": last(concat(*(conv(x, 64, k, no_bias=True) for x in [relu(norm(LOW))] for k in (1, 3)))),
    "epsilon": last(conv(relu(norm(LOW, eps=0.5)), 64)),
}
STATISTICS = norm(LOW, output_mean_var=True)
LEFT = {
    "no relu": last(conv(norm(LOW), 64)),
    "read beside": last(conv(sums(relu(norm(LOW)), LOW), 64)),
    "depthwise": last(depthwise(relu(norm(LOW)), 64)),
    "an output": relu(norm(LOW)),
    "another axis": last(conv(relu(norm(LOW, axis=2)), 64)),
    "float32": last(conv(relu(norm(pooled(DATA))), 64)),
    "statistics read": mx.sym.Group([last(conv(relu(STATISTICS[0]), 64)), mx.sym.BlockGrad(STATISTICS[1])]),
}


@pytest.mark.parametrize("symbol", NORMS.values(), ids=NORMS)
def test_a_norm_with_relu_is_a_depthwise_convolution(symbol, on_processor):
    on_processor(AMX)
    model = infer(symbol)
    assert "BatchNorm" not in operators(model.symbol)
    assert [row.precision for row in model.report.rows if row.op == "BatchNorm"] == ["folded"]
    require_same(symbol, model)


@pytest.mark.parametrize("symbol", LEFT.values(), ids=LEFT)
def test_other_norms_stay(symbol, on_processor):
    on_processor(AMX)
    model = infer(symbol)
    assert "BatchNorm" in operators(model.symbol)
    require_same(symbol, model)


@pytest.mark.parametrize("gamma", [0.0, -2.0, 1e-30, 1e30, np.nan], ids=str)
def test_factors_of_every_kind_keep_their_values(gamma, on_processor):
    on_processor(AMX)
    network = fill(NORMS["pooling"], {"data": BIG})
    network.args["norm_gamma"][3] = gamma
    model = convert(network)
    assert ("BatchNorm" in operators(model.symbol)) == np.isnan(gamma)
    require_same_network(network, model)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "O1", "float32"])
def test_only_bfloat16_on_a_kind_that_gains_is_padded_and_only_amx_merges_and_writes_norms(kind, policy, on_processor):
    on_processor(kind)
    low = policy == "mixed_bfloat16"
    assert bool(infer(NETWORKS["depthwise"][0], policy=policy).padded) == (low and kind in (AMX, AMD))
    assert (channels(infer(MERGED["relus"][0], policy=policy).symbol) == [32, 128]) == (low and kind == AMX)
    assert ("BatchNorm" in operators(infer(NORMS["concat"], policy=policy).symbol)) != (low and kind == AMX)


def test_a_norm_that_an_override_keeps_in_float32_stays(on_processor):
    on_processor(AMX)
    model = infer(NORMS["pooling"], policy="mixed_bfloat16,name:norm=float32")
    assert "BatchNorm" in operators(model.symbol)
