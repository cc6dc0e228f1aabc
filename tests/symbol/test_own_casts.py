"""Networks whose own casts have them computed in float16, with parameters in float16 or, as a Module saves, float32."""


import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.contrib import amp

from mxmp.diagnose import measure_gradients, measure_ranges
from mxmp.gluon import convert
from mxmp.symbol import convert_model, on_cpu
from tests.symbol.small import run

POLICIES = ["float32", "O1", "O2"]
SHAPES = {"data": (2, 6)}
ULPS = 2 * np.finfo(np.float16).eps  # the last bit of two layers, whose sums have another order
X = np.random.RandomState(0).uniform(-1, 1, SHAPES["data"]).astype("float32")


def network(label=False):
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="down")
    data = mx.sym.relu(mx.sym.FullyConnected(data, num_hidden=8, name="fc1"), name="act")
    out = mx.sym.Cast(mx.sym.FullyConnected(data, num_hidden=4, name="fc2"), dtype="float32", name="up")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label"), name="loss") if label else out


def parameters(dtype="float16"):
    random = np.random.RandomState(1)
    shapes = {"fc1_weight": (8, 6), "fc1_bias": 8, "fc2_weight": (4, 8), "fc2_bias": 4}
    return {name: mx.nd.array(random.uniform(-1, 1, shape)).astype(dtype) for name, shape in shapes.items()}


def layers(x, rounds=np.float16):
    """Return what the layers give, each rounded to float16, by numpy."""
    first, first_bias, second, second_bias = (array.asnumpy().astype("float32") for array in parameters().values())
    hidden = (x.astype(rounds).astype("float32") @ first.T + first_bias).astype(rounds).astype("float32")
    return hidden, (np.maximum(hidden, 0) @ second.T + second_bias).astype(rounds).astype("float32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shapes", [None, SHAPES])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_is_converted_whose_layers_are_float16_already(policy, shapes, dtype):
    model = convert_model(network(), parameters(dtype), {}, policy, shapes)
    assert {array.dtype for array in model.arg_params.values()} == {np.float16}
    types = {name: array.dtype for name, array in model.arg_params.items()}
    model.symbol.infer_type(data=np.float32, **types)  # which MXNet refuses where they do not fit
    (found,) = run(on_cpu(model.symbol), {**model.arg_params, "data": X})
    np.testing.assert_allclose(found, layers(X)[-1], rtol=ULPS, atol=ULPS)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_ranges_and_gradients_are_measured_in_float32(dtype):
    """The values of the second layer leave float16's range, where they would be inf."""
    x = np.sign(X) * 60000
    found = measure_ranges((network(), parameters(dtype), {}), [{"data": mx.nd.array(x)}])
    expected = {f"fc{i}_output": np.abs(values).max() for i, values in enumerate(layers(x, np.float32), 1)}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5) and expected["fc2_output"] > 65504
    batch = {"data": mx.nd.array(X), "label": mx.nd.zeros((2, 4))}
    gradients = measure_gradients((network(label=True), parameters(dtype), {}), [batch])
    largest = np.abs(layers(X, np.float32)[-1]).max() / 4  # the gradient of MXNet's loss head
    assert gradients["fc2_output"].largest == pytest.approx(largest, rel=1e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_of_what_contrib_amp_has_converted_runs_under_any_policy(policy, tmp_path):
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1")
    net = mx.sym.softmax(mx.sym.FullyConnected(data, num_hidden=4, name="fc2"), name="softmax")
    symbol, args, aux = amp.convert_model(net, parameters("float32"), {}, target_dtype="float16", cast_optional_params=True)
    mx.model.save_checkpoint(str(tmp_path / "net"), 0, symbol, args, aux, remove_amp_cast=False)
    files = f"{tmp_path}/net-symbol.json", f"{tmp_path}/net-0000.params"
    block = convert(gluon.SymbolBlock.imports(files[0], ["data"], files[1], ctx=mx.cpu()), policy)
    (expected,) = run(on_cpu(symbol), {**args, "data": X})
    np.testing.assert_allclose(block(mx.nd.array(X)).asnumpy(), expected, rtol=ULPS, atol=ULPS)


def test_ranges_within_a_loop_are_measured_in_float32():
    """The product in the body of the loop leaves float16's range."""

    def step(row, state):
        return mx.sym.Cast(mx.sym.Cast(row, dtype="float16") * 300, dtype="float32"), state

    loop, _ = mx.sym.contrib.foreach(step, mx.sym.var("rows"), [mx.sym.var("state")], name="loop")
    found = measure_ranges((loop, {}, {}), [{"rows": mx.nd.full((3, 4), 300), "state": mx.nd.zeros(1)}])
    assert found[loop.list_outputs()[0]] == 300**2
