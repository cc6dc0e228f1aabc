"""The static recipes that MXNet's users know, and one network in Gluon and in the Symbolic API."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.loss_scale import NoOpLossScale
from tests.module.tools import batches, bits, grads, params_of, ready, scale, values
from tests.train.state_files import freeze_saved

EPS = float(np.finfo(np.float16).eps)


def soft(grad_scale=1.0, cast=False):
    """An MLP; with casts written by hand, as MXNet's float16 guide has them."""
    x = mx.sym.var("data")
    x = mx.sym.Cast(x, dtype="float16", name="down") if cast else x
    x = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=8, name="fc1"), act_type="relu", name="relu1")
    x = mx.sym.FullyConnected(x, num_hidden=4, name="fc2")
    x = mx.sym.Cast(x, dtype="float32", name="up") if cast else x
    return mx.sym.SoftmaxOutput(x, grad_scale=grad_scale, name="softmax")


def train(module, steps=6):
    data = batches()
    for number in range(steps):
        module.forward_backward(data[number % len(data)])
        module.update()
    return values(module)


def close(found, expected, factor=16):
    for name, array in expected.items():
        assert np.abs(found[name] - array).max() < factor * EPS * np.abs(array).max(), name


def test_grad_scale_128_with_rescale_grad_is_a_static_loss_scale():
    """SoftmaxOutput(grad_scale=128) and rescale_grad=1/128/batch: bit for bit the scale 128 of mxmp."""
    options = {"learning_rate": 0.1, "momentum": 0.9}
    recipe = ready(
        soft(128), "O2", options={**options, "rescale_grad": 1 / 128 / 8, "multi_precision": True}, loss_scale=None
    )
    scaled = ready(soft(), "O2", options=options, loss_scale=128)
    assert recipe.loss_scale == NoOpLossScale()
    assert bits(train(recipe)) == bits(train(scaled))


def test_the_recipe_saves_gradients_that_float16_would_flush():
    """With 2**-26 in the way of the gradient nothing is learnt without the factor, and all with it."""
    tiny = 2.0**-26
    found = {}
    for factor in (1, 2**26):
        options = {"learning_rate": 1.0, "rescale_grad": 1 / 8 / tiny / factor, "multi_precision": True}
        found[factor] = train(ready(soft(tiny * factor), "O2", options=options, loss_scale=None))
    reference = train(ready(soft(), "float32", options={"learning_rate": 1.0}))
    start = values(ready(soft(), "float32"))
    close(found[2**26], reference, 64)
    moved = np.abs(reference["fc1_weight"] - start["fc1_weight"]).max()
    assert np.abs(found[1]["fc1_weight"] - start["fc1_weight"]).max() < 0.1 * moved


def test_casts_written_by_hand_with_multi_precision():
    """MXNet's guide: Cast down behind the data, Cast up in front of the head; weights are float16."""
    options = {"learning_rate": 0.1, "rescale_grad": 1 / 128 / 8, "multi_precision": True}
    module = ready(soft(128, cast=True), "float32", options=options)
    assert {a[0].dtype for a in module._exec_group.param_arrays} == {np.float16}
    found = train(module)
    assert {a.dtype for a in found.values()} == {np.dtype(np.float32)}
    close(found, train(ready(soft(), "float32", options={"learning_rate": 0.1})))


def test_casts_written_by_hand_have_dynamic_scaling_too():
    module = ready(soft(cast=True), "float32", options={"learning_rate": 0.1}, loss_scale=scale(2.0**16))
    train(module, 12)
    assert module.loss_scale.value * 2**module.skipped_steps == 2.0**16
    assert not module.last_step_skipped


