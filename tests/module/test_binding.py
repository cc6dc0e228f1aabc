"""What MXNet's users do with a module works with this one: fit, shapes, dtypes, sharing, inference, monitors."""

import gc
import inspect
import logging
import sys
import weakref

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.loss_scale import NoOpLossScale
from mxmp.module import BucketingModule, Module
from mxmp.symbol import convert_symbol, on_cpu
from tests.diagnose.nets import Listed
from tests.module.tools import (
    BFLOAT16,
    SGD,
    SHAPES,
    TWO,
    arrays,
    batches,
    bits,
    bound,
    convnet,
    grads,
    iterator,
    mlp,
    params_of,
    plain,
    ready,
    samples,
    train,
    values,
)  # fmt: skip
from tests.values import name_of

EPS = float(np.finfo(np.float16).eps)
ON_BFLOAT16 = pytest.param(BFLOAT16, marks=pytest.mark.bfloat16)
IMAGES = (1, 6, 6)


@pytest.mark.parametrize("policy, context", [("float32", TWO), ("O1", TWO), ("O2", mx.cpu()), ("O2", TWO)])
def test_fit_learns(policy, context):
    module = Module(convnet(), policy=policy, context=context)
    module.fit(iterator(shape=IMAGES), num_epoch=8, optimizer_params=SGD, kvstore="device")
    assert dict(module.score(iterator(shape=IMAGES), "acc"))["accuracy"] > 0.95
    reference = plain(convnet(), shape=(8, *IMAGES), bind={"for_training": False})
    reference.set_params(*module.get_params())
    found, expected = (each.predict(iterator(shape=IMAGES)).asnumpy() for each in (module, reference))
    assert np.abs(found - expected).max() < 16 * EPS  # probabilities behind two layers in float16


def test_callbacks_see_the_float32_network(tmp_path, caplog):
    seen, prefix, symbol = [], str(tmp_path / "model"), convnet()
    before, module = symbol.tojson(), Module(symbol, policy="O2")
    callbacks = [
        lambda epoch, symbol, args, aux: seen.append((epoch, symbol, {a.dtype for a in args.values()})),
        mx.callback.do_checkpoint(f"{prefix}-do"),
        mx.callback.module_checkpoint(module, prefix, save_optimizer_states=True),
    ]
    train_data, eval_data = (iterator(shape=IMAGES, seed=seed) for seed in (0, 1))
    caplog.set_level(logging.INFO)
    module.fit(
        train_data, eval_data=eval_data, eval_metric=["acc", "ce"], epoch_end_callback=callbacks, begin_epoch=1,
        batch_end_callback=mx.callback.Speedometer(8, 2), num_epoch=3, optimizer_params=SGD,
    )  # fmt: skip
    assert seen == [(1, symbol, {np.float32}), (2, symbol, {np.float32})]
    assert module.symbol is symbol and symbol.tojson() == before and (tmp_path / "model-0003.states").exists()
    for name in ("model-do-0003", "model-0003"):
        saved = mx.nd.load(str(tmp_path / f"{name}.params"))
        assert bits({key.split(":")[1]: a.asnumpy() for key, a in saved.items()}) == bits(values(module))
    assert "Validation-accuracy" in caplog.text and "Train-cross-entropy" in caplog.text and "Speed" in caplog.text


@pytest.mark.parametrize("ours, theirs", [(Module, mx.mod.Module), (BucketingModule, mx.mod.BucketingModule)])
def test_methods_have_the_arguments_of_mxnets(ours, theirs):
    for name in ("__init__", "bind", "init_params", "set_params", "init_optimizer", "backward", "update"):
        expected = list(inspect.signature(getattr(theirs, name)).parameters)
        assert list(inspect.signature(getattr(ours, name)).parameters)[: len(expected)] == expected, name


def outputs(module, x=None):
    x = mx.nd.array(np.random.default_rng(3).normal(size=(8, 6))) if x is None else x
    module.forward(mx.io.DataBatch([x]), is_train=False)
    return module.get_outputs()[0].asnumpy()


