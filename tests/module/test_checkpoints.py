"""Checkpoints: resumed bit for bit, and read by plain MXNet."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import StateError
from mxmp.graph import without_versions
from mxmp.module import Module
from mxmp.symbol import to_graph
from tests.freeze import scale_of
from tests.module.tools import TWO, batches, bits, convnet, iterator, mlp, poison, ready, scale, trace, values

SHAPE = [("data", (8, 6))], [("softmax_label", (8,))]


def options():
    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[2, 5], factor=0.5, base_lr=0.05)
    return {"learning_rate": 0.05, "momentum": 0.9, "lr_scheduler": schedule}


def step(module, number):
    data = batches()
    module.forward_backward(data[number % len(data)])
    if number in (3, 4, 7):
        poison(module)
    module.update()


@pytest.mark.behaviour("a resumed run")
@pytest.mark.parametrize("context", [[mx.cpu()], TWO], ids=["one", "two"])
@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_that_is_resumed_goes_on_bit_for_bit(policy, context, tmp_path):
    """From a checkpoint before any step, between two skips and after another; `test_step` resumes at every step."""
    prefix = str(tmp_path / "model")
    loss_scale = scale(2.0**6, growth_interval=3, hysteresis=2)
    whole = ready(policy=policy, loss_scale=loss_scale, options=options(), context=context, kvstore="device")
    resumed = ready(policy=policy, loss_scale=loss_scale, options=options(), context=context, kvstore="device")
    for number in range(9):
        if number in (0, 4, 8):
            resumed.save_checkpoint(prefix, number, save_optimizer_states=True)
            resumed = Module.load(prefix, number, True, policy=policy, loss_scale=loss_scale, context=context)
            resumed.bind(*SHAPE)
            resumed.init_optimizer("device", "sgd", options())
        for module in (whole, resumed):
            step(module, number)
    assert trace(resumed) == trace(whole)
    assert bits(values(resumed)) == bits(values(whole))
    assert scale_of(resumed) == scale_of(whole)
    assert (whole.skipped_steps, whole.loss_scale.value != 2.0**6) == (3, True)


def test_a_warm_up_resumes_where_it_was_and_no_scale_given_is_no_warning(tmp_path, caplog):
    prefix = str(tmp_path / "model")
    module = ready()
    for number in (0, 1):
        step(module, number)
    module.save_checkpoint(prefix, 1, save_optimizer_states=True)
    resumed = Module.load(prefix, 1, load_optimizer_states=True)
    resumed.bind(*SHAPE)
    resumed.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    assert resumed.loss_scale == module.loss_scale and resumed.loss_scale.value == 2.0**10
    resumed.loss_scale = 128  # a file replaces the scale that is not given, whatever it is
    resumed.save_optimizer_states(f"{prefix}-0001.states")
    resumed = Module.load(prefix, 1, load_optimizer_states=True)
    resumed.bind(*SHAPE)
    resumed.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    assert resumed.loss_scale.value == 128
    assert "decides over" not in caplog.text


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_plain_mxnet_loads_a_checkpoint(policy, tmp_path):
    prefix = str(tmp_path / "model")
    module = ready(convnet(), policy, shape=(8, 1, 6, 6), loss_scale=4)
    for batch in batches(shape=(1, 6, 6)):
        module.forward_backward(batch)
        module.update()
    module.save_checkpoint(prefix, 3)
    symbol, args, aux = mx.model.load_checkpoint(prefix, 3)
    assert without_versions(to_graph(symbol)) == without_versions(to_graph(convnet()))
    assert {a.dtype for a in (*args.values(), *aux.values())} == {np.float32}
    assert bits({n: a.asnumpy() for n, a in {**args, **aux}.items()}) == bits(values(module))
    plain = mx.mod.Module.load(prefix, 3)
    data = iterator(shape=(1, 6, 6))
    plain.bind(data.provide_data, data.provide_label, for_training=False)
    found, expected = (m.predict(data).asnumpy() for m in (module, plain))
    assert np.abs(found - expected).max() < 16 * np.finfo(np.float16).eps  # probabilities of two layers in float16


def test_a_checkpoint_of_plain_mxnet_goes_on_in_mixed_precision(tmp_path):
    prefix = str(tmp_path / "model")
    plain = mx.mod.Module(mlp())
    plain.bind(*SHAPE)
    plain.init_params(mx.init.Xavier())
    plain.save_checkpoint(prefix, 0)
    module = Module.load(prefix, 0, policy="O2", loss_scale=8)
    module.bind(*SHAPE)
    assert bits(values(module)) == bits(values(plain))
    module.init_optimizer()
    step(module, 0)
    assert module.skipped_steps == 0


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_float16_checkpoint_is_taken_as_float32(policy, tmp_path):
    prefix, module = str(tmp_path / "model"), ready(policy="O2")
    args = {name: array.astype("float16") for name, array in module.get_params()[0].items()}
    mx.model.save_checkpoint(prefix, 0, mlp(), args, {})
    loaded = Module.load(prefix, 0, policy=policy, loss_scale=8)
    loaded.bind(*SHAPE)
    loaded.init_optimizer()
    assert {array.dtype for array in loaded.get_params()[0].values()} == {np.float32}
    assert bits(values(loaded)) == bits({name: a.astype("float32").asnumpy() for name, a in args.items()})
    step(loaded, 0)
    assert any(np.any(a != a.astype(np.float16)) for a in values(loaded).values())


def test_a_run_of_plain_mxnet_goes_on_bit_for_bit(tmp_path):
    prefix, made = str(tmp_path / "model"), []
    plain = mx.mod.Module(mlp())
    plain.bind(*SHAPE)
    plain.init_params()
    plain.init_optimizer("local", "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    for batch in batches()[:3]:
        plain.forward_backward(batch)
        plain.update()
    plain.save_checkpoint(prefix, 3, save_optimizer_states=True)
    module = Module.load(prefix, 3, True, policy="float32")
    module.bind(*SHAPE)
    module.init_optimizer("local", "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    for each in (plain, module):
        for batch in batches()[:3]:
            each.forward_backward(batch)
            each.update()
        made.append(bits(values(each)))
    assert made[0] == made[1]


def test_states_of_another_network_are_refused(tmp_path):
    fname = str(tmp_path / "model.states")
    plain = mx.mod.Module(convnet())
    plain.bind([("data", (8, 3, 8, 8))], SHAPE[1])
    plain.init_params()
    plain.init_optimizer("local", "sgd", {"momentum": 0.9})
    plain.forward_backward(mx.io.DataBatch([mx.nd.ones((8, 3, 8, 8))], [mx.nd.zeros((8,))]))
    plain.update()
    plain.save_optimizer_states(fname)
    module = ready()
    before = trace(module)
    with pytest.raises(StateError, match=rf"{fname}: states\[0\]\[.\] is .*; expected"):
        module.load_optimizer_states(fname)
    assert trace(module) == before


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_a_rebind_keeps_parameters_optimizer_and_scale(policy):
    """Evaluation in between, at another batch size, with executors of its own."""
    module, other = (ready(policy=policy, loss_scale=scale(16)) for _ in range(2))
    for number in range(4):
        step(module, number)
        step(other, number)
    module.bind([("data", (2, 6))], [("softmax_label", (2,))], for_training=False, force_rebind=True)
    assert bits(values(module)) == bits(values(other))
    module.bind(*SHAPE, force_rebind=True)
    for number in range(4, 8):
        step(module, number)
        step(other, number)
    assert trace(module) == trace(other)
    assert scale_of(module) == scale_of(other)
