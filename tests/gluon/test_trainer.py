"""How a trainer is made, adopted and changed, and how it trains whole nets; its steps are those of tests/train."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.distributed import KVStore
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests.distributed.engines import Twins
from tests.gluon.trainer_tools import (
    DTYPES,
    KVSTORES,
    LOW,
    TWO,
    backward,
    backward_everywhere,
    fill,
    loss_of,
    param,
    sgd,
    trained,
    value,
)

# Nets.


def test_parameters_may_be_initialized_late():
    net = gluon.nn.Dense(2)
    net.initialize(mx.init.One())
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record(), trainer.scale_loss(net(mx.nd.array([[1.0, 2.0, 3.0]]))) as scaled:
        scaled.backward()
    assert trainer.step(1)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), [[0, -1, -2]] * 2)


def test_a_net_cast_after_training_began_changes_nothing_in_the_step():
    """The check of states comes before any update: the parameters that could go on do not."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=4), gluon.nn.BatchNorm(in_channels=4), gluon.nn.Dense(1, in_units=4))
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"momentum": 0.9, "learning_rate": 0.1}, loss_scale=8)

    def step():
        with autograd.record(), trainer.scale_loss(net(mx.nd.arange(8).reshape((2, 4))).sum()) as scaled:
            scaled.backward()
        return trainer.step(2)

    assert step()
    convert(net, "O2")
    trained = {name: p for name, p in net.collect_params().items() if "running" not in name}
    before = {name: p.data().asnumpy() for name, p in trained.items()}
    with pytest.raises(TrainerError, match="changed its dtype after its optimizer state was made"):
        step()
    assert trainer.optimizer.num_update == 1
    assert all(np.array_equal(p.data().asnumpy(), before[name]) for name, p in trained.items())


@pytest.mark.parametrize("bad", ["gradient", "loss", "loss, clipped", "neither"])
def test_running_statistics_outlive_a_forward_pass_that_overflows(bad, caplog):
    """An activation beyond float16 makes them NaN; every later average would be NaN too.

    In a step that is taken another pass may have done so, as a generator's through the discriminator.
    """
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, loss_scale=8)
    statistics = [net[1].running_mean, net[1].running_var]

    def forward(x):
        with autograd.record(), trainer.scale_loss((net(x) ** 2).mean()) as scaled:
            scaled.backward()

    x = mx.nd.array(np.random.RandomState(0).rand(8, 3))
    forward(x)
    assert trainer.step(1)
    before = [p.data().asnumpy() for p in statistics]
    forward(x if "loss" not in bad else x * np.inf)
    if "loss" in bad:
        with pytest.raises(NonFiniteLossError):
            trainer.clip_global_norm(1.0) if "clipped" in bad else trainer.step(1)
    else:
        for p in statistics:
            p.data()[:] = np.nan
        if bad == "gradient":
            net[0].weight.grad()[:] = np.inf
        assert trainer.step(1) is (bad == "neither")
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # of them alone, none of a skip
    np.testing.assert_array_equal([p.data().asnumpy() for p in statistics], before)
    forward(x)
    assert trainer.step(1)


# The optimizer and its options.


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_batch_size_and_a_rescale_grad_of_the_user_divide_the_gradient(dtype):
    w = param([8.0], dtype)
    trainer = Trainer([w], "sgd", {"learning_rate": 1.0, "rescale_grad": 0.25}, loss_scale=16)
    backward(trainer, w, 4)
    trainer.step(batch_size=2)
    assert value(w.data()) == [7.5]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("masters", [True, False])
def test_masters_can_be_turned_off(dtype, masters):
    """A small gradient reaches the update at a large scale in either case."""
    w = param([1.0, 0.0], dtype)
    options = {"learning_rate": 1.0, "multi_precision": masters}
    trainer = Trainer([w], "sgd", options, loss_scale=2.0**16)
    for _ in range(64):
        backward(trainer, w, 2.0**-13)
        trainer.step(1)
    assert value(w.data()).tolist() == [1 - 2.0**-7 if masters else 1.0, -(2.0**-7)]
    assert trainer.optimizer.multi_precision is masters