# ---------------------------------------------------------------------- conversion


@pytest.mark.parametrize("policy", ["float32", "O1"])
def test_prelu_gets_the_gradient_that_it_gets_operator_by_operator(policy):
    """MXNet's executor computes the slope's gradient from memory that the data's gradient is in already."""
    x = mx.sym.LeakyReLU(mx.sym.var("data"), mx.sym.var("alpha"), act_type="prelu", name="prelu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4, name="fc"), name="softmax")
    module = bound(net, policy, loss_scale=1, bind={"inputs_need_grad": True})
    module.forward_backward(batches()[0])
    data, label = samples()[0][:8], samples()[1][:8].astype(int)
    weight = params_of(net, data=(8, 6))[0]["fc_weight"].asnumpy()
    expected = (np.minimum(data, 0) * ((module.get_outputs()[0].asnumpy() - np.eye(4)[label]) @ weight)).sum(axis=0)
    assert np.linalg.norm(grads(module)["alpha"] - expected) <= 0.02 * np.linalg.norm(expected)


# ---------------------------------------------------------------------- shapes


def test_shapes_convert_anew_only_where_verdicts_change_and_training_goes_on():
    """A reduction that is too long for float16, over 1024 elements, moves to float32; scale and monitor go along."""
    reports = set()
    steps = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="fc")
    symbol = mx.sym.SoftmaxOutput(mx.sym.mean(steps, axis=1, name="mean"), name="softmax")
    module, monitor = ready(symbol, "O2", (2, 4, 3), loss_scale=8), mx.mon.Monitor(1, pattern="softmax_output")
    module.install_monitor(monitor)
    module.loss_scale = None  # and set again below: every shape still has an input for it
    for length in (4, 40000, 5, 50000, 4):
        before = values(module)["fc_weight"]
        monitor.tic()
        module.forward_backward(mx.io.DataBatch([mx.nd.random.normal(shape=(2, length, 3))], [mx.nd.array([0, 1])]))
        assert [name for _, name, _ in monitor.toc()] == ["softmax_output"]
        assert module.update() and not np.array_equal(values(module)["fc_weight"], before)
        precision = {row.name: row.precision for row in module.report.rows}["mean"]
        assert precision == ("float16" if length < 1024 else "float32")
        assert module.data_shapes[0].shape == (2, length, 3)
        assert arrays(module, "loss_scale")[0].asscalar() == module.loss_scale.value
        module.loss_scale = 16
        reports.add(module.report)
    assert len(reports) == 2


def test_outputs_of_several_contexts_are_joined_along_their_batch():
    """A layout tells which axis that is, whatever the policy puts behind the output."""
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, flatten=False, name="fc")
    symbol = mx.sym.BlockGrad(data, attr={"__layout__": "LNC"})
    module = Module(symbol, label_names=None, context=TWO, policy="O1,output=float16", loss_scale=None)
    module.bind([mx.io.DataDesc("data", (3, 4, 5), layout="LNC")], for_training=False)
    module.init_params()
    x = mx.nd.random.normal(shape=(3, 4, 5))
    weight, bias = (module.get_params()[0][f"fc_{name}"].asnumpy() for name in ("weight", "bias"))
    np.testing.assert_allclose(outputs(module, x), x.asnumpy() @ weight.T + bias, atol=2e-3)


# ---------------------------------------------------------------------- dtypes of data


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_data_of_another_float_dtype_follows_the_policy(dtype, policy):
    """Fitted on the same float16 values, in batches of two sizes, and scored."""
    accuracies, modules, (data, label) = [], [], samples()
    for each in (dtype, "float32"):
        module, given = Module(mlp(), policy=policy), {"data": mx.nd.array(data.astype(np.float16), dtype=each)}
        for size, args in ((8, params_of(mlp(), data=(8, 6))[0]), (4, None)):
            it = mx.io.NDArrayIter(given, mx.nd.array(label, dtype=each), size, label_name="softmax_label")
            module.fit(it, num_epoch=1, arg_params=args, optimizer_params=SGD)
        accuracies.append(module.score(it, "acc"))
        modules.append((bits(values(module)), {array.dtype for array in module.get_params()[0].values()}, module.report.casts))
    assert modules[0] == modules[1] and modules[0][1] == {np.float32} and accuracies[0] == accuracies[1]


