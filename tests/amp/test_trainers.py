"""init_trainer, scale_loss and unscale: plain trainers that become mxmp's."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import gluon

import mxmp
from mxmp import amp
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
    """Also if it was made before init; and its loss scale where it is initialized again."""
    methods = dict(vars(gluon.Trainer))
    amp.disable()
    first, second = plain(param()), plain(param())
    amp.init()
    for scale in (128, 64):
        amp.init_trainer(first, loss_scale=scale)
        assert first.loss_scale.value == scale
    assert dict(vars(gluon.Trainer)) == methods
    assert type(first) is mxmp.gluon.Trainer and type(second) is gluon.Trainer


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


class _Reducing(gluon.Trainer):
    """A trainer that reduces gradients in its own way."""

    calls = 0

    def _allreduce_grads(self):
        self.calls += 1
        super()._allreduce_grads()


def test_a_derived_trainer_keeps_its_methods():
    w = param()
    trainer = _Reducing([w], "sgd", {"learning_rate": 1.0})
    amp.init_trainer(trainer)
    assert isinstance(trainer, _Reducing) and isinstance(trainer, mxmp.gluon.Trainer)
    backward(amp, trainer, lambda: w.data() * 0.5)
    assert trainer.step(1) and values(w) == [0.5] and trainer.calls == 1