def test_an_optimizer_instance_is_wrapped_unless_it_is_already():
    inner, wrapped = mx.optimizer.SGD(), MultiPrecision(mx.optimizer.SGD(), masters=False)
    trainer = Trainer([param([1.0])], inner, {"multi_precision": False})
    assert (type(trainer.optimizer), trainer.optimizer.inner, trainer.optimizer.masters) == (MultiPrecision, inner, False)
    assert Trainer([param([1.0])], wrapped).optimizer is wrapped


def test_a_trainer_takes_the_scale_of_keras_optimizer_and_does_not_spend_one_if_it_is_refused():
    w = param([1.0])
    optimizer = LossScaleOptimizer(mx.optimizer.SGD(learning_rate=1.0), initial_scale=8, dynamic_growth_steps=2)
    with pytest.raises(TrainerError, match="update_on_kvstore=True"):
        Trainer([param([1.0], ctx=TWO)], optimizer, update_on_kvstore=True)
    trainer = Trainer([w], optimizer)
    for bad in (True, False, False):
        backward(trainer, w, 0.25)
        if bad:
            w.grad()[:] = np.inf
        trainer.step(1)
    assert value(w.data()) == 0.5 and trainer.loss_scale.value == 8 and trainer.skipped_steps == 1


def test_environment_cannot_move_updates_to_the_kvstore(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")
    w, trainer = trained(param([1.0], ctx=TWO))
    backward_everywhere(trainer, w, [1, 1])
    w.grad(TWO[0])[:] = np.inf
    assert not trainer.step(1)
    assert w.data(TWO[0]).asscalar() == 1.0


def test_contexts_that_will_drift_apart_are_logged(caplog):
    sgd(param([1.0], ctx=TWO), kvstore="device")
    assert not caplog.records
    sgd(param([1.0], ctx=TWO), kvstore=None)
    assert "kvstore=None with 2 contexts: their gradients are not summed" in caplog.text


# Trainers of MXNet, and derived ones.


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("contexts", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_trainer_is_adopted_in_mid_training_with_its_states(optimizer, contexts, kvstore):
    weights = [param([1.0, -2.0, 3.0], ctx=TWO[:contexts]) for _ in range(2)]
    plain, adopted = (
        gluon.Trainer([w], optimizer, {"learning_rate": 0.1}, kvstore, update_on_kvstore=False) for w in weights
    )
    for number in range(6):
        x = np.sin(np.arange(3) + number)
        if number == 3:
            assert Trainer.adopt(adopted, 64) is adopted
        for w, trainer in zip(weights, (plain, adopted)):
            if isinstance(trainer, Trainer):
                backward_everywhere(trainer, w, [x] * contexts)
            else:
                plain_backward(w, x)
            trainer.step(2)
    for ctx in TWO[:contexts]:
        np.testing.assert_array_equal(value(weights[1].data(ctx)), value(weights[0].data(ctx)))
    assert adopted.optimizer.num_update == plain.optimizer.num_update == 6


def plain_backward(w, x):
    for ctx in w.list_ctx():
        with autograd.record():
            loss_of(w, x, ctx).backward()


def test_a_trainer_whose_workers_are_set_up_is_not_adopted():
    w = param([1.0])
    plain = gluon.Trainer([w], "sgd", kvstore=KVStore(Twins()), update_on_kvstore=False)
    plain_backward(w, 1)
    plain.step(1)
    with pytest.raises(TrainerError, match="kvstore 'dist_sync' of this trainer is set up already; adopt the trainer"):
        Trainer.adopt(plain, 8)
    assert type(plain) is gluon.Trainer


class _Derived(mxmp.gluon.Trainer):
    """A trainer of a user's, with hooks and names of his own."""

    calls, _step = (), 0

    def _init_kvstore(self):
        self.calls += ("kvstore",)
        super()._init_kvstore()

    def _init_params(self):
        self.calls += ("params",)
        super()._init_params()

    def _allreduce_grads(self):
        self.calls += ("reduce",)
        super()._allreduce_grads()


def test_hooks_of_a_derived_trainer_are_called_and_its_names_are_its_own():
    w = param([1.0], ctx=TWO)
    trainer = _Derived([w], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    backward_everywhere(trainer, w, [0.5, 0.5])
    assert trainer.step(1) and trainer._step == 0
    assert trainer.calls == ("kvstore", "params", "reduce")


# Hooks after steps.


def test_hooks_are_called_after_every_step_and_may_change_its_trainer():
    w, calls = param([1.0]), []
    trainer = sgd(w, DynamicLossScale(init_scale=8))

    def hook(t, updated):
        calls.append((updated, t.skipped_steps, t.loss_scale.value))
        t.set_learning_rate(0.5)
        t.loss_scale = 16

    handle = trainer.register_step_hook(hook)
    for bad in (False, True, False):
        backward(trainer, w, 1)
        if bad:
            w.grad()[:] = np.nan
        trainer.step(1)
    assert calls == [(True, 0, 8), (False, 1, 16), (True, 1, 16)]
    handle.detach()
    backward(trainer, w, 1)
    trainer.step(1)
    assert len(calls) == 3 and value(w.data()) == -1


@pytest.mark.parametrize("run", ["update", "kvstore"])
def test_hooks_are_called_however_a_step_is_made(run):
    w, calls = param([1.0], ctx=TWO), []
    trainer = sgd(w, 8, update_on_kvstore=run == "kvstore")
    trainer.register_step_hook(lambda t, updated: calls.append(updated))
    backward_everywhere(trainer, w, [1, 1])
    if run == "update":
        trainer.allreduce_grads()
        trainer.update(1)
    else:
        trainer.step(1)
    assert calls == [True]


# Parameters that are added.


def adam(params, **options):
    return Trainer(params, "adam", {"learning_rate": 0.1}, loss_scale=8, **options)


def steps(trainer, params, numbers):
    for number in numbers:
        backward_everywhere(trainer, params, [np.sin(np.arange(3) + number)] * len(params[0].list_ctx()))
        assert trainer.step(1)


@pytest.mark.behaviour("added parameters")
@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", [0, 3], ids=["before the first step", "later"])
def test_an_added_parameter_trains_like_one_of_a_new_trainer(before, dtype, kvstore):
    old, new, alone = (param([1.0, 2.0, 3.0], dtype, ctx=TWO, name=name) for name in ("old", "new", "alone"))
    new.lr_mult = alone.lr_mult = 0.5
    trainer, other = adam([old], kvstore=kvstore), adam([alone], kvstore=kvstore)
    steps(trainer, [old], range(before))
    trainer.add_params({"new": new})
    steps(trainer, [old, new], range(before, before + 3))
    steps(other, [alone], range(before, before + 3))
    for ctx in TWO:
        np.testing.assert_array_equal(value(new.data(ctx)), value(alone.data(ctx)))
    assert trainer.optimizer.num_update == before + 3


@pytest.mark.parametrize("container", [lambda net: net, lambda net: net.collect_params()], ids=["net", "its parameters"])
def test_a_net_may_be_added(container):
    net = mx.gluon.nn.Dense(2, in_units=3, prefix="more_")
    net.initialize()
    trainer = sgd(param([1.0], name="old"), 8)
    trainer.add_params(container(net))
    assert [p.name for p in trainer._params] == ["old", "more_weight", "more_bias"]


def test_states_of_added_parameters_are_saved(tmp_path):
    def run(numbers, values, load=None):
        old, new = (param(v, name=n) for v, n in zip(values, ("old", "new")))
        trainer = adam([old])
        trainer.add_params([new])
        if load:
            trainer.load_states(load)
        steps(trainer, [old, new], numbers)
        return trainer, [value(p.data()) for p in (old, new)]

    start = [np.ones(3), np.zeros(3)]
    _, whole = run(range(4), start)
    trainer, half = run(range(2), start)
    trainer.save_states(str(tmp_path / "s"))
    _, resumed = run(range(2, 4), half, str(tmp_path / "s"))
    np.testing.assert_array_equal(resumed, whole)


def test_weights_that_are_added_are_compared_with_their_masters_again():
    old, new = (param([1.0], "float16", name=name) for name in ("old", "new"))
    trainer = sgd(old, 8)
    for _ in range(11):
        backward(trainer, old, 0)
        trainer.step(1)
    trainer.add_params([new])
    backward(trainer, [old, new], 0)
    trainer.step(1)
    new.data()[:] = 5
    backward(trainer, [old, new], 0)
    with pytest.raises(TrainerError, match="parameter 'new' .* written to past its float32 master"):
        trainer.step(1)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: 3.0, "expected gluon Parameters, found a float"),
        (lambda: param([1.0], name="old"), "has a parameter 'old' already"),
        (lambda: param([1.0], name="fine"), "has a parameter 'fine' already"),
        (lambda: param([1.0], ctx=TWO, name="far"), r"parameter 'far' is on \[cpu\(0\), cpu\(1\)\]"),
        (lambda: param(np.ones((2, 2)), name="rows", grad_stype="row_sparse"), "'rows' or its gradient is row_sparse"),
    ],
)
def test_bad_input_adds_nothing(make, message):
    trainer = sgd(param([1.0], name="old"), 8)
    with pytest.raises(TrainerError, match=f"add_params: .*{message}"):
        trainer.add_params([param([1.0], name="fine"), make()])
    assert [p.name for p in trainer._params] == ["old"] and list(trainer._param2idx) == ["old"]


