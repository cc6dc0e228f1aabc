"""Networks whose own casts have them computed in float16, with parameters in float16 or, as a Module saves, float32."""


import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.contrib import amp

from mxmp.diagnose import measure_gradients, measure_ranges
from mxmp.gluon import convert
from mxmp.symbol import convert_model, on_cpu

POLICIES = ["float32", "O1", "O2"]
SHAPES = {"data": (2, 6)}
ULPS = 2 * np.finfo(np.float16).eps  # the last bit of two layers, whose sums have another order
RANDOM = np.random.RandomState(0)
X = RANDOM.uniform(-1, 1, SHAPES["data"]).astype("float32")


def network(names=("weight", "bias"), label=False):
    weight, bias = names
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="down")
    for layer, size in (("fc1", 8), ("fc2", 4)):
        variables = [mx.sym.var(f"{layer}_{name}") for name in (weight, bias)]
        data = mx.sym.FullyConnected(data, *variables, num_hidden=size, name=layer)
        data = mx.sym.Activation(data, act_type="relu", name="act") if layer == "fc1" else data
    out = mx.sym.Cast(data, dtype="float32", name="up")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label"), name="loss") if label else out


def parameters(dtype="float16", names=("weight", "bias")):
    random = np.random.RandomState(1)
    shapes = [("fc1", (8, 6)), ("fc2", (4, 8))]
    found = {}
    for layer, shape in shapes:
        found[f"{layer}_{names[0]}"] = mx.nd.array(random.uniform(-1, 1, shape)).astype(dtype)
        found[f"{layer}_{names[1]}"] = mx.nd.array(random.uniform(-1, 1, shape[0])).astype(dtype)
    return found


def layers(x, params, rounds=np.float16):
    """Return what the layers give, each rounded to float16, by numpy."""
    values = {name: array.astype("float16").asnumpy().astype("float32") for name, array in params.items()}
    found, data = [], x.astype(rounds).astype("float32")
    for layer in ("fc1", "fc2"):
        data = (data @ values[f"{layer}_weight"].T + values[f"{layer}_bias"]).astype(rounds).astype("float32")
        found.append(data)
        data = np.maximum(data, 0)
    return found


def run(symbol, args, aux=None, x=X):
    given = {**{name: array for name, array in args.items() if name in symbol.list_arguments()}, "data": mx.nd.array(x)}
    return on_cpu(symbol).bind(mx.cpu(), given, aux_states=aux or {}).forward()[0].asnumpy()


@pytest.mark.parametrize("names", [("weight", "bias"), ("w", "b")])
def test_on_cpu_runs_a_network_with_float16_casts_of_its_own(names):
    params = parameters(names=names)
    expected = layers(X, dict(zip(parameters(), params.values())))[-1]
    np.testing.assert_allclose(run(network(names), params), expected, rtol=ULPS, atol=ULPS)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shapes", [None, SHAPES])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_is_converted_whose_layers_are_float16_already(policy, shapes, dtype):
    model = convert_model(network(), parameters(dtype), {}, policy, shapes)
    assert {array.dtype for array in model.arg_params.values()} == {np.float16}
    types = {name: array.dtype for name, array in model.arg_params.items()}
    model.symbol.infer_type(data=np.float32, **types)  # which MXNet refuses where they do not fit
    np.testing.assert_allclose(run(*model), layers(X, parameters())[-1], rtol=ULPS, atol=ULPS)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_ranges_are_measured_in_float32(dtype):
    """The values of the second layer leave float16's range, where they would be inf."""
    x = np.sign(X) * 60000
    found = measure_ranges(network(), parameters(dtype), {}, [{"data": mx.nd.array(x)}])
    for name, values in zip(("fc1_output", "fc2_output"), layers(x, parameters(), np.float32)):
        np.testing.assert_allclose(found[name], np.abs(values).max(), rtol=1e-5)
    assert found["fc2_output"] > 65504


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_are_measured_in_float32(dtype):
    batch = {"data": mx.nd.array(X), "label": mx.nd.zeros((2, 4))}
    found = measure_gradients(network(label=True), parameters(dtype), {}, [batch])
    expected = np.abs(layers(X, parameters(), np.float32)[-1]) / 4  # the gradient of MXNet's loss head
    np.testing.assert_allclose(found["fc2_output"].largest, expected.max(), rtol=1e-5)


def of_contrib_amp():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1")
    symbol = mx.sym.softmax(mx.sym.FullyConnected(data, num_hidden=4, name="fc2"), name="softmax")
    return amp.convert_model(symbol, parameters("float32"), {}, target_dtype="float16", cast_optional_params=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_of_what_contrib_amp_has_converted_runs_under_any_policy(policy, tmp_path):
    symbol, args, aux = of_contrib_amp()
    mx.model.save_checkpoint(str(tmp_path / "net"), 0, symbol, args, aux, remove_amp_cast=False)
    files = f"{tmp_path}/net-symbol.json", f"{tmp_path}/net-0000.params"
    block = convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1], ctx=mx.cpu()), policy)
    expected = run(symbol, args, aux)
    np.testing.assert_allclose(block(mx.nd.array(X)).asnumpy(), expected, rtol=ULPS, atol=ULPS)
