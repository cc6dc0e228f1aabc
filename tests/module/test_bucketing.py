"""Buckets: one set of parameters, one optimizer, one loss scale."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import TrainerError
from mxmp.loss_scale import NoOpLossScale
from mxmp.module import BucketingModule
from mxmp.optimizer import LossScaleOptimizer
from tests.module.tools import TWO, bits, poison, scale, values

KEYS = (6, 3)


def sym_gen(length):
    """A mean over time of one layer applied to every step: parameters do not depend on the length."""
    steps = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, 5))
    hidden = mx.sym.Activation(mx.sym.FullyConnected(steps, num_hidden=8, name="fc1"), act_type="tanh", name="act")
    mean = mx.sym.mean(mx.sym.Reshape(hidden, shape=(-1, length, 8)), axis=1, name="mean")
    out = mx.sym.FullyConnected(mean, num_hidden=4, name="fc2")
    return mx.sym.SoftmaxOutput(out, name="softmax"), ("data",), ("softmax_label",)


def batch(length, seed):
    rng = np.random.default_rng(seed)
    data, label = mx.nd.array(rng.normal(size=(8, length, 5))), mx.nd.array(rng.integers(0, 4, 8))
    return mx.io.DataBatch(
        [data],
        [label],
        bucket_key=length,
        provide_data=[mx.io.DataDesc("data", data.shape)],
        provide_label=[mx.io.DataDesc("softmax_label", label.shape)],
    )


def ready(cls=BucketingModule, kvstore="device", context=None, **kwargs):
    module = cls(sym_gen, default_bucket_key=KEYS[0], context=context or mx.cpu(), **kwargs)
    first = batch(KEYS[0], 0)
    module.bind(first.provide_data, first.provide_label)
    rng = np.random.default_rng(0)
    shapes = {"fc1_weight": (8, 5), "fc1_bias": (8,), "fc2_weight": (4, 8), "fc2_bias": (4,)}
    module.init_params(arg_params={n: mx.nd.array(rng.normal(size=s)) for n, s in shapes.items()}, aux_params={})
    module.init_optimizer(kvstore, "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return module


def train(module, numbers):
    for number in numbers:
        module.forward_backward(batch(KEYS[number % 2], number))
        module.update()


@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
def test_float32_buckets_are_bit_identical_to_plain_mxnets(context):
    ours, theirs = (
        ready(policy="float32", loss_scale=512, context=context),
        ready(mx.mod.BucketingModule, context=context),
    )
    for module in (ours, theirs):
        train(module, range(6))
    assert bits(values(ours)) == bits(values(theirs))


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_buckets_in_mixed_precision_follow_float32(policy):
    ours, theirs = ready(policy=policy, loss_scale=512), ready(mx.mod.BucketingModule)
    for module in (ours, theirs):
        train(module, range(6))
    for name, expected in values(theirs).items():
        # Six steps through products of float16 operands, each off by eps.
        assert np.abs(values(ours)[name] - expected).max() < 16 * np.finfo(np.float16).eps * np.abs(expected).max()


def test_all_buckets_have_one_scale():
    module = ready(loss_scale=scale(64, growth_interval=3))
    train(module, [0, 1])
    module.forward_backward(batch(KEYS[1], 2))
    poison(module._curr_module)
    assert module.update() is False
    assert module.last_step_skipped and module.consecutive_skips == 1
    assert {bucket.loss_scale.value for bucket in module._buckets.values()} == {32}
    train(module, [2, 3, 4])
    assert (module.loss_scale.value, module.skipped_steps) == (64, 1)
    module.loss_scale = 16
    assert module._buckets[KEYS[1]].loss_scale.value == 16


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_resumed_buckets_are_bit_identical(policy, tmp_path):
    prefix = str(tmp_path / "model")
    whole = ready(policy=policy, loss_scale=scale(64, growth_interval=2))
    train(whole, range(5))
    whole.save_checkpoint(prefix, 5, save_optimizer_states=True)
    loaded = BucketingModule.load(prefix, 5, sym_gen, KEYS[0], load_optimizer_states=True, policy=policy)
    first = batch(KEYS[0], 0)
    loaded.bind(first.provide_data, first.provide_label)
    loaded.init_optimizer("device", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    for module in (whole, loaded):
        train(module, range(5, 9))
    assert bits(values(loaded)) == bits(values(whole))
    assert loaded.loss_scale == whole.loss_scale
    assert loaded.skipped_steps == whole.skipped_steps


def test_saved_symbols_are_those_of_the_network(tmp_path):
    prefix, module = str(tmp_path / "model"), ready()
    train(module, range(2))
    module.save_checkpoint(prefix, 1)
    for key in KEYS:
        saved = mx.sym.load(f"{prefix}-{key}-symbol.json")
        assert [n["op"] for n in json.loads(saved.tojson())["nodes"]] == [
            n["op"] for n in json.loads(sym_gen(key)[0].tojson())["nodes"]
        ]


def test_a_rebind_keeps_the_optimizer():
    ours, other = ready(policy="O2", loss_scale=64), ready(policy="O2", loss_scale=64)
    first = batch(KEYS[0], 0)
    for module in (ours, other):
        train(module, range(3))
    ours.bind(first.provide_data, first.provide_label, force_rebind=True)
    for module in (ours, other):
        train(module, range(3, 6))
    assert bits(values(ours)) == bits(values(other))


def test_a_monitor_sees_every_bucket():
    module, seen = ready(policy="O1", loss_scale=8), []
    monitor = mx.mon.Monitor(1, stat_func=lambda x: seen.append(1) or x.norm(), pattern=".*fc2.*")
    module.install_monitor(monitor)
    for number in range(2):
        seen.clear()
        monitor.tic()
        module.forward_backward(batch(KEYS[number], number))
        monitor.toc()
        assert seen


def test_missing_parts_are_named():
    with pytest.raises(TrainerError, match="load: sym_gen is missing"):
        BucketingModule.load_dict({}, None, 6, {}, {})
    with pytest.raises(TrainerError, match="unscale: the module is not bound; call bind first"):
        BucketingModule(sym_gen, 6).unscale()


def test_a_bucket_with_a_parameter_of_its_own_is_an_error_that_names_it():
    def grows(length):
        symbol, *names = sym_gen(length)
        if length == KEYS[1]:
            data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="extra")
            symbol = mx.sym.SoftmaxOutput(data, name="softmax")
        return (symbol, *names)

    module = BucketingModule(grows, KEYS[0], policy="float32", loss_scale=4)
    first, second = (batch(key, 0) for key in KEYS)
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    with pytest.raises(TrainerError, match=r"parameters \['extra_weight', 'extra_bias'\] are missing in the module"):
        module.forward_backward(second)


def test_an_optimizer_set_up_in_a_small_bucket_knows_the_parameters_of_all():
    """The bucket of length 3 lacks the first layer."""

    def shrinks(length):
        hidden = mx.sym.Reshape(mx.sym.var("data"), shape=(-1, length, 5))
        if length == KEYS[0]:
            hidden = mx.sym.FullyConnected(hidden, num_hidden=5, flatten=False, name="fc1")
        out = mx.sym.FullyConnected(mx.sym.mean(hidden, axis=1), num_hidden=4, name="fc2")
        return mx.sym.SoftmaxOutput(out, name="softmax"), ("data",), ("softmax_label",)

    module = BucketingModule(shrinks, KEYS[0], policy="O2", loss_scale=4)
    first, second = (batch(key, 0) for key in KEYS)
    module.bind(first.provide_data, first.provide_label)
    module.init_params()
    module.switch_bucket(KEYS[1], second.provide_data, second.provide_label)
    module.init_optimizer()
    before = values(module)
    for each in (second, first):
        module.forward_backward(each)
        module.update()
    module.switch_bucket(KEYS[0], None)
    assert all(not np.array_equal(values(module)[name], before[name]) for name in before)


def set_scale(module, tmp_path):
    module.loss_scale = "dynamic"


def load_scale(module, tmp_path):
    other = ready(policy="float32", loss_scale=8)
    other.save_optimizer_states(str(tmp_path / "states"))
    module.load_optimizer_states(str(tmp_path / "states"))


def optimize_with_scale(module, tmp_path):
    module.init_optimizer("device", LossScaleOptimizer(mx.optimizer.SGD(rescale_grad=1 / 8)), force_init=True)


@pytest.mark.parametrize("give", [set_scale, load_scale, optimize_with_scale])
def test_a_loss_scale_after_binding_without_one_is_refused(give, tmp_path):
    module = ready(policy="float32")
    train(module, range(2))
    before = bits(values(module))
    with pytest.raises(TrainerError, match="^loss_scale: this module was bound without a loss scale; set it before"):
        give(module, tmp_path)
    assert isinstance(module.loss_scale, NoOpLossScale) and bits(values(module)) == before
    train(module, range(2))


def test_a_loss_scale_is_refused_where_any_bucket_was_bound_without_one():
    module = ready(policy="float32", loss_scale=8)  # the default bucket has an input for it
    module.loss_scale = None
    train(module, range(2))  # the other is bound without
    with pytest.raises(TrainerError, match="bound without a loss scale"):
        module.loss_scale = 8
    module.forward_backward(batch(KEYS[0], 0))
    with pytest.raises(TrainerError, match="bound without a loss scale"):
        module.loss_scale = 8