# What is refused.


def trainer_of(*args, **options):
    return Trainer([param([1.0])], *args, **options)


REFUSED = {
    "no parameters": (lambda: Trainer([], "sgd"), "there are no parameters to train"),
    "an empty net": (lambda: Trainer(gluon.nn.HybridSequential(), "sgd"), "there are no parameters to train"),
    "no optimizer": (lambda: trainer_of(None), "optimizer is None; expected a name or an mx.optimizer.Optimizer"),
    "options twice": (
        lambda: trainer_of(mx.optimizer.SGD(), {"wd": 0.1}),
        r"optimizer_params has \['wd'\], but the optimizer is an instance",
    ),
    "no kvstore": (lambda: trainer_of("sgd", None, 5), "kvstore is 5; expected a name, a KVStore or None"),
    "an unknown kvstore": (lambda: trainer_of("sgd", None, "devcie"), "unknown kvstore 'devcie'; .*device"),
    "two scales": (
        lambda: trainer_of(LossScaleOptimizer(mx.optimizer.SGD()), loss_scale=128),
        "loss_scale=128, but the LossScaleOptimizer has one",
    ),
    "a module": (
        lambda: Trainer.adopt(mx.mod.Module(mx.sym.var("data"), label_names=None)),
        "expected a gluon Trainer, found a Module; for a Module use",
    ),
    "a hook": (lambda: trainer_of("sgd").register_step_hook(3), "register_step_hook: 3 is no function"),
}


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("spec", ["statisch", 0, -1, math.nan])
def test_a_wrong_loss_scale_is_refused(spec):
    with pytest.raises(LossScaleError):
        sgd(param([1.0]), spec)