def test_data_keeps_a_dtype_that_is_declared_or_no_float():
    ids = mx.sym.Embedding(mx.sym.var("data"), input_dim=10, output_dim=4, name="embedding")
    wide = mx.sym.Cast(mx.sym.var("wide", dtype="float64"), dtype="float32", name="narrow")
    module = Module(ids + wide, ("data", "wide"), None, policy="O1")
    module.bind([mx.io.DataDesc("data", (2,), "int32"), mx.io.DataDesc("wide", (2, 4), "float64")], for_training=False)
    module.init_params()
    module.forward(mx.io.DataBatch([mx.nd.array([1, 2], dtype="int32"), mx.nd.full((2, 4), 1 / 3, dtype="float64")]))
    dtypes = [arrays(module, name)[0].dtype for name in ("data", "wide", "embedding_weight")]
    assert dtypes == [np.int32, np.float64, np.float32]
    assert arrays(module, "wide")[0].asnumpy()[0, 0] == 1 / 3  # with all bits of float64


# ---------------------------------------------------------------------- options of bind, sharing


@pytest.mark.filterwarnings("ignore:.*You created Module with")  # MXNet's, where a label's name is not found
def test_a_label_that_the_symbol_does_not_use_reaches_metrics_alone():
    symbol, data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), iterator()
    module = bound(symbol, bind={"for_training": False})
    expected = (module.predict(data).asnumpy().argmax(1) == samples()[1]).mean()
    assert dict(module.score(data, "acc"))["accuracy"] == expected


