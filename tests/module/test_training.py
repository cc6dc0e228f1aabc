"""Steps of a module: skips without a trace, several contexts, unscaling, clipping, masters."""

from __future__ import annotations

import contextlib

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import NonFiniteLossError, TrainerError
from mxmp.loss_scale import NoOpLossScale
from mxmp.module import Module
from tests.freeze import freeze, saved_arrays, scale_of
from tests.module.tools import (
    TWO,
    batches,
    bits,
    convnet,
    mlp,
    params_of,
    plain,
    ready,
    samples,
    scale,
    trace,
    train,
    values,
)

KVSTORES = [None, "local", "device"]


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_float32_module_with_a_scale_is_bit_identical_to_plain_mxnet(optimizer, context, kvstore):
    """A power of two in, the same out through rescale_grad: not one bit of the weights is touched."""
    options = {"learning_rate": 0.05, "wd": 1e-3}
    ours = ready(
        policy="float32", loss_scale=1024, context=context, kvstore=kvstore, optimizer=optimizer, options=options
    )
    theirs = plain(context=context, kvstore=kvstore, optimizer=optimizer, options=options)
    for module in (ours, theirs):
        train(module, batches(), epochs=2)
    assert bits(values(ours)) == bits(values(theirs))
    assert ours.skipped_steps == 0


def test_a_real_overflow_backs_off_until_training_goes_on():
    module = ready(loss_scale=scale(2.0**24))
    train(module, batches(), epochs=5)
    assert 4 < module.skipped_steps < 15
    assert module.loss_scale.value == 2.0 ** (24 - module.skipped_steps)
    assert not module.last_step_skipped


def test_fixed_parameters_stay():
    module = ready(policy="O2", fixed_param_names=["fc1_weight"])
    before = values(module)
    train(module, batches())
    after = values(module)
    assert np.array_equal(after["fc1_weight"], before["fc1_weight"])
    assert not np.array_equal(after["fc2_weight"], before["fc2_weight"])


def test_low_precision_weights_are_trained_through_float32_masters():
    """Updates far below half a float16 step add up in the masters, and no initial bit is lost."""
    module = ready(policy="O2", loss_scale=1, options={"learning_rate": 1e-6})
    start = params_of(mlp(), data=(8, 6))[0]["fc2_weight"].asnumpy()
    assert np.array_equal(values(module)["fc2_weight"], start)  # no rounding through float16
    train(module, batches()[:1] * 10)
    moved = values(module)["fc2_weight"]
    weight = dict(zip(module._exec_group.param_names, module._exec_group.param_arrays))["fc2_weight"][0]
    assert weight.dtype == np.float16
    assert np.array_equal(moved.astype(np.float16), weight.asnumpy())
    assert 0 < np.abs(moved - start).max() < 1e-5


@pytest.mark.parametrize("allow_missing", [False, True])
def test_parameters_that_are_set_reach_the_masters_exactly(allow_missing):
    module = ready(policy="O2")
    train(module, batches()[:2])
    new = {name: mx.nd.array(np.full(a.shape, 1 / 3)) for name, a in module.get_params()[0].items()}
    module.set_params(new, {}, allow_missing=allow_missing)
    assert set(np.unique(values(module)["fc1_weight"])) == {np.float32(1 / 3)}
    assert freeze(new["fc1_weight"]) in saved_arrays(module.save_optimizer_states)


def test_a_bfloat16_module_has_no_scale_and_float32_masters():
    policy = "param=bfloat16,compute=bfloat16,output=float32"
    module = Module(mlp(), policy=policy)
    assert module.loss_scale == NoOpLossScale()


@pytest.mark.bfloat16
def test_mixed_bfloat16_follows_float32():
    ours, theirs = ready(policy="mixed_bfloat16"), plain()
    for module in (ours, theirs):
        train(module, batches(), epochs=2)
    for name, expected in values(theirs).items():
        assert np.abs(values(ours)[name] - expected).max() < 32 * 2.0**-7 * np.abs(expected).max(), name


@pytest.mark.parametrize("policy", ["O1", "float16,loss_scale=8"])
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
def test_a_loss_that_is_not_finite_by_itself_is_an_error(policy, context):
    """Activations beyond float16 make probabilities of NaN: no loss scale helps, and nothing is changed."""
    module, batch = ready(policy=policy, context=context), batches()[0]
    before = trace(module), scale_of(module)
    batch.data[0][7] = mx.nd.array([1e6, 0, 0, 0, 0, 0])
    module.forward_backward(batch)
    with pytest.raises(NonFiniteLossError, match="the loss itself is NaN or inf"):
        module.update()
    assert (trace(module), scale_of(module)) == before
    with pytest.raises(TrainerError, match="no backward has run"):
        module.update()


@pytest.mark.bfloat16
def test_a_metric_reads_bfloat16_outputs():
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), name="softmax")
    module = Module(symbol, policy="bfloat16")
    images = mx.io.NDArrayIter(np.random.RandomState(0).rand(8, 6), np.arange(8) % 4, batch_size=4)
    module.fit(images, eval_metric="acc", num_epoch=1)
    assert 0 <= dict(module.score(images, "acc"))["accuracy"] <= 1


