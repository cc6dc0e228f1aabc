"""Modules that are bound for inference: parameters are cast when they are set, not at each call."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.arrays import is_low_precision, round_into, to_float32
from mxmp.module import BucketingModule, Module, binding
from mxmp.symbol import convert_symbol, on_cpu
from tests.module.tools import TWO, batches, convnet, mlp, params_of, ready, train

POLICIES = ["O1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)]
SHAPE = (8, 6)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Have float16 treated as on a GPU, where it is not emulated."""
    monkeypatch.setattr(binding, "is_emulated", lambda runnable: False)


def bind(module, shape=SHAPE, **kwargs):
    module.bind([("data", shape)], [("softmax_label", shape[:1])], **{"for_training": False, **kwargs})


def infer(symbol=None, policy="O1", shape=SHAPE, seed=0, **kwargs):
    """Return a module that is bound for inference and has parameters."""
    symbol = mlp() if symbol is None else symbol
    module = Module(symbol, policy=policy, **kwargs)
    bind(module, shape)
    args, aux = params_of(symbol, seed, data=shape)
    module.init_params(arg_params=args, aux_params=aux)
    return module


def data(shape=SHAPE, seed=3):
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))


def outputs(module, x):
    module.forward(mx.io.DataBatch([x]), is_train=False)
    return module.get_outputs()[0].asnumpy()


def expected(symbol, policy, args, aux, x, context=None):
    """What MXNet's module gives that casts the float32 parameters at each call.

    On the same contexts: MXNet folds BatchNorm into convolutions in bfloat16, and on cpu(0) alone.
    """
    converted = convert_symbol(symbol, policy, {"data": x.shape})
    module = mx.mod.Module(on_cpu(converted) if policy == "O1" else converted, context=context or mx.cpu())
    bind(module, x.shape)
    module.init_params(arg_params=args, aux_params=aux)
    return outputs(module, x)


def arrays(module, name):
    """Return the executors' arrays of a parameter."""
    return [executor.arg_dict[name] for executor in module._exec_group.execs]


def low_params(module):
    return {name for name in module._param_names if all(map(is_low_precision, arrays(module, name)))}


def assert_current(module, policy, args, aux=None, symbol=None, x=None, context=None):
    """Assert that a module computes with these parameters."""
    x = data() if x is None else x
    symbol = mlp() if symbol is None else symbol
    np.testing.assert_array_equal(outputs(module, x), expected(symbol, policy, args, aux or {}, x, context))


