"""Buckets: one set of parameters, one optimizer, one loss scale."""

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.loss_scale import NoOpLossScale
from mxmp.module import BucketingModule
from mxmp.optimizer import LossScaleOptimizer
from mxmp.symbol import to_graph
from tests.module.tools import SGD, TWO, arrays, bits, poison, scale, values

KEYS = (6, 3)
NAMES = ("data",), ("softmax_label",)


def sym_gen(length):
    """A mean over time of one layer applied to every step: parameters do not depend on the length."""
    steps = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 5))
    hidden = mx.sym.Activation(mx.sym.FullyConnected(steps, num_hidden=8, name="fc1"), act_type="tanh", name="act")
    mean = mx.sym.mean(mx.sym.Reshape(hidden, shape=(-1, length, 8)), axis=1, name="mean")
    out = mx.sym.FullyConnected(mean, num_hidden=4, name="fc2")
    return mx.sym.SoftmaxOutput(out, name="softmax"), *NAMES


def extra_layer(length):
    """The same, with a layer that the default bucket alone has."""
    out = sym_gen(length)[0].get_internals()["fc2_output"]
    extra = mx.sym.FullyConnected(out, num_hidden=4, name="extra") if length == KEYS[0] else out
    return mx.sym.SoftmaxOutput(extra, name="softmax"), *NAMES


def batch(length, seed):
    rng = np.random.default_rng(seed)
    data, label = mx.nd.array(rng.normal(size=(8, length, 5))), mx.nd.array(rng.integers(0, 4, 8))
    descs = [mx.io.DataDesc("data", data.shape)], [mx.io.DataDesc("softmax_label", label.shape)]
    return mx.io.DataBatch([data], [label], bucket_key=length, provide_data=descs[0], provide_label=descs[1])


def bound(make=sym_gen, cls=BucketingModule, **kwargs):
    module, first = cls(make, KEYS[0], **kwargs), batch(KEYS[0], 0)
    module.bind(first.provide_data, first.provide_label)
    return module


def ready(make=sym_gen, kvstore="device", **kwargs):
    mx.random.seed(0)
    module = bound(make, **kwargs)
    module.init_params(mx.init.Normal(0.5))
    module.init_optimizer(kvstore, "sgd", SGD)
    return module


def train(module, numbers):
    for number in numbers:
        module.forward_backward(batch(KEYS[number % 2], number))
        module.update()
    return module


@pytest.mark.parametrize("policy, context", [("float32", TWO), ("O1", mx.cpu()), ("O2", TWO)])
def test_buckets_train_as_plain_mxnets(policy, context):
    ours = train(ready(policy=policy, loss_scale=512, context=context), range(6))
    theirs = values(train(ready(cls=mx.mod.BucketingModule, context=context), range(6)))
    assert policy != "float32" or bits(values(ours)) == bits(theirs)
    for name, expected in theirs.items():
        # Six steps through products of float16 operands, each off by eps.
        assert np.abs(values(ours)[name] - expected).max() < 16 * np.finfo(np.float16).eps * np.abs(expected).max()


def test_all_buckets_have_one_scale():
    module = BucketingModule(sym_gen, KEYS[0], loss_scale=8)
    module.loss_scale = 16
    assert module.loss_scale.value == 16
    module = train(ready(loss_scale=scale(64, growth_interval=3)), [0, 1])
    module.forward_backward(batch(KEYS[1], 2))
    poison(module._curr_module)
    assert module.update() is False and module.last_step_skipped and module.consecutive_skips == 1
    assert {bucket.loss_scale.value for bucket in module._buckets.values()} == {32}
    train(module, [2, 3, 4])
    assert (module.loss_scale.value, module.skipped_steps) == (64, 1)
    module.loss_scale = 16
    assert module._buckets[KEYS[1]].loss_scale.value == 16


@pytest.mark.parametrize("policy", ["O1", "O2"])
@pytest.mark.parametrize("steps", [5, 6], ids=["default bucket", "small bucket"])  # which lacks a layer
def test_resumed_buckets_are_bit_identical_and_have_the_networks_symbols(steps, policy, tmp_path):
    prefix, first = str(tmp_path / "model"), batch(KEYS[0], 0)
    whole = train(ready(extra_layer, policy=policy, loss_scale=scale(64, growth_interval=2)), range(steps))
    whole.save_checkpoint(prefix, 5, save_optimizer_states=True)
    for key in KEYS:
        saved = to_graph(mx.sym.load(f"{prefix}-{key}-symbol.json"))
        assert [node.op for node in saved.nodes] == [node.op for node in to_graph(extra_layer(key)[0]).nodes]
    loaded = BucketingModule.load(prefix, 5, extra_layer, KEYS[0], load_optimizer_states=True, policy=policy)
    loaded.bind(first.provide_data, first.provide_label)
    loaded.init_optimizer("device", "sgd", SGD)
    for module in (whole, loaded):
        train(module, range(5, 9))
    assert bits(values(loaded)) == bits(values(whole))
    assert (loaded.loss_scale, loaded.skipped_steps) == (whole.loss_scale, whole.skipped_steps)