def test_an_override_may_name_a_node_in_a_loop():
    weight = mx.sym.var("w_weight")

    def body(x, state):
        return mx.sym.FullyConnected(x, weight, num_hidden=4, no_bias=True, name="inner"), state

    out, _ = mx.sym.contrib.foreach(body, mx.sym.var("data"), mx.sym.var("s0"))
    module = Module(mx.sym.MakeLoss(mx.sym.sum(out)), ("data", "s0"), None, policy="O1,name:inner*=float32")
    module.bind([("data", (2, 2, 4)), ("s0", (2, 4))])
    assert {row.precision for row in module.report.rows if row.name.startswith("inner")} == {"float32"}


def test_batch_norm_outlives_a_forward_pass_that_overflows():
    module = ready(convnet(), shape=(8, 2, 5, 5), loss_scale=8)
    batch = batches(shape=(2, 5, 5))[0]
    train(module, [batch])
    before = module._exec_group.aux_arrays[0][0].asnumpy()
    overflowing = mx.io.DataBatch([batch.data[0] * 1e30], batch.label)
    module.forward_backward(overflowing)
    with contextlib.suppress(NonFiniteLossError):
        assert not module.update()
    np.testing.assert_array_equal(module._exec_group.aux_arrays[0][0].asnumpy(), before)
    train(module, [batch])
    assert all(np.isfinite(array.asnumpy()).all() for array in module.get_params()[1].values())


@pytest.mark.bfloat16
@pytest.mark.parametrize("grad_req", ["write", "add", {"fc1_weight": "add"}], ids=["write", "add", "one is added"])
def test_gradients_in_bfloat16_add_up_where_they_are_to(grad_req):
    """MXNet's amp_cast loses those that are added; where all are written nothing guards against it."""
    module = Module(mlp(), policy="mixed_bfloat16", loss_scale=None)
    if isinstance(grad_req, dict):
        grad_req = {**dict.fromkeys(mlp().list_arguments(), "null"), **grad_req}
    module.bind([("data", (8, 6))], [("softmax_label", (8,))], grad_req=grad_req)
    module.init_params(mx.init.Xavier())
    found = []
    for _ in range(2):
        module.forward_backward(batches()[0])
        found.append(module._exec_group.execs[0].grad_dict["fc1_weight"].asnumpy().copy())
    assert found[0].any()
    np.testing.assert_allclose(found[1], found[0] * (1 if grad_req == "write" else 2), rtol=1e-5)


@pytest.mark.parametrize("loss_scale", [None, 8])
def test_states_are_not_saved_in_the_middle_of_an_accumulation(loss_scale, tmp_path):
    module = Module(mlp(), policy="O1", loss_scale=loss_scale)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))], grad_req="add")
    module.init_params()
    module.init_optimizer()
    module.forward_backward(batches()[0])
    with pytest.raises(TrainerError, match="save_checkpoint came between backward and step"):
        module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    assert not list(tmp_path.iterdir())
    assert module.update()
    module.save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)


def test_what_is_written_into_true_gradients_that_add_up_stays():
    """Zeros above all: what executors hold is float16, what is seen between unscale and update are float32 copies."""
    module = Module(mlp(), policy="O2", loss_scale=8)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))], grad_req="add")
    module.init_params()
    module.init_optimizer()
    module.forward_backward(batches()[0])
    module.unscale()
    for arrays in module._exec_group.grad_arrays:
        arrays[0][:] = 0
    module.update()
    assert not any(arrays[0].asnumpy().any() for arrays in module._exec_group.grad_arrays)


def test_a_gradient_that_is_replaced_after_unscale_is_used_once():
    module = Module(mlp(), policy="O2", loss_scale=8)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer()
    module.forward_backward(batches()[0])
    grads = module._exec_group.grad_arrays[0]
    (own,) = grads
    module.unscale()
    grads[0] = grads[0] * 0.5
    module.update()
    assert grads[0] is own and own.dtype == np.float16


@pytest.mark.parametrize("policy", ["float32", "O1"])
def test_prelu_gets_the_gradient_that_it_gets_operator_by_operator(policy):
    """MXNet's executor computes the slope's gradient from memory that the data's gradient is in already."""
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1")
    x = mx.sym.LeakyReLU(x, mx.sym.var("alpha"), act_type="prelu", name="prelu")
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=4, name="fc2"), name="softmax")
    args = {name: mx.nd.array(array) for name, array in values(ready(net, policy)).items()}
    data, label = (mx.nd.array(array) for array in samples(8))
    args["alpha"].attach_grad()
    with mx.autograd.record():
        hidden = mx.nd.FullyConnected(data, args["fc1_weight"], args["fc1_bias"], num_hidden=8)
        hidden = mx.nd.LeakyReLU(hidden, args["alpha"], act_type="prelu")
        logits = mx.nd.FullyConnected(hidden, args["fc2_weight"], args["fc2_bias"], num_hidden=4)
        mx.nd.softmax_cross_entropy(logits, label).backward()
    module = ready(net, policy, options={"learning_rate": 1.0})
    train(module, [mx.io.DataBatch([data], [label])])
    moved = args["alpha"].asnumpy() - values(module)["alpha"]
    expected = args["alpha"].grad.asnumpy() / 8
    assert np.linalg.norm(moved - expected) <= 0.02 * np.linalg.norm(expected)