def test_states_are_carried_over():
    """Recurrent state through state_names, which is neither data nor parameter."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc") + mx.sym.var("state", shape=(8, 4))
    out = mx.sym.Group([mx.sym.SoftmaxOutput(hidden, name="softmax"), mx.sym.BlockGrad(hidden, name="next")])
    module = Module(out, state_names=["state"], policy="O1", loss_scale=8)
    module.bind(*SHAPES)
    module.init_params()
    module.init_optimizer()
    module.set_states(value=0.5)
    module.forward_backward(batches()[0])
    first = module.get_outputs()[1].asnumpy()
    module.set_states(states=[[module.get_outputs()[1]]])
    module.forward(batches()[0], is_train=False)
    assert np.allclose(module.get_outputs()[1].asnumpy() - first, first - 0.5, atol=0.01) and module.update()


@pytest.mark.parametrize("req", [["null", "write", "null", "write", "null", "null"], {"fc1_weight": "null"}])
def test_grad_req_may_name_every_argument(req):
    module = ready(loss_scale=8, bind={"grad_req": req})
    module.forward_backward(batches()[0])
    expected = {"fc1_weight", "fc2_weight"} if isinstance(req, list) else {"fc1_bias", "fc2_weight", "fc2_bias"}
    assert set(grads(module)) == expected and module.update()


def test_gradients_of_inputs_are_true_after_update_too():
    module = ready(context=TWO, loss_scale=2.0**10, bind={"inputs_need_grad": True}, options={"learning_rate": 0.0})
    module.forward_backward(batches()[0])
    merged = module.get_input_grads()[0].asnumpy()
    parts = module.get_input_grads(merge_multi_context=False)[0]
    assert np.array_equal(np.concatenate([part.asnumpy() for part in parts]), merged)
    assert 0 < np.abs(merged).max() < 1  # with the scale in it they would be hundreds
    module.update()
    assert np.array_equal(module.get_input_grads()[0].asnumpy(), merged)


def sharing(module, **options):
    """Return a module that shares the parameters of another."""
    other = Module(mlp(), policy=module.policy)
    other.bind([("data", (4, 6))], [("softmax_label", (4,))], shared_module=module, **options)
    return other


def test_a_module_that_shares_parameters_is_freed_with_its_last_reference():
    module = ready()
    other = train(sharing(module), batches(4)[:1])
    left, other = weakref.ref(other), None
    gc.collect()
    assert left() is None


def test_the_scale_is_set_and_loaded_however_many_modules_were_bound_with_it(tmp_path):
    module, limit = ready(), sys.getrecursionlimit()
    for _ in range(100):
        sharing(module)
    fname = str(tmp_path / "states")
    module.save_optimizer_states(fname)
    sys.setrecursionlimit(len(inspect.stack()) + 75)  # 100 modules are to it as 1,000 to the default
    try:
        module.loss_scale = 64
        module.load_optimizer_states(fname)
    finally:
        sys.setrecursionlimit(limit)


def test_a_log_of_a_module_hears_its_steps_when_it_is_bound_to_share_later():
    other, log = Module(mlp()), Listed()
    log.attach(other)
    other.bind(*SHAPES, shared_module=ready())
    train(other, batches()[:1])
    assert len(log.closed()) == 1


def test_a_shared_module_shares_weights_optimizer_and_scale():
    module = ready(policy="O2", loss_scale=16)
    other = train(sharing(module), batches(4)[:1])
    module._params_dirty = True  # what a shared step changes on the devices only the one that took it knows
    assert bits(values(other)) == bits(values(module)) != bits(values(bound(policy="O2")))
    other.loss_scale = 4
    assert module.loss_scale.value == 4
    module = bound(loss_scale=16)
    other = sharing(module)
    module.loss_scale = 2  # there is no optimizer yet
    other.forward_backward(batches(4)[0])
    assert arrays(other, "loss_scale")[0].asscalar() == 2


def test_a_scale_must_fit_every_module_that_shares_it_and_that_borrows_an_optimizer():
    module, lender = (ready(policy="float32", loss_scale=16) for _ in range(2))
    module.loss_scale = None
    other, third = sharing(module), sharing(module, for_training=False)
    for each in (module, other, third):
        with pytest.raises(TrainerError, match="bound without a loss scale"):
            each.loss_scale = 16
    with pytest.raises(TrainerError, match="bound without a loss scale"):
        other.borrow_optimizer(lender)
    assert isinstance(module.loss_scale, NoOpLossScale)
    train(other, batches(4)[:1])


# ---------------------------------------------------------------------- inference


def test_a_module_for_inference_computes_what_the_converted_model_does():
    """It has no input for a loss scale, and float32 parameters, which are cast at each call."""
    module = bound(bind={"for_training": False})
    assert "loss_scale" not in module._exec_group.execs[0].arg_dict
    assert {arrays(module, name)[0].dtype for name in module.get_params()[0]} == {np.float32}
    converted = plain(on_cpu(convert_symbol(mlp(), "O1", {"data": (8, 6)})), bind={"for_training": False})
    np.testing.assert_array_equal(outputs(module), outputs(converted))
    module.bind(*SHAPES, force_rebind=True)  # to train
    module.init_optimizer()
    assert train(module, batches()).skipped_steps == 0


@pytest.mark.parametrize("policy, missing", [("float32", True), ("O1", False), ("O2", True)])
def test_parameters_and_statistics_that_are_set_are_seen_by_fused_layers(missing, policy):
    """MXNet's fused layers keep the weights, or BatchNorm's statistics, of their first call."""
    for symbol, shape in ((mlp(), (8, 6)), (convnet(), (2, 3, 8, 8))):
        module, x = bound(symbol, policy, shape, bind={"for_training": False}), mx.nd.ones(shape)
        other = Module(symbol, policy=policy)
        other.bind(*(module.data_shapes, module.label_shapes), for_training=False, shared_module=module)
        before = outputs(module, x), outputs(other, x)
        args, aux = params_of(symbol, 5, data=shape)
        aux = {name: value + 3 for name, value in aux.items()}
        module.set_params(args, aux, allow_missing=missing)
        fresh = bound(symbol, policy, shape, bind={"for_training": False})
        fresh.init_params(arg_params=args, aux_params=aux, force_init=True)
        for each, old in zip((module, other), before):
            np.testing.assert_array_equal(outputs(each, x), outputs(fresh, x))
            assert not np.array_equal(outputs(each, x), old)


@pytest.mark.parametrize("symbol, shape", [(convnet(), (8, 1, 6, 6)), (mlp(), (8, 6))], ids=["convnet", "mlp"])
def test_a_module_that_infers_sees_the_steps_of_one_that_trains_its_parameters(symbol, shape):
    """After each of them: a backward pass changes the running statistics, an update the weights."""
    trained, other = ready(symbol, "float32", shape), Module(symbol, policy="float32")
    other.bind(trained.data_shapes, trained.label_shapes, for_training=False, shared_module=trained)
    x, step = mx.nd.ones(shape), batches(shape=shape[1:])[0]
    for call in (lambda: trained.forward_backward(step), trained.update):
        before = outputs(other, x)
        call()
        trained._params_dirty = True
        fresh = bound(symbol, "float32", shape, bind={"for_training": False})
        fresh.set_params(*trained.get_params())
        np.testing.assert_array_equal(outputs(other, x), outputs(fresh, x))
        changes = call == trained.update or "conv_weight" in values(trained)
        assert np.array_equal(outputs(other, x), before) != changes


# ---------------------------------------------------------------------- monitors


def branches():
    """A network with a sum behind BatchNorm, several outputs of one operator, and an output read further on."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=4, no_bias=True, name="conv")
    x = mx.sym.BatchNorm(x, fix_gamma=False, name="bn") + mx.sym.relu(x, name="relu")
    first, second = mx.sym.SliceChannel(x, num_outputs=2, name="split")
    y = mx.sym.FullyConnected(first * second, num_hidden=4, name="fc")
    return mx.sym.Group([mx.sym.SoftmaxOutput(y, name="softmax"), mx.sym.BlockGrad(y, name="logits")])


