"""Models converted for inference: what they compute, how exactly, and what becomes of their parameters."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mxmp.symbol import convert_model, to_graph
from tests.symbol.balls import ball, evaluate
from tests.symbol.inference_networks import fill, run
from tests.symbol.random_graphs import networks
from tests.symbol.small import text

IMAGE = {"data": (2, 4, 5, 5)}


def convert(network, policy="O0", dtype="float32", **options):
    """Return a network converted for inference."""
    types = dict.fromkeys(network.inputs, dtype)
    params = network.params(dtype)
    return convert_model(network.symbol, *params, policy, network.shapes, types, for_inference=True, **options)


def conv(data="data", name="conv", op=mx.sym.Convolution, **options):
    data = mx.sym.var(data) if isinstance(data, str) else data
    return op(data, name=name, **{"kernel": (3, 3), "num_filter": 4, **options})


def deconv(data, **options):
    return conv(data, op=mx.sym.Deconvolution, **options)


def dense(x, **options):
    return mx.sym.FullyConnected(mx.sym.var(x), num_hidden=4, name="fc", **options)


def norm(data, name="bn", **options):
    return mx.sym.BatchNorm(data, name=name, **{"fix_gamma": False, **options})


def small(**options):
    """Return a convolution with a BatchNorm behind it, filled."""
    return fill(norm(conv(**options)), IMAGE)


def operators(symbol):
    return [node.op for node in to_graph(symbol).operators()]


def assert_exact(network, dtype="float64"):
    """Assert that folding changes nothing but the last digits: roundings of sums of at most 100 terms of about 1."""
    found = convert(network, dtype=dtype)
    results = run(found.symbol, network.inputs, found.arg_params, found.aux_params, dtype)
    assert found.symbol.list_outputs() == network.symbol.list_outputs()
    bound = 1e-10 if dtype == "float64" else 16 * np.finfo(dtype).eps
    for result, exact in zip(results, network.run(dtype)):
        np.testing.assert_allclose(result, exact, rtol=bound, atol=bound * np.abs(exact).max(initial=1))
    return found


LAYERS = {
    "1-D": (norm(conv(kernel=(3,))), (2, 3, 7)),
    "2-D": (norm(conv()), (2, 3, 5, 5)),
    "2-D without bias": (norm(conv(no_bias=True)), (2, 3, 5, 5)),
    "groups": (norm(conv(num_group=2, stride=(2, 2))), (2, 6, 5, 5)),
    "depthwise": (norm(conv(num_group=4, dilate=(2, 2))), (2, 4, 5, 5)),
    "axis from the end": (norm(conv(), axis=-3), (2, 3, 5, 5)),
    "gamma fixed": (norm(conv(), fix_gamma=True), (2, 3, 5, 5)),
    "large epsilon": (norm(conv(), eps=0.5, use_global_stats=True), (2, 3, 5, 5)),
    "transposed": (norm(deconv("data")), (2, 3, 5, 5)),
    "transposed 1-D": (norm(deconv("data", kernel=(3,))), (2, 3, 5)),
    "transposed with bias": (norm(deconv("data", no_bias=False, stride=(2, 2), adj=(1, 1))), (2, 3, 5, 5)),
    "transposed groups": (norm(deconv("data", no_bias=False, num_group=2)), (2, 6, 5, 5)),
    "dense": (norm(dense("data")), (3, 2, 5)),
    "dense, last axis": (norm(dense("data", no_bias=True), axis=-1), (3, 2, 5)),
    "dense, axes kept": (norm(dense("data", flatten=False), axis=2), (3, 2, 5)),
}
FLOAT32_LAYERS = {  # what MXNet has in float32 alone
    "3-D": (norm(conv(kernel=(3, 3, 3))), (2, 2, 4, 4, 4)),
    "transposed 3-D": (norm(deconv("data", kernel=(2, 2, 2), num_group=2)), (2, 4, 3, 3, 3)),
    "old convolution": (norm(conv(op=mx.sym.Convolution_v1)), (2, 4, 5, 5)),
    "old BatchNorm": (mx.sym.BatchNorm_v1(conv(), fix_gamma=False, name="bn"), (2, 4, 5, 5)),
    "old BatchNorm, gamma fixed": (mx.sym.BatchNorm_v1(conv(), name="bn"), (2, 4, 5, 5)),
    "synchronized": (mx.sym.contrib.SyncBatchNorm(conv(), fix_gamma=False, key="bn", name="bn"), (2, 4, 5, 5)),
    "with relu": (mx.sym.contrib.BatchNormWithReLU(conv(), fix_gamma=False, name="bn"), (2, 4, 5, 5)),
    "deformable": (norm(conv(offset=mx.sym.var("offset"), op=mx.sym.contrib.DeformableConvolution)), (2, 4, 5, 5)),
}
CASES = {**{name: (*case, "float64") for name, case in LAYERS.items()},
         **{name: (*case, "float32") for name, case in FLOAT32_LAYERS.items()}}  # fmt: skip


@pytest.mark.parametrize("net, shape, dtype", CASES.values(), ids=CASES.keys())
def test_a_folded_layer_computes_the_same(net, shape, dtype):
    shapes = {"data": shape, **({"offset": (2, 18, 3, 3)} if "offset" in net.list_arguments() else {})}
    found = assert_exact(fill(mx.sym.Activation(net[0], act_type="relu", name="act"), shapes), dtype)
    assert found.report.count["folded"] == 1 and not any("BatchNorm" in op for op in operators(found.symbol))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_networks_compute_the_same(network):
    """In exact arithmetic, within the error that their new weights and their own operators may have in float32."""
    shapes = {name: value.shape for name, value in network.inputs.items()}
    arrays = {name: mx.nd.array(value) for name, value in network.params.items()}
    aux = {name: arrays.pop(name) for name in network.symbol.list_auxiliary_states()}
    found = convert_model(network.symbol, arrays, aux, "O0", shapes, for_inference=True)
    assert "Dropout" not in operators(found.symbol)
    again = convert_model(*found, "O0", shapes, for_inference=True)
    assert text(again.symbol) == text(found.symbol)
    params = {name: array.asnumpy() for name, array in {**found.arg_params, **found.aux_params}.items()}
    balls = {name: ball(value) for name, value in network.inputs.items()}
    balls.update({name: ball(value)._replace(error=2.0**-24 * np.abs(value)) for name, value in params.items()})
    expected = evaluate(text(network.symbol), {name: ball(v) for name, v in network.values().items()})
    for result, exact in zip(evaluate(text(found.symbol), balls), expected):
        np.testing.assert_array_less(np.abs(result.value - exact.value), result.error + 1e-300)


@pytest.mark.parametrize("layer", [conv, deconv])
def test_channels_last(layer):
    """MXNet has no kernel for them on a CPU: the weights are those of channels first, transposed."""
    first = fill(norm(layer("data", num_group=2)), {"data": (2, 4, 5, 5)})
    last = fill(norm(layer("data", num_group=2, layout="NHWC"), axis=3), {"data": (2, 5, 5, 4)})
    args = {**first.args, "conv_weight": first.args["conv_weight"].transpose(0, 2, 3, 1)}
    expected = convert(first).arg_params["conv_weight"].asnumpy().transpose(0, 2, 3, 1)
    found = convert(last._replace(args=args, aux=first.aux)).arg_params["conv_weight"].asnumpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("policy", ["O1", "O2", "O3", "float16", "mixed_bfloat16", "bfloat16", "float32"])
def test_weights_are_the_nearest_float32_values_and_rounded_once_from_these(policy):
    """Of what a network in float64 has, over a transposed convolution in groups with a bias."""
    network = fill(norm(deconv("data", num_group=2, no_bias=False), eps=1e-5), {"data": (2, 6, 5, 5)})
    exact, found = convert(network, dtype="float64").arg_params, convert(network, policy)
    assert set(found.arg_params) == set(exact) == {"conv_weight", "conv_bias"} and not found.aux_params
    low = np.float16 if policy in ("O2", "O3", "float16") else np.float32
    for name, array in found.arg_params.items() if policy != "bfloat16" else ():
        assert array.dtype == low
        np.testing.assert_array_equal(array.asnumpy(), exact[name].asnumpy().astype(np.float32).astype(low))


def test_weights_of_two_layers_are_stored_twice_and_of_equal_ones_once():
    """As detectors have equal ones, whose head looks at several levels."""
    weight, x = mx.sym.var("shared_weight"), mx.sym.var("data")
    first = norm(conv(weight=weight, pad=(1, 1)), "bn1")
    network = fill(mx.sym.Group([norm(conv(first, "again", weight=weight), "bn2"), first]), IMAGE)
    assert "shared_weight" not in assert_exact(network).arg_params
    params = {name: mx.sym.var(name) for name in ("gamma", "beta", "moving_mean", "moving_var")}
    levels = [mx.sym.Pooling(x, kernel=(n, n), pool_type="max", name=f"pool{n}") for n in (1, 2)]
    heads = [norm(conv(level, f"head{i}", weight=weight, no_bias=True), f"bn{i}", **params) for i, level in enumerate(levels)]
    found = assert_exact(fill(mx.sym.Group(heads), IMAGE))
    assert set(found.arg_params) == {"shared_weight", "shared_bias"}


def test_parameters_that_the_symbol_lacks_are_passed_on_and_their_names_not_given():
    network = small(no_bias=True)
    args, aux = network.params()
    found = convert_model(network.symbol, {**args, "conv_bias": mx.nd.ones(3)}, aux, "O0", for_inference=True)
    assert found.arg_params["conv_bias"].shape == (3,) and found.arg_params["conv_folded_bias"].shape == (4,)


def test_the_report_says_what_is_gone():
    network = fill(mx.sym.Dropout(norm(conv(), "bn"), name="drop"), IMAGE)
    report = convert(network, "O2").report
    assert report.count == {"float16": 2, "folded": 1, "dropped": 1}
    rows = {row.op: (row.name, row.precision, row.reason) for row in report.rows}
    assert rows["BatchNorm"] == ("bn", "folded", "into the weight and bias of 'conv'")
    assert rows["Dropout"] == ("drop", "dropped", "it does nothing in inference")
    image = 2 * 4 * 3 * 3
    assert report.activation_bytes == (4 * 3 * image, 2 * 2 * image)  # of layer, norm, identity; of layer and identity


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_model_that_was_converted_before(policy):
    """Its weights are folded from the values that they have, and a model prepared for inference stays as it is."""
    network = small()
    stored = convert_model(network.symbol, *network.params(), policy, network.shapes)
    found = convert_model(*stored, "O0", network.shapes, for_inference=True)
    low = network._replace(args={n: a.astype("float32").asnumpy() for n, a in stored.arg_params.items()})
    for name, array in convert(low).arg_params.items():
        np.testing.assert_array_equal(found.arg_params[name].asnumpy(), array.asnumpy())
    once = convert(network, policy)
    assert text(convert_model(*once, policy, network.shapes, for_inference=True).symbol) == text(once.symbol)


def test_a_network_in_float16_of_its_own_keeps_its_dtype():
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="low")
    network = fill(mx.sym.Cast(norm(conv(data)), dtype="float32", name="out"), IMAGE)
    args, aux = network.params()
    args.update({name: args[name].astype("float16") for name in ("conv_weight", "conv_bias")})
    found = convert_model(network.symbol, args, aux, "O0", IMAGE, for_inference=True)
    values = {name: array.astype("float32").asnumpy() for name, array in args.items()}
    for name, exact in convert(small()._replace(args=values, aux=network.aux)).arg_params.items():
        assert found.arg_params[name].dtype == np.float16
        np.testing.assert_allclose(found.arg_params[name].asnumpy(), exact.asnumpy(), rtol=2.0**-11, atol=2.0**-25)
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
    network = fill(norm(conv(norm(conv(pad=(1, 1)), eps=0), "conv2"), "bn2"), IMAGE)
    network.aux["bn_moving_var"][1] = 1e-40
    network.args["bn_gamma"][1] = 1e30
    found = convert(network)
    assert [row.name for row in found.report.rows if row.precision == "folded"] == ["bn2"]
    assert "bn_gamma" in found.arg_params and "bn2_gamma" not in found.arg_params


def test_channels_without_variance_or_gamma():
    network = fill(norm(conv(), eps=1e-5), IMAGE)
    network.aux["bn_moving_var"][:2] = 0
    network.args["bn_gamma"][1:3] = 0
    assert not assert_exact(network).arg_params["conv_weight"].asnumpy()[1:3].any()


@pytest.mark.parametrize("ranges, kept", [({"conv_output": 1e6}, False), ({"bn_output": 1e6}, True), ({"act_output": 1.0}, False)])
def test_ranges_follow_the_tensors(ranges, kept):
    """BatchNorm's output is the convolution's now; what the convolution gave is nowhere any more."""
    found = convert(fill(mx.sym.relu(norm(conv()), name="act"), IMAGE), "O2", ranges=ranges)
    assert ("float32" in found.report.count) == kept
