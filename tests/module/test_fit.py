"""What MXNet's users do with a module works with this one."""

from __future__ import annotations

import json
import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.loss_scale import NoOpLossScale
from mxmp.module import BucketingModule, Module, binding
from mxmp.symbol import to_graph
from tests.module.tools import (
    TWO,
    batches,
    bits,
    convnet,
    grads,
    iterator,
    mlp,
    params_of,
    ready,
    samples,
    scale,
    values,
)

BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)
ARGS = {"optimizer_params": {"learning_rate": 0.1, "momentum": 0.9}, "kvstore": "device"}


def fitted(policy, context=None, symbol=None, shape=(6,), **kwargs):
    symbol = mlp() if symbol is None else symbol
    module = Module(symbol, policy=policy, context=context or mx.cpu())
    args, aux = params_of(symbol, data=(8, *shape))
    module.fit(iterator(shape=shape), arg_params=args, aux_params=aux, **{**ARGS, "num_epoch": 8, **kwargs})
    return module


@pytest.mark.parametrize("context", [None, TWO], ids=["one", "two"])
@pytest.mark.parametrize("policy", ["float32", "O1", "O2", BFLOAT16])
def test_fit_learns(policy, context):
    module = fitted(policy, context, convnet(), (1, 6, 6))
    assert dict(module.score(iterator(shape=(1, 6, 6)), "acc"))["accuracy"] > 0.95


def test_predict_and_score_agree_with_plain_mxnet():
    module = fitted("O1")
    plain = mx.mod.Module(mlp())
    data = iterator()
    plain.bind(data.provide_data, data.provide_label, for_training=False)
    plain.set_params(*module.get_params())
    tolerance = 16 * np.finfo(np.float16).eps  # probabilities behind two layers in float16
    assert np.abs(module.predict(data).asnumpy() - plain.predict(data).asnumpy()).max() < tolerance
    found, expected = (dict(m.score(data, "ce"))["cross-entropy"] for m in (module, plain))
    assert abs(found - expected) < tolerance
    assert [name for name, _ in module.output_shapes] == ["softmax_output"]


def test_callbacks_see_the_float32_network(tmp_path, caplog):
    seen = []
    prefix = str(tmp_path / "model")
    symbol = mlp()
    module = Module(symbol, policy="O2")
    callbacks = [
        lambda epoch, symbol, args, aux: seen.append((epoch, symbol, {a.dtype for a in args.values()})),
        mx.callback.do_checkpoint(f"{prefix}-do"),
        mx.callback.module_checkpoint(module, prefix, save_optimizer_states=True),
    ]
    with caplog.at_level(logging.INFO):
        module.fit(
            iterator(),
            eval_data=iterator(seed=1),
            eval_metric=["acc", "ce"],
            epoch_end_callback=callbacks,
            batch_end_callback=mx.callback.Speedometer(8, 2),
            begin_epoch=1,
            num_epoch=3,
            **ARGS,
        )
    assert seen == [(1, symbol, {np.float32}), (2, symbol, {np.float32})]
    assert module.symbol is symbol
    for name in ("model-do-0003", "model-0003"):
        saved = mx.nd.load(str(tmp_path / f"{name}.params"))
        assert bits({key.split(":")[1]: a.asnumpy() for key, a in saved.items()}) == bits(values(module))
    assert (tmp_path / "model-0003.states").exists()
    assert "Validation-accuracy" in caplog.text and "Train-cross-entropy" in caplog.text and "Speed" in caplog.text


@pytest.mark.filterwarnings("ignore:Parameters already initialized")  # what MXNet says of any loaded module
def test_fit_resumes_from_a_checkpoint_bit_for_bit(tmp_path):
    prefix = str(tmp_path / "model")
    whole = fitted("O2", num_epoch=4, epoch_end_callback=lambda *args: None)
    half = fitted("O2", num_epoch=2)
    half.save_checkpoint(prefix, 2, save_optimizer_states=True)
    resumed = Module.load(prefix, 2, load_optimizer_states=True, policy="O2")
    resumed.fit(iterator(), begin_epoch=2, num_epoch=4, **ARGS)
    assert bits(values(resumed)) == bits(values(whole))
    assert resumed.loss_scale == whole.loss_scale and resumed.skipped_steps == whole.skipped_steps


