"""Trainers of MXNet that become mxmp's, and hooks after steps."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.distributed import KVStore
from mxmp.errors import TrainerError
from mxmp.gluon import Trainer
from mxmp.optimizer import LossScaleOptimizer
from tests.distributed.engines import Twins
from tests.gluon.trainer_tools import KVSTORES, TWO, backward, loss_of, param, sgd, value


def plain_step(trainer, w, x, contexts):
    for ctx in contexts:
        with autograd.record():
            loss_of(w, x, ctx).backward()
    trainer.step(2)


@pytest.mark.parametrize("kvstore", KVSTORES)
@pytest.mark.parametrize("contexts", [TWO[:1], TWO], ids=["one", "two"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb"])
def test_a_trainer_is_adopted_in_mid_training_with_its_states(optimizer, contexts, kvstore):
    weights = [param([1.0, -2.0, 3.0], ctx=contexts) for _ in range(2)]
    plain, adopted = (
        gluon.Trainer([w], optimizer, {"learning_rate": 0.1}, kvstore, update_on_kvstore=False) for w in weights
    )
    for number in range(6):
        x = np.sin(np.arange(3) + number)
        plain_step(plain, weights[0], x, contexts)
        if number == 3:
            assert Trainer.adopt(adopted, 64) is adopted
        if number < 3:
            plain_step(adopted, weights[1], x, contexts)
        else:
            for ctx in contexts:
                backward(adopted, weights[1], x, ctx)
            assert adopted.step(2)
    for ctx in contexts:
        np.testing.assert_array_equal(value(weights[1].data(ctx)), value(weights[0].data(ctx)))
    assert adopted.optimizer.num_update == plain.optimizer.num_update == 6


def test_hooks_are_called_after_every_step():
    w, calls = param([1.0]), []
    trainer = sgd(w, mxmp.loss_scale.DynamicLossScale(init_scale=8))
    handle = trainer.register_step_hook(lambda t, updated: calls.append((updated, t.skipped_steps, t.loss_scale.value)))
    for bad in (False, True, False):
        backward(trainer, w, 1)
        if bad:
            w.grad()[:] = np.nan
        trainer.step(1)
    assert calls == [(True, 0, 8), (False, 1, 4), (True, 1, 4)]
    handle.detach()
    backward(trainer, w, 1)
    trainer.step(1)
    assert len(calls) == 3


@pytest.mark.parametrize("run", ["update", "kvstore"])
def test_hooks_are_called_however_a_step_is_made(run):
    w, calls = param([1.0], ctx=TWO), []
    trainer = sgd(w, 8, update_on_kvstore=run == "kvstore")
    trainer.register_step_hook(lambda t, updated: calls.append(updated))
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    if run == "update":
        trainer.allreduce_grads()
        trainer.update(1)
    else:
        trainer.step(1)
    assert calls == [True]


def test_a_hook_may_change_the_learning_rate_and_the_scale():
    w = param([1.0])
    trainer = sgd(w, 8)

    def hook(t, updated):
        t.set_learning_rate(0.5)
        t.loss_scale = 16

    trainer.register_step_hook(hook)
    for expected in (0.0, -0.5):
        backward(trainer, w, 1)
        trainer.step(1)
        assert value(w.data()) == expected
    assert trainer.loss_scale.value == 16


def test_what_is_no_trainer_is_refused():
    with pytest.raises(TrainerError, match="expected a gluon Trainer, found a Module; for a Module use"):
        Trainer.adopt(mx.mod.Module(mx.sym.var("data"), label_names=None))


def test_a_trainer_takes_the_scale_of_keras_optimizer():
    w = param([1.0])
    optimizer = LossScaleOptimizer(mx.optimizer.SGD(learning_rate=1.0), initial_scale=8, dynamic_growth_steps=2)
    trainer = Trainer([w], optimizer)
    for bad in (True, False, False):
        backward(trainer, w, 0.25)
        if bad:
            w.grad()[:] = np.inf
        trainer.step(1)
    assert value(w.data()) == 0.5 and trainer.loss_scale.value == 8 and trainer.skipped_steps == 1


def test_a_refused_trainer_does_not_spend_keras_optimizer():
    optimizer = LossScaleOptimizer(mx.optimizer.SGD())
    with pytest.raises(TrainerError, match="update_on_kvstore=True"):
        Trainer([param([1.0], ctx=TWO)], optimizer, update_on_kvstore=True)
    Trainer([param([1.0])], optimizer)


def test_two_loss_scales_are_refused():
    with pytest.raises(TrainerError, match="loss_scale=128, but the LossScaleOptimizer has one"):
        Trainer([param([1.0])], LossScaleOptimizer(mx.optimizer.SGD()), loss_scale=128)


def test_a_trainer_whose_kvstore_updates_is_not_adopted():
    w = param([1.0], ctx=TWO)
    plain = gluon.Trainer([w], "sgd")
    plain_step(plain, w, 1, TWO)
    with pytest.raises(TrainerError, match="set up already and updates weights by itself"):
        Trainer.adopt(plain, None)
    assert type(plain) is gluon.Trainer


def test_a_trainer_whose_workers_are_set_up_is_not_adopted():
    w = param([1.0])
    plain = gluon.Trainer([w], "sgd", kvstore=KVStore(Twins()), update_on_kvstore=False)
    plain_step(plain, w, 1, [mx.cpu()])
    with pytest.raises(TrainerError, match="kvstore 'dist_sync' of this trainer is set up already; adopt the trainer"):
        Trainer.adopt(plain, 8)
    assert type(plain) is gluon.Trainer


@pytest.mark.parametrize("hook", [None, 3])
def test_a_hook_must_be_a_function(hook):
    with pytest.raises(TrainerError, match="register_step_hook: .* is no function"):
        sgd(param([1.0])).register_step_hook(hook)


def test_update_alone_is_refused_where_gradients_must_be_reduced():
    w = param([0.0], ctx=TWO)
    trainer = sgd(w, 8)
    for x, ctx in zip((1, 5), TWO):
        backward(trainer, w, x, ctx)
    with pytest.raises(TrainerError, match="update came before allreduce_grads"):
        trainer.update(1)
    assert trainer.step(1) and value(w.data(TWO[0])) == -6


def test_a_trainer_notices_new_contexts():
    w = param([1.0])
    trainer = sgd(w, 8)
    w.reset_ctx(TWO)
    for ctx in TWO:
        backward(trainer, w, 1, ctx)
    with pytest.raises(TrainerError, match="the trainer was made for 1 of them; make the trainer anew after reset_ctx"):
        trainer.step(1)


def test_further_trainers_must_be_of_mxmp():
    w = param([1.0])
    with pytest.raises(TrainerError, match="scale_loss: expected further trainers of mxmp, found a Trainer of mxnet"):
        with sgd(w).scale_loss(mx.nd.ones((1,)), gluon.Trainer([param([1.0])], "sgd")):
            pass


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([], "sgd"), "there are no parameters to train"),
        (({}, "sgd"), "there are no parameters to train"),
        ((gluon.nn.HybridSequential().collect_params(), "sgd"), "there are no parameters to train"),
        (([param([1.0])], None), "optimizer is None; expected a name or an mx.optimizer.Optimizer"),
        (([param([1.0])], "sgd", None, 5), "kvstore is 5; expected a name, a KVStore or None"),
        (([param([1.0])], "sgd", None, "devcie"), "unknown kvstore 'devcie'; .*device"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(TrainerError, match=message):
        Trainer(*arguments)


def test_contexts_that_will_drift_apart_are_logged(caplog):
    sgd(param([1.0], ctx=TWO), kvstore="device")
    assert not caplog.records
    sgd(param([1.0], ctx=TWO), kvstore=None)
    assert "kvstore=None with 2 contexts: their gradients are not summed" in caplog.text


class _Derived(mxmp.gluon.Trainer):
    """A trainer of a user's, with hooks and names of his own."""

    def __init__(self, *args, **kwargs):
        self.calls, self._step = [], 0
        super().__init__(*args, **kwargs)

    def _init_kvstore(self):
        self.calls.append("kvstore")
        super()._init_kvstore()

    def _init_params(self):
        self.calls.append("params")
        super()._init_params()

    def _allreduce_grads(self):
        self.calls.append("reduce")
        super()._allreduce_grads()


def test_hooks_of_a_derived_trainer_are_called_and_its_names_are_its_own():
    w = param([1.0], ctx=TWO)
    trainer = _Derived([w], "sgd", {"learning_rate": 1.0}, loss_scale=8)
    for ctx in TWO:
        backward(trainer, w, [0.5], ctx)
    assert trainer.step(1) and trainer._step == 0
    assert trainer.calls == ["kvstore", "params", "reduce"]
