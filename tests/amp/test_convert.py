"""convert_symbol, convert_model, convert_hybrid_block and convert_bucketing_module, as MXNet's scripts call them."""

import inspect

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.contrib import amp as contrib
from mxnet.gluon import nn

import mxmp
from mxmp import amp
from tests.amp.nets import IMAGES, bind, casts_of, images, nodes_of, ready, two_layers
from tests.module.tools import params_of
from tests.values import name_of

NAMES = [name for name in dir(contrib) if name.startswith(("convert_", "init", "list_", "scale_", "unscale"))]


@pytest.mark.parametrize("name", [*NAMES, "convert_bucketing_module"])
def test_arguments_are_contrib_amps(name):
    theirs = inspect.signature(getattr(contrib.amp, name)).parameters
    ours = inspect.signature(getattr(amp, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for key, parameter in theirs.items():
        if (name, key) != ("convert_hybrid_block", "ctx"):  # there gpu(0), which a CPU build has not
            assert ours[key].default == parameter.default


# The cases of MXNet's tests/python/gpu/test_contrib_amp.py at tag 1.9.1, check_amp_convert_symbol.
NO_BIAS = {"fp32_ops": ["sin"], "conditional_fp32_ops": [("FullyConnected", "no_bias", ["True"])]}


@pytest.mark.parametrize(
    "lists, casts",
    [
        ({"target_dtype_ops": ["FullyConnected"], "fp32_ops": ["sin"]}, ["fc_output", "x", "y"]),
        ({**NO_BIAS, "conditional_fp32_ops": [("FullyConnected", "no_bias", ["False"])]}, ["fc_output", "x", "y"]),
        (NO_BIAS, []),
        ({**NO_BIAS, "target_dtype_ops": []}, []),
    ],
    ids=["lists", "not met", "met", "no operators"],
)
def test_lists_and_conditions_decide(lists, casts):
    x, y = mx.sym.var("x"), mx.sym.var("y")
    net = mx.sym.FullyConnected(x, y, num_hidden=10, no_bias=True, name="fc") + mx.sym.sin(y)
    converted = amp.convert_symbol(net, target_dtype="float16", **lists)
    assert [name.split("_cast_")[0] for name in casts_of(converted)] == casts


@pytest.mark.parametrize(
    "lists",
    [
        {"fp32_ops": ["Activation"], "conditional_fp32_ops": [("Activation", "act_type", ["selu"])]},
        {"target_dtype_ops": ["Activation"], "fp32_ops": ["Activation"]},
        {"target_dtype_ops": ["FullyConnected"], "fp32_ops": ["FullyConnected"]},
    ],
)
def test_lists_that_contradict_each_other_raise_what_contrib_amp_raises(lists):
    for module in (contrib, amp):
        with pytest.raises(AssertionError):
            module.convert_symbol(two_layers(), **lists)


def test_excluded_names_are_names_and_no_patterns():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc[1]")
    net = mx.sym.FullyConnected(x, num_hidden=4, name="fc1")
    casts = casts_of(amp.convert_symbol(net, excluded_sym_names=["fc[1]"]))
    assert "fc[1]_output_cast_float16" in casts and "data_cast_float16" not in casts


def test_data_names_tell_inputs_from_parameters():
    net = mx.sym.FullyConnected(mx.sym.var("x"), mx.sym.var("kernel"), num_hidden=4, no_bias=True, name="fc")
    stored = amp.convert_symbol(net, data_names=["x"], cast_optional_params=True)
    assert nodes_of(stored)["kernel"]["attrs"]["__dtype__"] == "2"
    assert len(casts_of(stored)) == 2  # of the input and the output
    assert len(casts_of(amp.convert_symbol(net, cast_optional_params=True))) == 3


@pytest.mark.parametrize("stored", [True, False])
def test_the_models_of_the_tutorial(stored):
    """All Convolutions in float16 with their parameters, FullyConnected and SoftmaxOutput in float32."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, name="conv0")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=3, name="fc1"), name="softmax")
    lists = {"target_dtype_ops": ["Convolution"], "fp32_ops": ["SoftmaxOutput", "FullyConnected"]}
    params = params_of(net, data=(1, 2, 5, 5))
    _, found, _ = amp.convert_model(net, *params, cast_optional_params=stored, **lists)
    assert found["conv0_weight"].dtype == (np.float16 if stored else np.float32) and found["fc1_bias"].dtype == np.float32


def test_clamped_values_are_logged(caplog):
    net = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    _, found, _ = amp.convert_model(net, {"fc_weight": mx.nd.array([[1e5, 1e-9]])}, {}, cast_optional_params=True)
    assert found["fc_weight"].asnumpy().tolist() == [[65504, 0]]
    assert "parameter 'fc_weight': 1 values clamped to the range of float16, 1 became zero" in caplog.text


@pytest.mark.parametrize("stored", [False, True])
def test_a_block_is_converted_and_left_alone(stored):
    (net, float32), x = images(), IMAGES
    found = amp.convert_hybrid_block(net, cast_optional_params=stored)
    result = found(x).asnumpy()
    np.testing.assert_allclose(result, float32, atol=0.01)
    dtypes = {name: np.dtype(p.dtype).name for name, p in found.collect_params().items()}
    assert dtypes["net_conv0_weight"] == ("float16" if stored else "float32")
    assert dtypes["net_batchnorm0_gamma"] == "float32"
    np.testing.assert_array_equal(net(x).asnumpy(), float32)
    mxmp.gluon.convert(net, "O2" if stored else "O1")
    np.testing.assert_array_equal(net(x).asnumpy(), result)  # what gluon.convert gives
    again = amp.convert_hybrid_block(net, target_dtype_ops=[])  # of a converted net: of its rounded weights
    np.testing.assert_allclose(again(x).asnumpy(), float32, rtol=5e-3, atol=5e-3)
    assert mxmp.gluon.report(again).casts == 0 < mxmp.gluon.report(found).casts


def test_lists_and_names_reach_a_block():
    lists = ["Convolution", "FullyConnected"]
    found = amp.convert_hybrid_block(images()[0], "float16", lists, excluded_sym_names=["net_conv0_fwd"])
    found(IMAGES)
    rows = {row.op: row.precision for row in mxmp.gluon.report(found).rows}
    assert (rows["Convolution"], rows["FullyConnected"]) == ("float32", "float16")


def test_a_converted_block_trains():
    (net, _), x = images(), IMAGES
    net.collect_params("net_conv0_weight").setattr("grad_req", "null")
    net[3].bias.lr_mult = 0.0
    found = amp.convert_hybrid_block(net)
    params = found.collect_params()
    before = {name: p.data().asnumpy() for name, p in params.items()}
    trainer = mxmp.gluon.Trainer(params, "sgd", {"learning_rate": 0.1}, loss_scale=128)
    with autograd.record(), trainer.scale_loss(mx.nd.square(found(x)).mean()) as scaled:
        scaled.backward()
    assert trainer.step(1)
    moved = {name for name, value in before.items() if (params[name].data().asnumpy() != value).any()}
    assert "net_dense0_weight" in moved and not moved & {"net_conv0_weight", "net_dense0_bias"}


@pytest.mark.bfloat16
@pytest.mark.parametrize("called", [False, True])
def test_a_converted_block_is_exported_for_plain_mxnet(called, tmp_path):
    (net, _), x = images(), IMAGES
    found = amp.convert_hybrid_block(net, "bfloat16", cast_optional_params=True)
    if called:
        found(x)
    found.export(str(tmp_path / "net"), remove_amp_cast=False)
    files = [str(tmp_path / name) for name in ("net-symbol.json", "net-0000.params")]
    loaded = gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    np.testing.assert_allclose(loaded(x).asnumpy(), found(x).asnumpy(), atol=0.02)
    assert casts_of(mx.sym.load(files[0])) == casts_of(found._cached_graph[1])


def _batch(length):
    rng = np.random.RandomState(length)
    data, label = mx.nd.array(rng.randn(4, length, 2)), mx.nd.array([0, 1, 2, 0])
    descriptions = [mx.io.DataDesc("data", data.shape)], [mx.io.DataDesc("softmax_label", label.shape)]
    return mx.io.DataBatch([data], [label], 0, None, length, *descriptions)


def _outputs(module):
    found = []
    for length in (3, 2, 5):
        module.forward(_batch(length), is_train=False)
        found.append(module.get_outputs()[0].asnumpy())
    return np.array(found)


@pytest.mark.parametrize("stored", [False, True])
def test_a_bucketing_module_is_converted_and_left_alone(stored):
    module = ready()
    float32 = _outputs(module)
    found = bind(amp.convert_bucketing_module(module, cast_optional_params=stored))
    low = _outputs(found)
    np.testing.assert_allclose(low, float32, atol=0.01)
    assert (low != float32).any(axis=(1, 2)).all()
    found.loss_scale = 128
    found.init_optimizer()
    for length in (3, 2):  # training, too
        found.forward_backward(_batch(length))
        assert found.update()
    assert (_outputs(found) != low).any()
    np.testing.assert_array_equal(_outputs(module), float32)


def test_names_and_conditions_of_single_buckets():
    module = ready()
    module.switch_bucket(5, _batch(5).provide_data, _batch(5).provide_label)
    found = amp.convert_bucketing_module(
        module, excluded_sym_names=["fc4"], conditional_fp32_ops=[("LeakyReLU", "act_type", ["elu"])]
    )
    _outputs(bind(found, training=False))
    rows, shorter = ({row.name: row.precision for row in found._buckets[key].report.rows} for key in (5, 2))
    assert (rows["fc4"], rows["fc3"], rows["elu4"], rows["elu0"]) == ("float32", "float16", "float32", "float32")
    assert (shorter["fc1"], shorter["elu1"]) == ("float16", "float32")


OWN = {"w": (4, 3), "b": (4,)}


def own_casts(dtype, also=None):
    """Return a network with casts of its own, as contrib.amp's conversion leaves it, and parameters.

    Args:
        dtype: Of the casts.
        also: Makes something of the bias that is added to the output.
    """
    w, b = mx.sym.var("w"), mx.sym.var("b")
    out = mx.sym.FullyConnected(mx.sym.var("data"), w, b, num_hidden=4, name="fc")
    out = contrib.convert_symbol(mx.sym.broadcast_add(out, also(b)) if also else out, dtype)
    rng = np.random.RandomState(0)
    return out, {name: mx.nd.array(rng.randn(*shape)) for name, shape in OWN.items()}


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_parameters_that_only_amp_casts_read_are_stored_low_as_in_contrib_amp(dtype):
    symbol, args = own_casts(dtype)
    _, theirs, _ = contrib.convert_model(symbol, dict(args), {}, dtype, cast_optional_params=True)
    converted, mine, _ = amp.convert_model(symbol, args, {}, dtype, cast_optional_params=True)
    for name in OWN:
        assert name_of(mine[name].dtype) == name_of(theirs[name].dtype) == dtype
        np.testing.assert_array_equal(mine[name].astype("float32").asnumpy(), theirs[name].astype("float32").asnumpy())
    _, kept, _ = amp.convert_model(symbol, args, {}, dtype)
    assert all(array.dtype == np.float32 for array in kept.values())
    if dtype == "bfloat16":
        outs = [
            net.bind(mx.cpu(), {"data": mx.nd.ones((2, 3)), **params})
            for net, params in ((converted, mine), (symbol, args))
        ]
        np.testing.assert_array_equal(*(each.forward()[0].asnumpy() for each in outs))


def test_parameters_that_others_read_too_or_in_another_dtype_stay_float32():
    _, mine, _ = amp.convert_model(*own_casts("float16", also=mx.sym.exp), {}, cast_optional_params=True)
    assert mine["b"].dtype == np.float32 and mine["w"].dtype == np.float16
    _, mine, _ = amp.convert_model(*own_casts("float16"), {}, "bfloat16", cast_optional_params=True)
    assert all(array.dtype == np.float32 for array in mine.values())


@pytest.mark.parametrize("policy", ["O1", "float32"])
def test_a_frozen_block_is_read_as_it_was_converted_without_the_casts_that_emulate(policy):
    net = nn.HybridSequential(prefix="frozen_")
    net.add(nn.Dense(4, in_units=3, activation="relu", prefix="frozen_a_"), nn.Dense(2, in_units=4, prefix="frozen_b_"))
    net.initialize()
    net.hybridize()
    x = mx.nd.ones((2, 3))
    net(x)
    converted = amp.convert_hybrid_block(mxmp.gluon.freeze(net, policy))
    assert mxmp.gluon.report(converted).count == {"float16": 3}
    np.testing.assert_allclose(converted(x).asnumpy(), net(x).asnumpy(), atol=2e-3)