def test_a_monitor_sees_weights_and_outputs():
    seen = []
    monitor = mx.mon.Monitor(1, stat_func=lambda x: x.norm(), pattern="fc1.*")
    monitor.toc_print = lambda: seen.extend(name for _, name, _ in monitor.toc())
    fitted("O1", num_epoch=1, monitor=monitor)
    assert {"fc1_output", "fc1_weight", "fc1_bias"} <= set(seen)


def test_batches_of_other_sizes_reshape_and_train():
    module = ready(loss_scale=8)
    for size in (8, 4, 16, 8):
        batch = batches(size, count=16)[0]
        module.forward_backward(batch)
        assert module.get_outputs()[0].shape == (size, 4)
        assert module.update()
        np.testing.assert_array_equal(module._exec_group.execs[0].arg_dict["loss_scale"].asnumpy(), [8])


def summed(length):
    """A sum over time: short enough for float16 up to 1024 elements."""
    steps = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.mean(steps, axis=1, name="mean"), name="softmax")


def test_shapes_that_decide_otherwise_convert_anew_and_keep_training():
    """A reduction that is too long for float16 after a reshape moves to float32, the weights with it."""
    module = Module(summed(4), policy="O2", loss_scale=8)
    module.bind([("data", (2, 4, 3))], [("softmax_label", (2,))])
    module.init_params(arg_params=params_of(summed(4), data=(2, 4, 3))[0])
    module.init_optimizer()
    found = {}
    for length in (4, 40000, 4):
        data = mx.nd.array(np.random.default_rng(length).normal(size=(2, length, 3)))
        before = values(module)["fc_weight"]
        module.forward_backward(mx.io.DataBatch([data], [mx.nd.array([0, 1])]))
        assert module.update() and not np.array_equal(values(module)["fc_weight"], before)
        found[length] = {row.name: row.precision for row in module.report.rows}["mean"]
    assert found == {4: "float16", 40000: "float32"}


def test_a_reshape_converts_only_where_verdicts_change(monkeypatch):
    module, made, convert_graph = Module(summed(4), policy="O1"), [], binding.convert_graph
    monkeypatch.setattr(binding, "convert_graph", lambda *args: made.append(args) or convert_graph(*args))
    module.bind([("data", (2, 4, 3))], [("softmax_label", (2,))], for_training=False)
    module.init_params()
    for length in (4, 5, 40000, 6, 50000, 7):
        module.reshape([("data", (2, length, 3))], [("softmax_label", (2,))])
        precision = {row.name: row.precision for row in module.report.rows}["mean"]
        assert precision == ("float16" if length < 1024 else "float32")
        assert module.data_shapes[0].shape == (2, length, 3)
    assert len(made) == 2


def test_a_loss_scale_that_is_set_again_reaches_every_shape():
    module = Module(summed(4), policy="O1", loss_scale=8)
    module.bind([("data", (2, 4, 3))], [("softmax_label", (2,))])
    module.init_params()
    module.init_optimizer()

    def train(length):
        data = mx.nd.ones((2, length, 3))
        module.forward_backward(mx.io.DataBatch([data], [mx.nd.array([0, 1])]))
        return module.update()

    module.loss_scale = None
    assert train(40000) and train(4)
    module.loss_scale = 8
    assert train(40000)