# With monitor_all MXNet's own backward pass of the second network hangs, with and without mxmp.
@pytest.mark.parametrize("make, monitor_all", [(convnet, True), (branches, False)])
@pytest.mark.parametrize("policy", ["O1", "O2", ON_BFLOAT16])
def test_a_monitor_sees_the_operators_that_run(policy, monitor_all, make):
    symbol, batch = make(), batches(8, shape=(3, 6, 6))[0]
    module, seen = bound(symbol, policy, (8, 3, 6, 6), loss_scale=8), []

    def note(array):
        seen.append((name_of(array.dtype), mx.nd.amp_cast(array, dtype="float32").asnumpy()))
        return mx.nd.zeros(1)

    monitor = mx.mon.Monitor(1, note, monitor_all=monitor_all)
    module.forward_backward(batch)
    expected = [output.asnumpy() for output in module.get_outputs()]
    module.install_monitor(monitor)
    monitor.tic()
    module.forward_backward(batch)
    found = {name: each for (_, name, _), each in zip(monitor.toc(), seen)}
    for name, output in zip(symbol.list_outputs(), expected):  # the monitor changes nothing
        assert np.array_equal(found[name][1], output)
    assert {"bn_output", "relu_output", "conv_weight", "loss_scale"} <= found.keys()
    assert any("cast" in name for name in found) and found["softmax_output"][0] == "float32"
    assert found["conv_output"][0] == ("bfloat16" if policy == BFLOAT16 else "float32")  # float16 is emulated


def test_float16_gradients_are_not_compressed():
    compression = {"type": "2bit", "threshold": 0.5}
    with pytest.raises(TrainerError, match="compresses only float32 gradients; use a policy with param_dtype='float32'"):
        ready(policy="O2,loss_scale=None", context=TWO, kvstore="device", compression_params=compression)
