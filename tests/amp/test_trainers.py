"""init_trainer, scale_loss and unscale: plain trainers that become mxmp's."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from mxmp.errors import LossScaleError, TrainerError
from tests.amp.scenarios import TWO, backward, param, values


def plain(params, name="sgd", options=None, **kwargs):
    params = [params] if isinstance(params, gluon.Parameter) else params
    return gluon.Trainer(params, name, {"learning_rate": 1.0} if options is None else options, **kwargs)


@pytest.fixture(autouse=True)
def initialized():
    amp.init()
    yield
    amp.disable()


def test_only_this_one_trainer_changes():
    methods = dict(vars(gluon.Trainer))
    first, second = plain(param()), plain(param())
    amp.init_trainer(first)
    assert dict(vars(gluon.Trainer)) == methods
    assert type(first) is mxmp.gluon.Trainer and type(second) is gluon.Trainer


def test_a_trainer_made_before_init():
    amp.disable()
    w = param()
    trainer = plain(w)
    amp.init()
    amp.init_trainer(trainer)
    assert backward(amp, trainer, lambda: w.data() * 0.5) == 256
    assert trainer.step(1) and values(w) == [0.5]


def test_learning_rate_schedule_and_rescale_are_kept():
    w = param()
    schedule = mx.lr_scheduler.FactorScheduler(1, factor=0.5, base_lr=0.5)
    trainer = plain(w, "sgd", {"lr_scheduler": schedule, "rescale_grad": 0.25})
    amp.init_trainer(trainer)
    for _ in range(2):
        backward(amp, trainer, lambda: w.data() * 1.0)
        trainer.step(1)
    assert values(w) == [1 - 0.25 * 0.5 - 0.25 * 0.25]


def test_a_trainer_whose_kvstore_was_set_up_but_made_no_step():
    w = param(ctx=TWO)
    trainer = plain(w, update_on_kvstore=False)
    trainer._init_kvstore()
    amp.init_trainer(trainer)
    backward(amp, trainer, lambda: [w.data(ctx) * 0.125 for ctx in TWO])
    assert trainer.step(1) and values(w) == [0.75, 0.75]


def test_initializing_again_sets_the_loss_scale():
    trainer = plain(param())
    amp.init_trainer(trainer)
    amp.init_trainer(trainer, loss_scale=128)
    assert trainer.loss_scale.value == 128


class _Reducing(gluon.Trainer):
    """A trainer that reduces gradients in its own way."""

    calls = 0

    def _allreduce_grads(self):
        self.calls += 1
        super()._allreduce_grads()


class _Stepping(gluon.Trainer):
    """A trainer with a step of its own."""

    def step(self, batch_size, ignore_stale_grad=False):
        raise NotImplementedError


def test_a_derived_trainer_keeps_its_methods():
    w = param()
    trainer = _Reducing([w], "sgd", {"learning_rate": 1.0})
    amp.init_trainer(trainer)
    assert isinstance(trainer, _Reducing) and isinstance(trainer, mxmp.gluon.Trainer)
    backward(amp, trainer, lambda: w.data() * 0.5)
    assert trainer.step(1) and values(w) == [0.5] and trainer.calls == 1


def _after_a_step_in_float16():
    w = param(dtype="float16")
    trainer = plain(w, options={"multi_precision": True}, update_on_kvstore=False)
    with autograd.record():
        loss = w.data() * 1.0
    loss.backward()
    trainer.step(1)
    return trainer


def _with_kvstore_update():
    trainer = plain(param(ctx=TWO), update_on_kvstore=None)
    trainer._init_kvstore()
    assert trainer._update_on_kvstore
    return trainer


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: plain(param(), update_on_kvstore=True), "update_on_kvstore=True updates weights inside"),
        (_with_kvstore_update, "set up already and updates weights by itself"),
        (_after_a_step_in_float16, "has made a step or loaded states, and parameter .* is stored in float16"),
        (lambda: _Stepping([param()], "sgd"), "_Stepping has a method step of its own"),
        (lambda: mx.optimizer.SGD(), "expected a gluon Trainer, found a SGD"),
        (lambda: None, "expected a gluon Trainer, found a NoneType"),
    ],
)
def test_trainers_that_cannot_be_initialized_are_left_alone(make, message):
    trainer = make()
    before = type(trainer), dict(vars(trainer)) if hasattr(trainer, "__dict__") else None
    with pytest.raises(TrainerError, match=message):
        amp.init_trainer(trainer)
    assert (type(trainer), dict(vars(trainer)) if hasattr(trainer, "__dict__") else None) == before


def test_a_bad_loss_scale_leaves_the_trainer_alone():
    trainer = plain(param())
    with pytest.raises(LossScaleError, match="unknown loss scale 'dinamic'"):
        amp.init_trainer(trainer, "dinamic")
    assert type(trainer) is gluon.Trainer


def test_init_has_to_come_first():
    amp.disable()
    with pytest.raises(amp.AmpError, match="amp.init was not called"):
        amp.init_trainer(plain(param()))


@pytest.mark.parametrize("call", ["scale_loss", "unscale"])
def test_trainers_that_were_not_initialized(call):
    trainer, loss = plain(param()), mx.nd.ones(1)
    run = {"unscale": lambda t: amp.unscale(t), "scale_loss": lambda t: amp.scale_loss(loss, t).__enter__()}[call]
    with pytest.raises(TrainerError, match=f"{call}: the trainer was not initialized; call amp.init_trainer"):
        run(trainer)
    with pytest.raises(TrainerError, match=f"{call}: expected a gluon Trainer, found a float"):
        run(1.0)


def test_no_trainer_at_all():
    with pytest.raises(TrainerError, match="the list of trainers is empty"), amp.scale_loss(mx.nd.ones(1), []):
        pass