@pytest.mark.parametrize("masters", [True, False])
def test_multi_precision_decides_over_masters(masters):
    """A change of 1e-5 of a weight is lost without them: float16 has 11 bits."""
    options = {"learning_rate": 1e-5, "multi_precision": masters}
    module = ready(soft(), "O2", options=options, loss_scale=1)
    before = [a[0].asnumpy() for a in module._exec_group.param_arrays]
    train(module, 4)
    after = [a[0].asnumpy() for a in module._exec_group.param_arrays]
    assert all(np.array_equal(a, b) for a, b in zip(before, after) if a.ndim == 2) or masters
    header, _ = freeze_saved(module.save_optimizer_states)
    (states,) = header["states"]
    assert [state["$master"][0] is not None for _, state in states["$dict"]] == [masters] * 4


class Mlp(gluon.HybridBlock):
    def __init__(self):
        super().__init__(prefix="")
        with self.name_scope():
            self.fc1 = gluon.nn.Dense(8, in_units=6, activation="relu", prefix="fc1_")
            self.fc2 = gluon.nn.Dense(4, in_units=8, prefix="fc2_")

    def hybrid_forward(self, F, x):
        return self.fc2(self.fc1(x))


def gluon_net(policy):
    net = Mlp()
    net.initialize()
    args, _ = params_of(soft(), data=(8, 6))
    for name, param in net.collect_params().items():
        param.set_data(args[name])
    return mxmp.gluon.convert(net, policy)


def cross_entropy(probabilities, label):
    return -np.log(probabilities[np.arange(len(label)), label.astype(int)]).mean()


def gluon_losses(policy, loss_scale, steps, weight=None, batch_size=8):
    net = gluon_net(policy)
    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss(weight=weight)
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", options, loss_scale=loss_scale)
    losses, data = [], batches()
    for number in range(steps):
        batch = data[number % len(data)]
        with autograd.record():
            loss = loss_fn(net(batch.data[0]), batch.label[0])
        with trainer.scale_loss(loss) as scaled:
            autograd.backward(scaled)
        trainer.step(batch_size)
        losses.append(float(loss.mean().asscalar()))
    return losses


def module_losses(policy, loss_scale, steps):
    module = ready(soft(), policy, loss_scale=loss_scale)
    losses, data = [], batches()
    for number in range(steps):
        batch = data[number % len(data)]
        module.forward_backward(batch)
        losses.append(cross_entropy(module.get_outputs()[0].asnumpy(), batch.label[0].asnumpy()))
        module.update()
    return losses


@pytest.mark.parametrize(("policy", "loss_scale"), [("float32", None), ("O1", 256), ("O2", 256), ("O2", "dynamic")])
def test_a_module_and_a_gluon_run_of_one_network_have_the_same_losses(policy, loss_scale):
    ours, theirs = module_losses(policy, loss_scale, 16), gluon_losses(policy, loss_scale, 16)
    eps = EPS if policy != "float32" else float(np.finfo(np.float32).eps)
    # Both round the same tensors; softmax and its gradient are computed in another order.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=16 * eps * ours[0])
    assert ours[-1] < 0.5 * ours[0]


def test_weight_128_in_gluons_loss_is_a_static_loss_scale():
    """SoftmaxCrossEntropyLoss(weight=128) with step(128 * batch): the documented recipe of Gluon."""
    recipe = gluon_losses("O2", None, 8, weight=128, batch_size=8 * 128)
    scaled = gluon_losses("O2", 128, 8)
    np.testing.assert_allclose(np.array(recipe) / 128, scaled, rtol=8 * EPS)
    assert scaled[-1] < scaled[0]


def test_gradients_of_both_fronts_are_the_same_within_a_rounding():
    batch = batches()[0]
    module = ready(soft(), "O1", loss_scale=64)
    module.forward_backward(batch)
    net = gluon_net("O1")
    trainer = mxmp.gluon.Trainer(net.collect_params(), "sgd", loss_scale=64)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(batch.data[0]), batch.label[0])
    with trainer.scale_loss(loss) as scaled:
        autograd.backward(scaled)
    for name, found in grads(module).items():
        expected = net.collect_params()[name].data().grad.asnumpy()
        assert np.abs(found - expected).max() < 4 * EPS * np.abs(expected).max(), name