@pytest.mark.parametrize("kvstore", [None, "device"])
def test_a_rebind_keeps_the_optimizer_and_gives_up_the_window_that_was_open(kvstore):
    options, first = {"policy": "O2", "loss_scale": 64, "context": TWO, "kvstore": kvstore}, batch(KEYS[0], 0)
    ours, other = (train(ready(**options), range(3)) for _ in range(2))
    ours.forward_backward(first)
    ours.bind(first.provide_data, first.provide_label, force_rebind=True)
    ours.loss_scale = 64  # which is refused in an open window
    for module in (ours, other):
        train(module, range(3, 6))
    assert kvstore is None or bits(values(ours)) == bits(values(other))  # else contexts go on from their mean


def test_calls_reach_the_current_bucket(tmp_path):
    module = ready(policy="O2", loss_scale=64)
    module.forward_backward(batch(KEYS[1], 1))
    norm = module.clip_global_norm(1e6)
    assert module.clip_global_norm(1e6, batch_size=4) == pytest.approx(norm / 4)
    module.discard_grads()
    module.save_params(str(tmp_path / "params"))
    before = bits(values(module))
    train(module, range(2))
    assert bits(values(module)) != before
    module.load_params(str(tmp_path / "params"))
    assert bits(values(module)) == before
    module.save_optimizer_states(str(tmp_path / "states"))
    module.set_params({name: array + 1 for name, array in module.get_params()[0].items()}, {})
    module.load_optimizer_states(str(tmp_path / "states"))  # weights decide over its masters
    assert np.array_equal(values(module)["fc1_weight"], arrays(module._curr_module, "fc1_weight")[0].asnumpy())
    assert module.report.casts and module.policy == module._curr_module.policy
    train(module, range(2))
    arrays(module._curr_module, "fc1_bias")[0][0] += 1
    for save in (module.save_params, module.save_optimizer_states, lambda name: train(module, [0])):
        with pytest.raises(TrainerError, match="^parameter 'fc1_bias' is stored in low precision"):
            save(str(tmp_path / "file"))


def test_a_monitor_sees_every_bucket_by_its_names():
    module = ready(loss_scale=8)
    monitor = mx.mon.Monitor(1, stat_func=lambda x: x.norm(), pattern="fc._output|act_output|softmax_output")
    module.install_monitor(monitor)
    for number in range(4):
        monitor.tic()
        module.forward(batch(KEYS[number % 2], number), is_train=True)
        assert [name for _, name, _ in monitor.toc()] == ["fc1_output", "act_output", "fc2_output", "softmax_output"]


def test_an_optimizer_set_up_in_a_small_bucket_knows_the_parameters_of_all():
    """The small one lacks the last layer, of which alone the policy's pattern is."""
    module, second = bound(extra_layer, policy="O2,name:extra=float32", loss_scale=4), batch(KEYS[1], 0)
    module.init_params()
    module.switch_bucket(KEYS[1], second.provide_data, second.provide_label)
    module.init_optimizer()
    before = values(module)
    train(module, [1, 0])
    assert all(not np.array_equal(values(module)[name], before[name]) for name in before)


GIVES = {
    "set": lambda module, states: setattr(module, "loss_scale", "dynamic"),
    "load": lambda module, states: module.load_optimizer_states(states),
    "optimizer": lambda module, states: module.init_optimizer(
        "device", LossScaleOptimizer(mx.optimizer.SGD(rescale_grad=1 / 8)), force_init=True
    ),
}


def test_a_loss_scale_after_binding_without_one_is_refused(tmp_path):
    states, module = str(tmp_path / "states"), train(ready(policy="float32"), range(2))
    ready(policy="float32", loss_scale=8).save_optimizer_states(states)
    before = bits(values(module))
    for give in GIVES.values():
        with pytest.raises(TrainerError, match="loss_scale: this module was bound without a loss scale.*; set it before"):
            give(module, states)
    assert isinstance(module.loss_scale, NoOpLossScale) and bits(values(module)) == before
    module = ready(policy="float32", loss_scale=8)  # the default bucket has an input for it
    module.loss_scale = None
    train(module, range(2))  # the other is bound without
    for key in KEYS[::-1]:
        module.switch_bucket(key, None)
        with pytest.raises(TrainerError, match="bound without a loss scale"):
            module.loss_scale = 8