def test_a_monitor_survives_a_new_conversion():
    module, seen = Module(summed(4), policy="O1", loss_scale=8), []
    module.bind([("data", (2, 4, 3))], [("softmax_label", (2,))])
    module.init_params()
    monitor = mx.mon.Monitor(1, pattern="softmax_output")
    module.install_monitor(monitor)
    for length in (4, 40000):
        monitor.tic()
        module.forward(mx.io.DataBatch([mx.nd.ones((2, length, 3))], [mx.nd.array([0, 1])]), is_train=True)
        seen.append([name for _, name, _ in monitor.toc()])
    assert seen == [["softmax_output"]] * 2


def test_a_module_for_inference_has_no_loss_scale():
    module = Module(mlp(), policy="O1")
    module.bind([("data", (8, 6))], for_training=False, label_shapes=[("softmax_label", (8,))])
    module.init_params()
    assert "loss_scale" not in module._exec_group.execs[0].arg_dict
    assert module.predict(iterator()).shape == (32, 4)


def test_states_are_carried_over():
    """Recurrent state through state_names, which is neither data nor parameter."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc") + mx.sym.var("state", shape=(8, 4))
    out = mx.sym.Group([mx.sym.SoftmaxOutput(hidden, name="softmax"), mx.sym.BlockGrad(hidden, name="next")])
    module = Module(out, state_names=["state"], policy="O1", loss_scale=8)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer()
    module.set_states(value=0.5)
    module.forward_backward(batches()[0])
    first = module.get_outputs()[1].asnumpy()
    module.set_states(states=[[module.get_outputs()[1]]])
    module.forward(batches()[0], is_train=False)
    assert np.allclose(module.get_outputs()[1].asnumpy() - first, first - 0.5, atol=0.01)
    assert module.update()


@pytest.mark.parametrize("req", [["null", "write", "null", "write", "null", "null"], {"fc1_weight": "null"}])
def test_grad_req_may_name_every_argument(req):
    module = Module(mlp(), policy="O1", loss_scale=8)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))], grad_req=req)
    module.init_params()
    module.init_optimizer()
    module.forward_backward(batches()[0])
    expected = {"fc1_weight", "fc2_weight"} if isinstance(req, list) else {"fc1_bias", "fc2_weight", "fc2_bias"}
    assert set(grads(module)) == expected
    assert module.update()


def test_a_shared_module_shares_weights_optimizer_and_scale():
    module = ready(policy="O2", loss_scale=scale(16))
    other = Module(mlp(), policy="O2")
    other.bind([("data", (4, 6))], [("softmax_label", (4,))], shared_module=module)
    other.forward_backward(batches(4)[0])
    assert other.update()
    module._params_dirty = True  # what a shared step changes on the devices only the one that took it knows
    assert bits(values(other)) == bits(values(module))
    other.loss_scale = 4
    assert module.loss_scale.value == 4


def test_a_shared_module_has_the_scale_before_there_is_an_optimizer():
    module, other = Module(mlp(), loss_scale=16), Module(mlp())
    for each, shared in ((module, None), (other, module)):
        each.bind([("data", (8, 6))], [("softmax_label", (8,))], shared_module=shared)
        if shared is None:
            each.init_params()
    module.loss_scale = 2
    other.forward_backward(batches()[0])
    assert other._exec_group.execs[0].arg_dict["loss_scale"].asscalar() == 2


def test_a_scale_must_fit_every_module_that_shares_it():
    module, other = ready(policy="float32", loss_scale=16), Module(mlp(), policy="float32")
    module.loss_scale = None
    other.bind([("data", (8, 6))], [("softmax_label", (8,))], shared_module=module)
    for each in (module, other):
        with pytest.raises(TrainerError, match="bound without a loss scale"):
            each.loss_scale = 16
    assert isinstance(module.loss_scale, NoOpLossScale)


def test_an_optimizer_with_a_scale_cannot_be_borrowed_by_a_module_without():
    module, other = ready(policy="float32", loss_scale=16), ready(policy="float32")
    with pytest.raises(TrainerError, match="bound without a loss scale"):
        other.borrow_optimizer(module)
    other.forward_backward(batches()[0])
    assert other.update()


def test_gradients_of_inputs_are_true_after_update_too():
    module = Module(mlp(), policy="O1", loss_scale=2.0**10, context=TWO)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))], inputs_need_grad=True)
    module.init_params()
    module.init_optimizer(optimizer_params={"learning_rate": 0.0})
    module.forward_backward(batches()[0])
    merged = module.get_input_grads()[0].asnumpy()
    parts = module.get_input_grads(merge_multi_context=False)[0]
    assert np.array_equal(np.concatenate([part.asnumpy() for part in parts]), merged)
    assert 0 < np.abs(merged).max() < 1  # with the scale in it they would be hundreds
    module.update()
    assert np.array_equal(module.get_input_grads()[0].asnumpy(), merged)


def test_the_symbol_is_not_changed():
    symbol = convnet()
    before = symbol.tojson()
    fitted("O2", symbol=symbol, shape=(1, 6, 6), num_epoch=1)
    assert symbol.tojson() == before


def test_a_network_that_mxmp_converted_before_is_converted_anew():
    found = ready(policy="O1", loss_scale=8)
    again = ready(found._runnable.converted.symbol, policy="O1", loss_scale=8)
    for module in (found, again):
        module.forward_backward(batches()[0])
    assert bits(grads(found)) == bits(grads(again))


def test_embeddings_with_row_sparse_gradients_train():
    data = mx.sym.var("data")
    rows = mx.sym.Embedding(data, input_dim=20, output_dim=4, sparse_grad=True, name="embed")
    out = mx.sym.FullyConnected(mx.sym.Flatten(rows, name="flat"), num_hidden=4, name="fc")
    symbol = mx.sym.SoftmaxOutput(out, name="softmax")
    tokens = mx.nd.array(np.random.default_rng(0).integers(0, 20, (8, 3)))
    batch = mx.io.DataBatch([tokens], [mx.nd.array([0, 1, 2, 3] * 2)])
    found = {}
    for cls, options in ((mx.mod.Module, {}), (Module, {"policy": "float32", "loss_scale": 64})):
        module = cls(symbol, **options)
        module.bind([("data", (8, 3))], [("softmax_label", (8,))])
        module.init_params(arg_params=params_of(symbol, data=(8, 3))[0])
        module.init_optimizer(None, optimizer_params={"learning_rate": 0.5})
        for _ in range(3):
            module.forward_backward(batch)
            module.update()
        found[cls] = bits(values(module))
    stypes = {array[0].stype for array in module._exec_group.grad_arrays}
    assert stypes == {"default", "row_sparse"}
    assert found[Module] == found[mx.mod.Module]


def test_top_level_names_have_the_arguments_of_mxnets():
    import inspect

    for ours, theirs in ((Module, mx.mod.Module), (BucketingModule, mx.mod.BucketingModule)):
        for name in (
            "__init__",
            "bind",
            "init_params",
            "set_params",
            "init_optimizer",
            "reshape",
            "backward",
            "update",
        ):
            if hasattr(theirs, name):
                expected = list(inspect.signature(getattr(theirs, name)).parameters)
                assert list(inspect.signature(getattr(ours, name)).parameters)[: len(expected)] == expected, name


def test_what_runs_is_verified_float16(monkeypatch):
    """The graph that is bound on CPU has no float16 product, but rounds to float16 around each."""
    monkeypatch.setattr("mxmp.rounding.available", lambda: False)
    module = ready(policy="O1", loss_scale=8)
    casts = [node for node in to_graph(module._exec_group.symbol).nodes if node.op == "Cast"]
    assert {node.get("dtype") for node in casts} == {"float16", "float32"}
    assert json.loads(module.symbol.tojson()) == json.loads(mlp().tojson())


def test_an_optimizer_is_needed_to_update():
    module = Module(mlp())
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params()
    module.forward_backward(batches()[0])
    with pytest.raises(TrainerError, match="update: the module is not ready; call init_optimizer first"):
        module.update()


# ---------------------------------------------------------------------- dtypes of data


def fed(policy, dtype):
    """Return a module that was fitted on the same float16 values in a dtype, batches of two sizes."""
    module = Module(mlp(), policy=policy)
    data, label = samples()
    given = [mx.nd.array(data.astype(np.float16), dtype=dtype)], [mx.nd.array(label, dtype=dtype)]
    module.bind(*([mx.io.DataDesc(n, (8, 6)[:axes], dtype)] for n, axes in (("data", 2), ("softmax_label", 1))))
    module.init_params(arg_params=params_of(module.symbol, data=(8, 6))[0], aux_params={})
    module.init_optimizer(optimizer="sgd")
    for size in (8, 4):
        for start in range(0, 32, size):
            data, label = ([array[start : start + size] for array in arrays] for arrays in given)
            descs = ([mx.io.DataDesc(n, a.shape, dtype)] for n, a in (("data", data[0]), ("softmax_label", label[0])))
            module.forward_backward(mx.io.DataBatch(data, label, 0, None, None, *descs))
            module.update()
    return module


@pytest.mark.parametrize("policy", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_data_of_another_float_dtype_follows_the_policy(dtype, policy):
    found, expected = fed(policy, dtype), fed(policy, "float32")
    assert {array.dtype for array in found.get_params()[0].values()} == {np.float32}
    assert bits(values(found)) == bits(values(expected))
    assert found.report.casts == expected.report.casts
    assert found.get_outputs()[0].dtype == expected.get_outputs()[0].dtype


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_fit_and_predict_take_an_iterator_of_another_float_dtype(dtype):
    data, label = samples()
    data = data.astype(np.float16)

    def predict(dtype):
        arrays = mx.nd.array(data, dtype=dtype), mx.nd.array(label, dtype=dtype)
        it = mx.io.NDArrayIter(*arrays, batch_size=8, label_name="softmax_label")
        module = Module(mlp(), policy="O1")
        module.fit(it, num_epoch=2, arg_params=params_of(mlp(), data=(8, 6))[0], optimizer_params={"learning_rate": 0.5})
        return module.predict(it), module.score(it, "acc")

    (found, accuracy), (expected, same) = predict(dtype), predict("float32")
    np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
    assert found.dtype == np.float32 and accuracy == same


def test_data_keeps_a_dtype_that_is_declared_or_no_float():
    ids = mx.sym.Embedding(mx.sym.var("data"), input_dim=10, output_dim=4, name="embedding")
    wide = mx.sym.Cast(mx.sym.var("wide", dtype="float64"), dtype="float32", name="narrow")
    module = Module(ids + wide, ("data", "wide"), None, policy="O1")
    module.bind([mx.io.DataDesc("data", (2,), "int32"), mx.io.DataDesc("wide", (2, 4), "float64")], for_training=False)
    module.init_params()
    given = mx.nd.array([1, 2], dtype="int32"), mx.nd.full((2, 4), 1 / 3, dtype="float64")
    module.forward(mx.io.DataBatch(list(given)))
    bound = module._exec_group.execs[0].arg_dict
    assert (bound["data"].dtype, bound["wide"].dtype) == (np.int32, np.float64)
    assert bound["embedding_weight"].dtype == np.float32


@pytest.mark.filterwarnings("ignore:.*You created Module with")  # MXNet's, where a label's name is not found
def test_a_label_that_the_symbol_does_not_use_reaches_metrics_alone():
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    module, data = Module(symbol, policy="O1"), iterator()
    module.bind(data.provide_data, data.provide_label, for_training=False)
    module.init_params(mx.init.Normal(1))
    expected = (module.predict(data).asnumpy().argmax(1) == samples()[1]).mean()
    assert dict(module.score(data, "acc"))["accuracy"] == expected
