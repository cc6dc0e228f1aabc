"""How a trainer is made, adopted and changed, and how it trains whole nets; its steps are those of tests/train."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp.distributed import KVStore
from mxmp.errors import LossScaleError, NonFiniteLossError, TrainerError
from mxmp.gluon import Trainer, convert, exact_value
from mxmp.loss_scale import DynamicLossScale
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests.distributed.engines import Second, Twins
from tests.freeze import freeze
from tests.gluon.trainer_tools import (
    DTYPES,
    KVSTORES,
    LOW,
    TWO,
    backward,
    backward_everywhere,
    param,
    run,
    run_backward,
    sgd,
    trained,
    value,
)

# Nets.


def net_with_statistics():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(4, in_units=3), gluon.nn.BatchNorm(in_channels=4))
    net.initialize()
    return net, Trainer(net.collect_params(), "sgd", {"momentum": 0.9, "learning_rate": 0.1}, loss_scale=8)


X = mx.nd.array(np.random.RandomState(0).rand(8, 3))


def forward(net, trainer, x):
    with autograd.record():
        loss = (net(x) ** 2).mean()
    run_backward(trainer, loss)


def test_a_net_cast_after_training_began_changes_nothing_in_the_step():
    """The check of states comes before any update: the parameters that could go on do not."""
    net, trainer = net_with_statistics()
    forward(net, trainer, X)
    assert trainer.step(2)
    convert(net, "O2")
    weights = [p.data() for p in net.collect_params().values() if p.grad_req != "null"]
    before = freeze(weights)
    forward(net, trainer, X)
    with pytest.raises(TrainerError, match="changed its dtype after its optimizer state was made"):
        trainer.step(2)
    assert trainer.optimizer.num_update == 1 and freeze(weights) == before


@pytest.mark.parametrize("bad", ["gradient", "loss", "loss, clipped", "neither"])
def test_running_statistics_outlive_a_forward_pass_that_overflows(bad, caplog):
    """An activation beyond float16 makes them NaN; every later average would be NaN too.

    In a step that is taken another pass may have done so, as a generator's through the discriminator.
    """
    net, trainer = net_with_statistics()
    forward(net, trainer, X)
    assert trainer.step(1)
    statistics = [net[1].running_mean.data(), net[1].running_var.data()]
    before = freeze(statistics)
    forward(net, trainer, X * np.inf if "loss" in bad else X)
    if "loss" in bad:
        with pytest.raises(NonFiniteLossError):
            trainer.clip_global_norm(1.0) if "clipped" in bad else trainer.step(1)
    else:
        for array in statistics:
            array[:] = np.nan
        if bad == "gradient":
            net[0].weight.grad()[:] = np.inf
        assert trainer.step(1) is (bad == "neither")
        assert [record.levelname for record in caplog.records] == ["WARNING"]  # of them alone, none of a skip
    assert freeze(statistics) == before
    forward(net, trainer, X)
    assert trainer.step(1)


# The optimizer and its options.


def test_the_users_optimizer_is_the_trainers_and_masters_can_be_turned_off():
    inner, wrapped = mx.optimizer.SGD(), MultiPrecision(mx.optimizer.SGD(), masters=False)
    for optimizer in (inner, "sgd"):
        trainer = Trainer([param([1.0])], optimizer, {"multi_precision": False})
        assert type(trainer.optimizer) is mx.optimizer.SGD and not trainer.multi_precision
        assert optimizer == "sgd" or trainer.optimizer is inner
    trainer = Trainer([param([1.0])], wrapped)
    assert trainer.optimizer is wrapped.inner and not trainer.multi_precision
    assert Trainer([param([1.0])], mx.optimizer.SGD()).multi_precision


def test_a_trainer_takes_the_scale_of_keras_optimizer_and_does_not_spend_one_if_it_is_refused():
    w = param([1.0])
    optimizer = LossScaleOptimizer(mx.optimizer.SGD(learning_rate=1.0), initial_scale=8, dynamic_growth_steps=2)
    with pytest.raises(TrainerError, match="update_on_kvstore=True"):
        Trainer([param([1.0], ctx=TWO)], optimizer, update_on_kvstore=True)
    trainer = Trainer([w], optimizer)
    assert [run(trainer, w, 0.25, bad) for bad in (np.inf, None, None)] == [False, True, True]
    assert value(w.data()) == 0.5
    assert trainer.loss_scale.value == 8 and trainer.skipped_steps == 1


def test_environment_cannot_move_updates_to_the_kvstore(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")
    w, trainer = trained(param([1.0], ctx=TWO))
    assert not run(trainer, w, 1, np.inf) and value(w.data(TWO[0])) == 1


def test_contexts_that_will_drift_apart_are_logged(caplog):
    sgd(param([1.0], ctx=TWO), kvstore="device")
    assert not caplog.records
    sgd(param([1.0], ctx=TWO), kvstore=None)
    assert "kvstore=None with 2 contexts: their gradients are not summed" in caplog.text


# Trainers of MXNet, and derived ones.


@pytest.mark.parametrize("contexts, kvstore", [(1, "device"), (2, "local"), (2, None)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
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
            run(trainer, w, x)
    assert freeze(weights[0].list_data()) == freeze(weights[1].list_data())
    assert adopted.optimizer.num_update == plain.optimizer.num_update == 6


def test_a_trainer_whose_workers_are_set_up_is_not_adopted():
    w = param([1.0])
    plain = gluon.Trainer([w], "sgd", kvstore=KVStore(Twins()), update_on_kvstore=False)
    run(plain, w)
    with pytest.raises(TrainerError, match="kvstore 'dist_sync' of this trainer is set up already; adopt the trainer"):
        Trainer.adopt(plain, 8)
    assert type(plain) is gluon.Trainer


def test_a_trainer_that_has_updated_low_precision_weights_is_not_adopted():
    w = param([1.0], "float16")
    plain = gluon.Trainer([w], "sgd", {"multi_precision": True})
    run(plain, w)
    with pytest.raises(TrainerError, match="'w' is stored in float16, .*; set the trainer up before its first step"):
        Trainer.adopt(plain, 8)


class _Derived(Trainer):
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
    assert run(trainer, w) and trainer._step == 0
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
    assert [run(trainer, w, bad=bad) for bad in (None, np.nan, None)] == [True, False, True]
    handle.detach()
    assert run(trainer, w) and value(w.data()) == -1
    assert calls == [(True, 0, 8), (False, 1, 16), (True, 1, 16)]


def test_hooks_are_called_by_update_too():
    w, calls = param([1.0], ctx=TWO), []
    trainer = sgd(w, 8)
    trainer.register_step_hook(lambda t, updated: calls.append(updated))
    backward_everywhere(trainer, w, [1, 1])
    trainer.allreduce_grads()
    trainer.update(1)
    assert calls == [True]


# Parameters that are added.


def adam(params, **options):
    return Trainer(params, "adam", {"learning_rate": 0.1}, loss_scale=8, **options)


def steps(trainer, params, numbers):
    assert all(run(trainer, params, np.sin(np.arange(3) + number)) for number in numbers)


@pytest.mark.behaviour("added parameters")
@pytest.mark.parametrize("dtype, kvstore", list(zip(DTYPES, KVSTORES)))
@pytest.mark.parametrize("before", [0, 3], ids=["before the first step", "later"])
def test_an_added_parameter_trains_like_one_of_a_new_trainer_and_is_saved(before, dtype, kvstore, tmp_path):
    old, new, alone = (param([1.0, 2.0, 3.0], dtype, ctx=TWO, name=name) for name in ("old", "new", "alone"))
    new.lr_mult = alone.lr_mult = 0.5
    trainer, other = adam([old], kvstore=kvstore), adam([alone], kvstore=kvstore)
    steps(trainer, [old], range(before))
    trainer.add_params({"new": new})
    steps(trainer, [old, new], range(before, before + 3))
    steps(other, [alone], range(before, before + 3))
    assert freeze(new.list_data()) == freeze(alone.list_data()) and trainer.optimizer.num_update == before + 3
    both = [param(value(p.data(TWO[0])), dtype, ctx=TWO, name=p.name) for p in (old, new)]
    both[1].lr_mult = 0.5
    resumed = adam(both, kvstore=kvstore)
    trainer.save_states(str(tmp_path / "states"))
    resumed.load_states(str(tmp_path / "states"))
    steps(trainer, [old, new], [6])
    steps(resumed, both, [6])
    assert freeze([p.list_data() for p in both]) == freeze([p.list_data() for p in (old, new)])


@pytest.mark.parametrize("container", [lambda net: net, lambda net: net.collect_params()], ids=["net", "its parameters"])
def test_a_net_may_be_added(container):
    net = mx.gluon.nn.Dense(2, in_units=3, prefix="more_")
    net.initialize()
    trainer = sgd(param([1.0], name="old"), 8)
    trainer.add_params(container(net))
    assert [p.name for p in trainer._params] == ["old", "more_weight", "more_bias"]


def test_weights_that_are_added_are_compared_with_their_masters_again():
    old, new = (param([1.0], "float16", name=name) for name in ("old", "new"))
    trainer = sgd(old, 8)
    assert all(run(trainer, old, 0) for _ in range(11))
    trainer.add_params([new])
    assert run(trainer, [old, new], 0)
    new.data()[:] = 5
    with pytest.raises(TrainerError, match="parameter 'new' .* written to past its float32 master"):
        run(trainer, [old, new], 0)


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


@pytest.mark.behaviour("a scale that is none")
@pytest.mark.parametrize("spec", ["statisch", 0, -1, np.nan])
def test_a_wrong_loss_scale_is_refused(spec):
    with pytest.raises(LossScaleError):
        sgd(param([1.0]), spec)


def test_a_trainer_notices_new_contexts():
    w, trainer = trained(param([1.0]), 8)
    w.reset_ctx(TWO)
    with pytest.raises(TrainerError, match="the trainer was made for 1 of them; make the trainer anew after reset_ctx"):
        run(trainer, w)


def test_without_a_kvstore_each_context_has_masters_of_its_own():
    w, trainer = trained(param([0.5, -1.25], "float16", ctx=TWO), 8, lr=2.0**-14, kvstore=None)
    for _ in range(20):
        backward_everywhere(trainer, w, (1, 2))
        assert trainer.step(1)
    for array, gradient in zip(w.list_data(), (1, 2)):
        np.testing.assert_array_equal(array.asnumpy(), np.float16(np.array([0.5, -1.25]) - 20 * gradient * 2.0**-14))


@pytest.mark.parametrize("error", [TrainerError, TypeError])
@pytest.mark.parametrize("option, text", [({"multi_precision": False}, "False"), ({"learning_rate": 0.5}, "0.5")])
def test_an_option_of_the_optimizer_among_the_trainers_arguments_is_told_where_it_belongs(option, text, error):
    (name,) = option
    text = f"unknown argument '{name}'; .* go into optimizer_params: Trainer\\(params, 'sgd', {{'{name}': {text}}}\\)"
    with pytest.raises(error, match=text):
        Trainer([param([1.0])], "sgd", **option)


class Interrupted(mx.optimizer.Optimizer):
    """Subtracts gradients; its first update is interrupted behind the first weight."""

    is_cut = False

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        weight -= self.rescale_grad * grad
        if not self.is_cut:
            self.is_cut = True
            raise KeyboardInterrupt


OWNERS = {
    "a trainer": lambda params, optimizer: Trainer(params, optimizer, loss_scale=64),
    "a trainer of MXNet": lambda params, optimizer: gluon.Trainer(params, MultiPrecision(optimizer)),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("dtype", LOW)
def test_states_can_be_saved_and_training_goes_on_after_an_update_that_is_interrupted(dtype, owner, tmp_path):
    params = [param([1.0, 2.0], dtype, name=name) for name in "ab"]
    trainer = OWNERS[owner](params, Interrupted())
    backward(trainer, params, 0.25)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(1)
    assert trainer.optimizer.rescale_grad == 1
    trainer.save_states(str(tmp_path / "states"))
    before = [exact_value(w).asnumpy() for w in params]
    assert before[0].tolist() == [0.75, 1.75]
    run(trainer, params, 0.5)
    for w, exact in zip(params, before):
        np.testing.assert_array_equal(exact_value(w).asnumpy(), exact - np.float32(0.5))


# ---------------------------------------------------------------------- kvstores


def sparse():
    return param(np.ones((3, 2)), stype="row_sparse", grad_stype="row_sparse")


ON_KVSTORE = {"update_on_kvstore": True}
UNCHECKED = " updates weights inside the all-reduce, before .*: {}; or train float32 parameters with mx.gluon.Trainer"
SPARSE = "parameter 'w' is row_sparse, so that its kvstore" + UNCHECKED.format("make it with stype='default'.*")
CHOSEN = "update_on_kvstore=True" + UNCHECKED.format("leave update_on_kvstore out")
ASYNCHRONOUS = "kvstore 'dist_async'" + UNCHECKED.format("take a synchronous kvstore")
REFUSED = {
    "a dynamic scale": (TWO, ON_KVSTORE, CHOSEN),
    "a static scale": (TWO, {**ON_KVSTORE, "loss_scale": 8}, CHOSEN),
    "no scale": (TWO, {**ON_KVSTORE, "loss_scale": None}, CHOSEN),
    "asynchronous": (None, {"kvstore": "dist_async"}, ASYNCHRONOUS),
    "asynchronous, no scale": (None, {"kvstore": "dist_async", "loss_scale": None}, ASYNCHRONOUS),
    "row_sparse": (sparse, {}, SPARSE),
    "row_sparse, no scale": (sparse, {"loss_scale": None}, SPARSE),
}


@pytest.mark.parametrize("where, options, message", REFUSED.values(), ids=REFUSED)
def test_a_trainer_is_refused_and_leaves_parameters_alone(where, options, message):
    w = where() if callable(where) else param([1.0], ctx=where)
    with pytest.raises(TrainerError, match=message):
        Trainer([w], **{"optimizer": "sgd", **options})
    assert w._trainer is None


class Exact(Second):
    """The second worker of one whose float32 value float16 has not."""

    def broadcast(self, key, array):
        super().broadcast(key, array)
        array[:] = 5 + 2.0**-12


def test_a_worker_without_masters_keeps_worker_0s():
    """Or weights that round alike would go different ways."""
    w, trainer = trained(param([1.0], "float16"), 1.0, kvstore=KVStore(Exact()))
    assert run(trainer, w, 0) and value(w.data()) == 5
    assert next(trainer.master_params()).asscalar() == 5 + 2.0**-12
