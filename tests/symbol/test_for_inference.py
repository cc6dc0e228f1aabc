"""Models converted for inference: what they compute, how exactly, and what becomes of their parameters."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mxmp.errors import ParamsError
from mxmp.symbol import convert_checkpoint, convert_model, to_graph
from tests.symbol.inference_networks import fill, networks, run

IMAGE = {"data": (2, 4, 5, 5)}


def convert(network, policy="O0", dtype="float32", **options):
    """Return a network converted for inference."""
    types = dict.fromkeys(network.inputs, dtype)
    return convert_model(
        network.symbol, *network.params(dtype), policy, network.shapes, types, for_inference=True, **options
    )


def conv(data="data", name="conv", **options):
    data = mx.sym.var(data) if isinstance(data, str) else data
    return mx.sym.Convolution(data, name=name, **{"kernel": (3, 3), "num_filter": 4, **options})


def norm(data, name="bn", **options):
    return mx.sym.BatchNorm(data, name=name, **{"fix_gamma": False, **options})


def small(**options):
    """Return a convolution with a BatchNorm behind it, filled."""
    return fill(norm(conv(**options)), IMAGE)


def operators(symbol):
    return [node.op for node in to_graph(symbol).operators()]


def assert_exact(network):
    """Assert that folding changes nothing in float64 but for the last digits."""
    found = convert(network, dtype="float64")
    expected = run(network.symbol, network.inputs, network.args, network.aux, "float64")
    results = run(found.symbol, network.inputs, found.arg_params, found.aux_params, "float64")
    assert found.symbol.list_outputs() == network.symbol.list_outputs()
    for result, exact in zip(results, expected):
        np.testing.assert_allclose(result, exact, rtol=1e-10, atol=1e-10 * np.abs(exact).max(initial=1))
    return found


LAYERS = {
    "1-D": (lambda x: conv(x, kernel=(3,)), (2, 3, 7), {}),
    "2-D": (conv, (2, 3, 5, 5), {}),
    "2-D without bias": (lambda x: conv(x, no_bias=True), (2, 3, 5, 5), {}),
    "groups": (lambda x: conv(x, num_group=2, stride=(2, 2)), (2, 6, 5, 5), {}),
    "depthwise": (lambda x: conv(x, num_group=4, dilate=(2, 2)), (2, 4, 5, 5), {}),
    "axis from the end": (conv, (2, 3, 5, 5), {"axis": -3}),
    "gamma fixed": (conv, (2, 3, 5, 5), {"fix_gamma": True}),
    "large epsilon": (conv, (2, 3, 5, 5), {"eps": 0.5, "use_global_stats": True}),
    "transposed": (lambda x: deconv(x), (2, 3, 5, 5), {}),
    "transposed 1-D": (lambda x: deconv(x, kernel=(3,)), (2, 3, 5), {}),
    "transposed with bias": (lambda x: deconv(x, no_bias=False, stride=(2, 2), adj=(1, 1)), (2, 3, 5, 5), {}),
    "transposed groups": (lambda x: deconv(x, no_bias=False, num_group=2), (2, 6, 5, 5), {}),
    "dense": (lambda x: dense(x), (3, 2, 5), {}),
    "dense, last axis": (lambda x: dense(x, no_bias=True), (3, 2, 5), {"axis": -1}),
    "dense, axes kept": (lambda x: dense(x, flatten=False), (3, 2, 5), {"axis": -1}),
    "dense, axis counted": (lambda x: dense(x, flatten=False), (3, 2, 5), {"axis": 2}),
}


def deconv(x, **options):
    return mx.sym.Deconvolution(mx.sym.var(x), name="conv", **{"kernel": (3, 3), "num_filter": 4, **options})


def dense(x, **options):
    return mx.sym.FullyConnected(mx.sym.var(x), num_hidden=4, name="fc", **options)


@pytest.mark.parametrize("layer, shape, options", LAYERS.values(), ids=LAYERS.keys())
def test_a_folded_layer_computes_the_same(layer, shape, options):
    network = fill(mx.sym.Activation(norm(layer("data"), **options), act_type="relu", name="act"), {"data": shape})
    found = assert_exact(network)
    assert "BatchNorm" not in operators(found.symbol) and len(operators(found.symbol)) == 2


# What MXNet has in float32 alone: within a few roundings of sums of at most 54 terms of about 1.
FLOAT32_LAYERS = {
    "3-D": (lambda x: norm(conv(x, kernel=(3, 3, 3))), {"data": (2, 2, 4, 4, 4)}),
    "transposed 3-D": (lambda x: norm(deconv(x, kernel=(2, 2, 2), num_group=2)), {"data": (2, 4, 3, 3, 3)}),
    "old convolution": (lambda x: norm(mx.sym.Convolution_v1(mx.sym.var(x), kernel=(3, 3), num_filter=4)), IMAGE),
    "old BatchNorm": (lambda x: mx.sym.BatchNorm_v1(conv(x), fix_gamma=False, name="bn"), IMAGE),
    "old BatchNorm, gamma fixed": (lambda x: mx.sym.BatchNorm_v1(conv(x), name="bn"), IMAGE),
    "synchronized": (lambda x: mx.sym.contrib.SyncBatchNorm(conv(x), fix_gamma=False, key="bn", name="bn"), IMAGE),
    "with relu": (lambda x: mx.sym.contrib.BatchNormWithReLU(conv(x), fix_gamma=False, name="bn"), IMAGE),
    "deformable": (
        lambda x: norm(mx.sym.contrib.DeformableConvolution(
            mx.sym.var(x), mx.sym.var("offset"), kernel=(3, 3), num_filter=4, name="conv"
        )),
        {**IMAGE, "offset": (2, 18, 3, 3)},
    ),
    "modulated deformable": (
        lambda x: norm(mx.sym.contrib.ModulatedDeformableConvolution(
            mx.sym.var(x), mx.sym.var("offset"), mx.sym.var("mask"), kernel=(3, 3), num_filter=4, no_bias=True,
            name="conv",
        )),
        {**IMAGE, "offset": (2, 18, 3, 3), "mask": (2, 9, 3, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layer, shapes", FLOAT32_LAYERS.values(), ids=FLOAT32_LAYERS.keys())
def test_a_folded_layer_computes_the_same_in_float32(layer, shapes):
    network = fill(layer("data"), shapes)
    found = convert(network)
    assert found.report.count["folded"] == 1 and found.symbol.list_outputs() == network.symbol.list_outputs()
    expected = run(network.symbol, network.inputs, network.args, network.aux)
    results = run(found.symbol, network.inputs, found.arg_params, found.aux_params)
    np.testing.assert_allclose(results[0], expected[0], atol=16 * np.finfo(np.float32).eps * np.abs(expected[0]).max())


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_networks_compute_the_same(network):
    found = assert_exact(network)
    types = dict.fromkeys(network.inputs, "float64")
    again = convert_model(*found, "O0", network.shapes, types, for_inference=True)
    assert again.symbol.tojson(remove_amp_cast=False) == found.symbol.tojson(remove_amp_cast=False)
    assert "Dropout" not in operators(found.symbol)


def test_channels_last():
    """MXNet has no kernel for them on a CPU: the weights are those of channels first, transposed."""
    for layer in (conv, deconv):
        first = fill(norm(layer("data", num_group=2)), {"data": (2, 4, 5, 5)})
        last = fill(norm(layer("data", num_group=2, layout="NHWC"), axis=3), {"data": (2, 5, 5, 4)})
        args = {**first.args, "conv_weight": first.args["conv_weight"].transpose(0, 2, 3, 1)}
        expected = convert(first).arg_params["conv_weight"].asnumpy().transpose(0, 2, 3, 1)
        found = convert(last._replace(args=args, aux=first.aux)).arg_params["conv_weight"].asnumpy()
        np.testing.assert_array_equal(found, expected)


def test_weights_are_the_nearest_float32_values():
    """By a loop in extended precision, over a transposed convolution in groups with a bias."""
    network = fill(norm(deconv("data", num_group=2, no_bias=False), eps=1e-5), {"data": (2, 6, 5, 5)})
    found = convert(network).arg_params
    values = {**network.args, **network.aux}
    w, b, g, s, m, v = (
        values[name].astype(np.longdouble)
        for name in ("conv_weight", "conv_bias", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var")
    )
    for channel in range(4):
        factor = g[channel] / np.sqrt(v[channel] + np.longdouble(1e-5))
        assert found["conv_bias"].asnumpy()[channel] == np.float32(s[channel] + (b[channel] - m[channel]) * factor)
        group, column = divmod(channel, 2)
        for row in range(3 * group, 3 * group + 3):
            expected = (w[row, column] * factor).astype(np.float32)
            np.testing.assert_array_equal(found["conv_weight"].asnumpy()[row, column], expected)


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "float16", "mixed_bfloat16", "bfloat16", "float32"])
def test_weights_are_rounded_once_from_float32(policy):
    network = small()
    exact, found = convert(network), convert(network, policy)
    assert set(found.arg_params) == set(exact.arg_params) == {"conv_weight", "conv_bias"} and not found.aux_params
    for name, array in found.arg_params.items():
        if array.dtype == np.float16:
            np.testing.assert_array_equal(array.asnumpy(), exact.arg_params[name].asnumpy().astype(np.float16))
        elif array.dtype == np.float32:
            np.testing.assert_array_equal(array.asnumpy(), exact.arg_params[name].asnumpy())
    low = {"O2": "float16", "O3": "float16", "float16": "float16"}.get(policy, "float32")
    if policy != "bfloat16":
        assert {str(np.dtype(array.dtype)) for array in found.arg_params.values()} == {low}


def test_weights_of_two_layers_are_stored_twice():
    weight = mx.sym.var("shared_weight")
    first = norm(conv(weight=weight, pad=(1, 1)), "bn1")
    network = fill(mx.sym.Group([norm(conv(first, "again", weight=weight), "bn2"), first]), IMAGE)
    found = assert_exact(network)
    assert "shared_weight" not in found.arg_params
    float32 = convert(network)
    values = 4 * 4 * 9
    assert float32.param_bytes == (4 * (values + 2 * 4 + 2 * 4 * 4), 4 * 2 * (values + 4))


def test_weights_of_equal_layers_are_stored_once():
    """As detectors have them, whose head looks at several levels."""
    params = {name: mx.sym.var(name) for name in ("gamma", "beta", "moving_mean", "moving_var")}
    weight, x = mx.sym.var("head_weight"), mx.sym.var("data")
    levels = [mx.sym.Pooling(x, kernel=(n, n), pool_type="max", name=f"pool{n}") for n in (1, 2)]
    heads = [norm(conv(level, f"head{i}", weight=weight, no_bias=True), f"bn{i}", **params) for i, level in enumerate(levels)]
    found = assert_exact(fill(mx.sym.Group(heads), IMAGE))
    assert set(found.arg_params) == {"head_weight", "head_bias"}


def test_a_weight_that_is_used_otherwise_is_kept():
    net = norm(conv())
    network = fill(mx.sym.Group([net, mx.sym.sum(net.get_internals()["conv_weight"], name="penalty")]), IMAGE)
    found = assert_exact(network)
    np.testing.assert_array_equal(found.arg_params["conv_weight"].asnumpy(), network.args["conv_weight"])
    assert set(found.arg_params) == {"conv_weight", "conv_folded_weight", "conv_bias"}


def test_parameters_that_the_symbol_lacks_are_passed_on_and_their_names_not_given():
    network = small(no_bias=True)
    args, aux = network.params()
    found = convert_model(network.symbol, {**args, "conv_bias": mx.nd.ones(3)}, aux, "O0", for_inference=True)
    assert found.arg_params["conv_bias"].shape == (3,) and found.arg_params["conv_folded_bias"].shape == (4,)


def test_dropout_is_left_out_but_for_one_that_always_drops():
    data = mx.sym.Dropout(mx.sym.var("data"), p=0.3, name="first")
    data = norm(mx.sym.Dropout(conv(data), name="between", axes=(2, 3)))
    network = fill(mx.sym.Dropout(data, p=0.9, name="last"), IMAGE)
    found = assert_exact(network)
    assert operators(found.symbol) == ["Convolution", "BlockGrad"] and found.symbol.list_outputs() == ["last_output"]
    assert {row.name for row in found.report.rows if row.precision == "dropped"} == {"first", "between", "last"}
    always = fill(mx.sym.Dropout(conv(), mode="always", name="drop"), IMAGE)
    assert operators(convert(always).symbol) == ["Convolution", "Dropout"]


def test_the_report_says_what_is_gone():
    network = fill(mx.sym.Dropout(norm(conv(), "bn"), name="drop"), IMAGE)
    report = convert(network, "O2").report
    assert report.count == {"float16": 2, "folded": 1, "dropped": 1}
    assert dict(report.totals)["operators"] == "1 dropped, 2 in float16, 1 folded"
    rows = {row.op: (row.name, row.precision, row.reason) for row in report.rows}
    assert rows["BatchNorm"] == ("bn", "folded", "into the weight and bias of 'conv'")
    assert rows["Dropout"] == ("drop", "dropped", "it does nothing in inference")
    image = 2 * 4 * 3 * 3
    assert report.activation_bytes == (4 * 3 * image, 2 * 2 * image)  # of layer, norm, identity; of layer and identity
    assert "folded" in str(report) and '"folded"' in report.to_json()


def test_a_model_that_was_converted_before():
    """Its weights are folded from the values that they have, and a model prepared for inference stays as it is."""
    network = small()
    for policy in ("O1", "O2", "float16"):
        args, aux = network.params()
        stored = convert_model(network.symbol, args, aux, policy, network.shapes)
        found = convert_model(*stored, "O0", network.shapes, for_inference=True)
        low = network._replace(args={n: a.astype("float32").asnumpy() for n, a in stored.arg_params.items()})
        expected = convert(low)
        for name, array in expected.arg_params.items():
            np.testing.assert_array_equal(found.arg_params[name].asnumpy(), array.asnumpy())
        again = convert_model(*convert(network, policy), policy, network.shapes, for_inference=True)
        assert again.symbol.tojson(remove_amp_cast=False) == convert(network, policy).symbol.tojson(remove_amp_cast=False)


def test_a_network_in_float16_of_its_own_keeps_its_dtype():
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="low")
    network = fill(mx.sym.Cast(norm(conv(data)), dtype="float32", name="out"), IMAGE)
    args, aux = network.params()
    for name in ("conv_weight", "conv_bias"):
        args[name] = args[name].astype("float16")
    found = convert_model(network.symbol, args, aux, "O0", IMAGE, for_inference=True)
    values = {name: array.astype("float32").asnumpy() for name, array in args.items()}
    for name, exact in convert(small()._replace(args=values, aux=network.aux)).arg_params.items():
        assert found.arg_params[name].dtype == np.float16
        near = np.abs(found.arg_params[name].asnumpy().astype(np.float64) - exact.asnumpy())
        assert np.all(near <= 2.0**-11 * np.abs(exact.asnumpy()) + 2.0**-25)
    assert found.symbol.infer_type(data="float32")[1] == [np.float32]


def test_values_beyond_float16_are_clamped_and_reported():
    """Those of the new weights: what only the old ones had is no matter."""
    network = small()
    network.args["bn_gamma"][:] = 1e8
    found = convert(network, "O2")
    assert {change.name for change in found.changes if change.clamped} == {"conv_weight", "conv_bias"}
    assert np.abs(found.arg_params["conv_weight"].asnumpy()).max() == 65504
    kept = convert(network, "O2,out_of_range=float32")
    assert kept.out_of_range and set(kept.out_of_range) <= {"conv_bias", "conv_weight"}
    assert kept.report.count["float32"] == 2  # the convolution, and the identity of BatchNorm's name


def test_a_batch_norm_whose_factor_leaves_float32_is_left():
    data = norm(conv(pad=(1, 1)), "bn", eps=0)
    network = fill(norm(conv(data, "conv2"), "bn2"), IMAGE)
    network.aux["bn_moving_var"][1] = 1e-40
    network.args["bn_gamma"][1] = 1e30
    found = convert(network)
    assert [row.name for row in found.report.rows if row.precision == "folded"] == ["bn2"]
    assert "bn_gamma" in found.arg_params and "bn2_gamma" not in found.arg_params


def test_channels_without_variance_or_gamma():
    network = fill(norm(conv(), eps=1e-5), IMAGE)
    network.aux["bn_moving_var"][:2] = 0
    network.args["bn_gamma"][1:3] = 0
    found = assert_exact(network)
    assert not found.arg_params["conv_weight"].asnumpy()[1:3].any()


def test_ranges_follow_the_tensors():
    """BatchNorm's output is the convolution's now; what the convolution gave is nowhere any more."""
    network = fill(mx.sym.relu(norm(conv()), name="act"), IMAGE)
    for ranges, kept in (({"conv_output": 1e6}, False), ({"bn_output": 1e6}, True), ({"act_output": 1.0}, False)):
        found = convert(network, "O2", ranges=ranges)
        assert ("float32" in found.report.count) == kept


def test_numpy_symbols_and_arrays():
    with mx.util.np_shape(True), mx.util.np_array(True):
        network = fill(norm(conv()), IMAGE)
        symbol = network.symbol.as_np_ndarray()
        params = [{name: array.as_np_ndarray() for name, array in each.items()} for each in network.params()]
        found = convert_model(symbol, *params, "O2", network.shapes, for_inference=True)
        assert isinstance(found.symbol, mx.sym.numpy._Symbol)
    exact = convert(network).arg_params["conv_weight"].asnumpy()
    np.testing.assert_array_equal(found.arg_params["conv_weight"].asnumpy(), exact.astype(np.float16))


def test_an_error_names_the_file(tmp_path):
    network = small()
    args, aux = network.params()
    mx.model.save_checkpoint(str(tmp_path / "net"), 2, network.symbol, args, {**aux, "bn_moving_mean": mx.nd.ones(7)})
    with pytest.raises(ParamsError, match=r"net-0002.params: 'bn_moving_mean' has shape \(7,\), not \(4,\)"):
        convert_checkpoint(str(tmp_path / "net"), 2, str(tmp_path / "out"), for_inference=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net-0002.params", "net-symbol.json"]
