"""Steps of a module: skips without a trace, several contexts, unscaling, clipping, masters."""

from __future__ import annotations

import contextlib
import logging

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.loss_scale import NoOpLossScale, StaticLossScale
from mxmp.module import Module
from tests.module.tools import (
    TWO,
    batches,
    bits,
    convnet,
    grads,
    mlp,
    params_of,
    plain,
    poison,
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


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_step_that_overflows_leaves_no_trace_and_backs_off(policy, context, kvstore):
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5, base_lr=0.1)
    options = {"learning_rate": 0.1, "momentum": 0.9, "lr_scheduler": schedule}
    module = ready(policy=policy, loss_scale=scale(64), context=context, kvstore=kvstore, options=options)
    data = batches()
    train(module, data[:3])
    before = trace(module)
    module.forward_backward(data[3])
    poison(module)
    assert module.update() is False
    assert trace(module) == before
    assert (module.loss_scale.value, module.skipped_steps, module.consecutive_skips) == (32, 1, 1)
    assert module.last_step_skipped
    module.forward_backward(data[3])
    assert module.update() is True
    assert trace(module) != before
    assert (module.skipped_steps, module.consecutive_skips, module.last_step_skipped) == (1, 0, False)


def test_a_real_overflow_backs_off_until_training_goes_on():
    module = ready(loss_scale=scale(2.0**24))
    train(module, batches(), epochs=5)
    assert 4 < module.skipped_steps < 15
    assert module.loss_scale.value == 2.0 ** (24 - module.skipped_steps)
    assert not module.last_step_skipped


def test_the_scale_grows_and_the_gradients_with_it():
    module = ready(policy="float32", loss_scale=scale(4, growth_interval=2), options={"learning_rate": 0.0})
    seen, data = [], batches()[0]
    for _ in range(5):
        module.forward_backward(data)
        seen.append(grads(module)["fc2_weight"])
        module.update()
    ratios = [np.median(b[b != 0] / seen[0][b != 0]) for b in seen]
    assert ratios == [1, 1, 2, 2, 4]


def test_one_read_on_the_host_per_step(monkeypatch):
    module = ready(policy="O2", loss_scale=scale(16), context=TWO, kvstore="device")
    module.forward_backward(batches()[0])
    reads, asnumpy = [], mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda self: reads.append(self.shape) or asnumpy(self))
    module.update()
    assert reads == [(1,)]


def test_gradients_that_overflow_when_they_are_unscaled_are_not_used():
    """1e37 at a scale of 2**-10 stands for 1e40, which float32 has not."""
    module = ready(policy="float32", loss_scale=2.0**-10)
    before = trace(module)
    module.forward_backward(batches()[0])
    module._exec_group.grad_arrays[0][0][:] = 1e37
    assert module.update() is False
    assert trace(module) == before


def test_an_optimizer_that_needs_true_gradients_gets_them():
    """LBSGD takes norms of gradients before it applies rescale_grad."""
    found = {}
    for loss_scale in (None, 64):
        module = ready(policy="float32", loss_scale=loss_scale, optimizer="lbsgd", options={"learning_rate": 0.1})
        train(module, batches())
        found[loss_scale] = bits(values(module))
    assert found[64] == found[None]


@pytest.mark.parametrize("policy", ["float32", "O2"])
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
def test_unscale_shows_true_gradients_and_update_uses_them(context, policy):
    found = {}
    for first in (False, True):
        module = ready(policy=policy, loss_scale=256, context=context, kvstore="device", options={"learning_rate": 0.1})
        module.forward_backward(batches()[0])
        scaled = grads(module)
        if first:
            module.unscale()
            shown = grads(module)
            assert {g.dtype for g in shown.values()} == {np.dtype(np.float32)}
            if len(context) == 1:
                for name, gradient in shown.items():
                    assert np.array_equal(gradient * 256, scaled[name].astype(np.float32)), name
        module.update()
        found[first] = bits(values(module))
        assert {n: g.dtype for n, g in grads(module).items()} == {n: g.dtype for n, g in scaled.items()}
    assert found[True] == found[False]


def test_changes_of_unscaled_gradients_are_used():
    module = ready(policy="O2", loss_scale=256, options={"learning_rate": 1.0, "rescale_grad": 1.0})
    before = values(module)["fc1_weight"]
    module.forward_backward(batches()[0])
    module.unscale()
    for arrays in module._exec_group.grad_arrays:
        arrays[0][:] = 0.5
    module.update()
    assert np.array_equal(values(module)["fc1_weight"], before - np.float32(0.5))


@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
def test_clip_global_norm_is_numpys(context):
    module = ready(policy="float32", loss_scale=64, context=context, kvstore="device", options={"learning_rate": 1.0})
    theirs = plain(context=context, options={"learning_rate": 1.0})
    theirs.forward_backward(batches()[0])
    arrays = [sum(g.asnumpy().astype(np.float64) for g in each) for each in theirs._exec_group.grad_arrays]
    norm = np.sqrt(sum(np.square(a).sum() for a in arrays))
    before = values(module)
    module.forward_backward(batches()[0])
    assert module.clip_global_norm(norm / 2) == pytest.approx(norm, rel=1e-6)
    module.update()
    for (name, a), g in zip(sorted(before.items()), [arrays[i] for i in np.argsort(theirs._exec_group.param_names)]):
        np.testing.assert_allclose(values(module)[name], a - 0.5 * g / 8, atol=1e-6)


def test_clipping_gradients_that_are_not_finite_skips_the_step():
    module = ready(policy="float32", loss_scale=scale(8))
    before = trace(module)
    module.forward_backward(batches()[0])
    poison(module)
    assert np.isnan(module.clip_global_norm(1.0))
    assert module.update() is False
    assert trace(module) == before