@pytest.mark.parametrize("params", [3, [3], "w"])
def test_what_are_no_parameters_is_refused_by_mxnet(params):
    with pytest.raises(ValueError, match="must be a list or dict of Parameters"):
        Trainer(params, "sgd")


def test_a_trainer_notices_new_contexts():
    w, trainer = trained(param([1.0]), 8)
    w.reset_ctx(TWO)
    backward_everywhere(trainer, w, [1, 1])
    with pytest.raises(TrainerError, match="the trainer was made for 1 of them; make the trainer anew after reset_ctx"):
        trainer.step(1)


def test_without_a_kvstore_each_context_has_masters_of_its_own():
    w, trainer = trained(param([0.5, -1.25], "float16", ctx=TWO), 8, lr=2.0**-14, kvstore=None)
    for _ in range(20):
        backward_everywhere(trainer, w, (1, 2))
        assert trainer.step(1)
    for array, gradient in zip(w.list_data(), (1, 2)):
        np.testing.assert_array_equal(array.asnumpy(), np.float16(np.array([0.5, -1.25]) - 20 * gradient * 2.0**-14))


def test_a_nan_that_stays_on_one_context_is_named():
    params = [param([0.5], dtype, TWO, f"{dtype}_weight") for dtype in ("float32", "float16")]
    trainer = sgd(params, DynamicLossScale(init_scale=1, max_floor_skips=1), kvstore=None)
    backward_everywhere(trainer, params, [0.5, 0.5])
    fill(params[1].grad(TWO[1]), np.nan)
    with pytest.raises(LossScaleError, match="first bad gradient: 'float16_weight' at step 1"):
        trainer.step(1)