@pytest.mark.parametrize("context", [mx.cpu(), TWO], ids=["one", "two"])
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_are_those_of_casts_at_each_call(policy, context):
    shape = (8, 3, 6, 6)
    symbol = convnet()
    module = infer(symbol, policy, shape, context=context)
    args, aux = params_of(symbol, data=shape)
    assert low_params(module) == {"conv_weight", "fc_weight", "fc_bias"}
    assert_current(module, policy, args, aux, symbol, data(shape), context)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_parameters_are_rounded_once(dtype):
    module = infer(policy=f"mixed_{dtype}")
    (weight,), exact = arrays(module, "fc1_weight"), params_of(mlp(), data=SHAPE)[0]["fc1_weight"]
    error = np.abs(to_float32(weight).asnumpy() / exact.asnumpy() - 1)
    assert 0 < error.max() <= {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert not [node for node in module._runnable.scaling.graph.operators() if "weight" in node.name]


SETS = {
    "set_params": lambda module, args: module.set_params(args, {}),
    "set_params, some missing": lambda module, args: module.set_params(args, {}, allow_missing=True),
    "init_params": lambda module, args: module.init_params(arg_params=args, aux_params={}, force_init=True),
    "in place": lambda module, args: [assign(arrays(module, name)[0], args[name]) for name in args],
}


def assign(array, value):
    """Write into an array, rounded as mxmp does: MXNet's own assignment truncates to bfloat16."""
    if is_low_precision(array):
        round_into(value, array)
    else:
        array[:] = value


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("change", SETS.values(), ids=SETS)
def test_new_parameters_are_seen(change, policy):
    module = infer(policy=policy)
    before = outputs(module, data())
    args = params_of(mlp(), seed=5, data=SHAPE)[0]
    change(module, args)
    assert not np.allclose(before, outputs(module, data()))
    assert_current(module, policy, args)


def test_parameters_stay_exact_outside_of_the_executors(tmp_path):
    module, (args, _) = infer(), params_of(mlp(), data=SHAPE)
    outputs(module, data())
    module.save_checkpoint(str(tmp_path / "net"), 1)
    for found in (module.get_params()[0], mx.model.load_checkpoint(str(tmp_path / "net"), 1)[1]):
        assert all(np.array_equal(found[name].asnumpy(), args[name].asnumpy()) for name in args)


def test_a_module_that_trains_keeps_float32():
    assert low_params(ready()) == set()


def test_binding_for_training_brings_exact_values():
    module, (args, _) = infer(), params_of(mlp(), data=SHAPE)
    bind(module, for_training=True, force_rebind=True)
    assert low_params(module) == set()
    assert all(np.array_equal(arrays(module, name)[0].asnumpy(), args[name].asnumpy()) for name in args)


def test_a_module_that_shares_sees_what_training_changes():
    trained, other = ready(), Module(mlp(), policy="O1")
    bind(other, shared_module=trained)
    for _ in range(2):
        before = outputs(other, data())
        train(trained, batches()[:2])
        assert not np.allclose(before, outputs(other, data()))
        assert_current(other, "O1", trained.get_params()[0])
    assert low_params(trained) == low_params(other) == set()


def test_modules_that_share_a_module_for_inference():
    first, second = infer(), Module(mlp(), policy="O1")
    bind(second, shared_module=first)
    args = params_of(mlp(), seed=5, data=SHAPE)[0]
    for module in (first, second):
        outputs(module, data())
    first.set_params(args, {})
    for module in (first, second):
        assert low_params(module) == set()
        assert_current(module, "O1", args)


def test_what_was_written_before_it_is_shared_is_kept():
    module = infer()
    arrays(module, "fc1_bias")[0][:] = 0.5
    before = outputs(module, data())
    bind(Module(mlp(), policy="O1"), shared_module=module)
    np.testing.assert_array_equal(outputs(module, data()), before)


def test_score_after_fit():
    """A module that trains, and one for inference that gets its parameters, score alike."""
    trained, other = ready(), infer()
    train(trained, batches(), epochs=2)
    other.set_params(*trained.get_params())
    np.testing.assert_array_equal(outputs(other, data()), outputs(trained, data()))


def test_a_reshape_keeps_what_is_stored():
    module, (args, _) = infer(), params_of(mlp(), data=SHAPE)
    module.reshape([("data", (4, 6))], [("softmax_label", (4,))])
    assert "fc1_weight" in low_params(module)
    assert_current(module, "O1", args, x=data((4, 6)))


def test_shapes_that_decide_otherwise_get_exact_parameters():
    """A sum over time is short enough for float16 up to 1024 elements."""
    layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="fc")
    symbol = mx.sym.SoftmaxOutput(mx.sym.mean(layer, axis=1, name="mean"), name="softmax")
    module = infer(symbol, shape=(2, 4, 3))
    args, _ = params_of(symbol, data=(2, 4, 3))
    for length in (4, 40000, 4):
        module.reshape([("data", (2, length, 3))], [("softmax_label", (2,))])
        assert_current(module, "O1", args, symbol=symbol, x=data((2, length, 3)))


def test_buckets_cast_at_each_call():
    """Since each has a conversion of its own, and all share the parameters."""
    module = BucketingModule(lambda key: (mlp(), ("data",), ("softmax_label",)), 8, policy="O1")
    bind(module)
    module.init_params()
    for seed in range(2):
        args, aux = params_of(mlp(), seed, data=SHAPE)
        module.set_params(args, aux)
        for key in (8, 4, 8):
            x, shapes = (
                data((key, 6)),
                {"provide_data": [("data", (key, 6))], "provide_label": [("softmax_label", (key,))]},
            )
            module.forward(mx.io.DataBatch([x], bucket_key=key, **shapes), is_train=False)
            np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), expected(mlp(), "O1", args, aux, x))
    assert low_params(module._curr_module) == set()


def test_emulated_float16_is_rounded_at_each_call(monkeypatch):
    """It would have to be widened, which takes longer."""
    monkeypatch.undo()
    module = infer()
    assert low_params(module) == set()
    assert_current(module, "O1", params_of(mlp(), data=SHAPE)[0])


def test_a_monitor_sees_the_networks_names():
    module = infer()
    monitor = mx.mon.Monitor(1, lambda array: array, ".*", monitor_all=True)
    module.install_monitor(monitor)
    monitor.tic()
    outputs(module, data())
    seen = {name for _, name, _ in monitor.toc()}
    assert {"fc1_weight", "fc1_bias", "relu1_output", "softmax_output"} <= seen


@pytest.mark.parametrize("policy", ["float32", *POLICIES])
def test_statistics_that_are_set_are_seen_by_fused_layers(policy):
    symbol, shape = convnet(), (2, 3, 8, 8)
    module = infer(symbol, policy, shape)
    x = data(shape)
    before = outputs(module, x)
    args, aux = module.get_params()
    module.set_params({}, {name: value + 3 for name, value in aux.items()}, allow_missing=True)
    found = outputs(module, x)
    fresh = Module(symbol, policy=policy)
    bind(fresh, shape)
    fresh.init_params(arg_params=args, aux_params={name: value + 3 for name, value in aux.items()})
    np.testing.assert_array_equal(found, outputs(fresh, x))
    assert not np.array_equal(found, before)