def test_without_a_scale_clipping_checks_no_more_than_update():
    """Nothing is clipped or skipped, as `update` alone would do."""
    found = []
    for clip in (True, False):
        module = ready(policy="float32", optimizer="sgd", options={"learning_rate": 1.0})
        module.forward_backward(batches()[0])
        poison(module)
        if clip:
            assert np.isnan(module.clip_global_norm(1.0))
        assert module.update() is True and module.skipped_steps == 0
        found.append(values(module))
    assert all(np.array_equal(found[0][name], value, equal_nan=True) for name, value in found[1].items())
    assert any(np.isnan(value).any() for value in found[0].values())


def test_gradients_are_added_up_over_batches_at_one_scale():
    """grad_req='add': two half batches are one batch, whatever the scale would have become."""
    data, label = samples(8)
    halves = [mx.io.DataBatch([mx.nd.array(data[i : i + 4])], [mx.nd.array(label[i : i + 4])]) for i in (0, 4)]
    module = Module(mlp(), policy="float32", loss_scale=128)
    module.bind([("data", (4, 6))], [("softmax_label", (4,))], grad_req="add")
    module.init_params(arg_params=params_of(mlp(), data=(4, 6))[0], aux_params={})
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.1, "rescale_grad": 1 / 8})
    whole = plain(options={"learning_rate": 0.1})
    for half in halves:
        module.forward_backward(half)
    module.update()
    train(whole, [mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(label)])])
    for name, expected in values(whole).items():
        np.testing.assert_allclose(values(module)[name], expected, rtol=1e-5, atol=1e-6)


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
    state = module._training.updaters[0].states[module._exec_group.param_names.index("fc1_weight")]
    assert set(np.unique(state.master.asnumpy())) == {np.float32(1 / 3)}


def test_a_bfloat16_module_has_no_scale_and_float32_masters():
    policy = "param=bfloat16,compute=bfloat16,output=float32"
    module = Module(mlp(), policy=policy)
    assert module.loss_scale == NoOpLossScale()


@pytest.mark.bfloat16
def test_bfloat16_weights_are_trained_through_float32_masters():
    module = ready(policy="param=bfloat16,compute=bfloat16,output=float32", options={"learning_rate": 1e-5})
    start = values(module)["fc2_weight"]
    assert np.array_equal(start, params_of(mlp(), data=(8, 6))[0]["fc2_weight"].asnumpy())
    train(module, batches())
    assert 0 < np.abs(values(module)["fc2_weight"] - start).max() < 1e-4


@pytest.mark.bfloat16
def test_mixed_bfloat16_follows_float32():
    ours, theirs = ready(policy="mixed_bfloat16"), plain()
    for module in (ours, theirs):
        train(module, batches(), epochs=2)
    for name, expected in values(theirs).items():
        assert np.abs(values(ours)[name] - expected).max() < 32 * 2.0**-7 * np.abs(expected).max(), name


def test_the_floor_raises_an_error_that_names_the_gradient():
    module = ready(policy="float32", loss_scale=scale(1, max_floor_skips=3))
    for step in range(3):
        module.forward_backward(batches()[0])
        poison(module)
        if step < 2:
            module.update()
    with pytest.raises(LossScaleError, match="first bad gradient: 'fc1_weight' at step 3"):
        module.update()


def test_skips_are_logged(caplog):
    module = ready(policy="float32", loss_scale=scale(8))
    module.forward_backward(batches()[0])
    poison(module)
    with caplog.at_level(logging.INFO, "mxmp"):
        module.update()
    assert "step 1 skipped, its gradients are not finite: DynamicLossScale 8 -> 4" in caplog.text


@pytest.mark.parametrize("policy", ["O1", "float16,loss_scale=8"])
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
def test_a_loss_that_is_not_finite_by_itself_is_an_error(policy, context):
    """Activations beyond float16 make probabilities of NaN: no loss scale helps, and nothing is changed."""
    module, batch = ready(policy=policy, context=context), batches()[0]
    before = trace(module), module._scaler.to_dict()
    batch.data[0][7] = mx.nd.array([1e6, 0, 0, 0, 0, 0])
    module.forward_backward(batch)
    with pytest.raises(NonFiniteLossError, match="the loss itself is NaN or inf"):
        module.update()
    assert (trace(module), module._scaler.to_dict()) == before
    with pytest.raises(TrainerError, match="no backward has run"):
        module.update()


def test_the_static_scale_never_moves():
    module = ready(loss_scale=16)
    module.forward_backward(batches()[0])
    poison(module)
    assert module.update() is False
    assert module.loss_scale == StaticLossScale(16)


@pytest.mark.parametrize("optimizer", ["nadam", "sgld", "sgd"])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_contexts_hold_the_same_weights(optimizer, policy):
    """Nadam counts its calls and SGLD draws noise: an update on each context would let them drift apart."""
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc"), name="softmax")
    module = Module(symbol, context=[mx.cpu(0), mx.cpu(1)], policy=policy, loss_scale=4)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer(optimizer=optimizer, optimizer_params={"learning_rate": 0.05})
    rng = np.random.RandomState(0)
    for _ in range(3):
        module.forward_backward(mx.io.DataBatch([mx.nd.array(rng.randn(8, 6))], [mx.nd.array(rng.randint(0, 4, 8))]))
        assert module.update()
    for weight in module._weights():
        first, second = (array.asnumpy() for array in weight.arrays)
        np.testing.assert_array_equal(first, second)


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
