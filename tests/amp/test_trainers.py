"""init_trainer, scale_loss and unscale: plain trainers that become mxmp's."""

from __future__ import annotations

import logging

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


def test_a_loss_id_needs_num_losses():
    w = param()
    trainer = plain(w)
    amp.init_trainer(trainer)
    with pytest.raises(TrainerError, match="loss_id=1: the trainer has losses 0 to 0; num_losses says how many"):
        with amp.scale_loss(mx.nd.ones(1), trainer, loss_id=1):
            pass


HUGE = 1e35


def two_losses(init_scale=2.0**16, count=2, **kwargs):
    w = param(**kwargs)
    trainer = plain(w)
    mxmp.gluon.Trainer.adopt(trainer, mxmp.loss_scale.DynamicLossScale(init_scale=init_scale, growth_interval=2), num_losses=count)
    return w, trainer


def learn(trainer, w, loss_id, slope):
    with autograd.record():
        loss = w.data() * slope
    with amp.scale_loss(loss, trainer, loss_id=loss_id) as scaled:
        scaled.backward()
    return float(scaled.asscalar() / loss.asscalar())


def scales(trainer):
    return [scale["value"] for scale in states_of_scales(trainer)]


def states_of_scales(trainer):
    return amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]


@pytest.mark.behaviour("a scale per loss")
def test_losses_in_turn_have_scales_of_their_own():
    w, trainer = two_losses()
    for loss_id, slope, stepped in ((0, HUGE, False), (1, 0.25, True), (0, 0.25, True), (0, 0.25, True)):
        learn(trainer, w, loss_id, slope)
        assert trainer.step(1) is stepped
    assert values(w) == [0.25]
    assert scales(trainer) == [2.0**16, 2.0**16]  # the first went down, and up again after two steps
    learn(trainer, w, 1, 0.25)
    trainer.step(1)
    assert scales(trainer) == [2.0**16, 2.0**17]


def test_losses_of_one_step_add_up_at_different_scales():
    w, trainer = two_losses(grad_req="add")
    learn(trainer, w, 0, HUGE)
    trainer.step(1)
    w.zero_grad()
    used = [learn(trainer, w, loss_id, slope) for loss_id, slope in ((0, 0.25), (1, 0.125), (0, 0.5))]
    assert used == [2.0**15, 2.0**16, 2.0**15]
    amp.unscale(trainer)
    assert w.grad().asscalar() == 0.875
    assert trainer.step(1) and values(w) == [0.125]


@pytest.mark.behaviour("a scale per loss")
def test_the_loss_that_overflows_backs_off():
    w, trainer = two_losses(count=3, grad_req="add")
    for loss_id, slope in ((0, 0.25), (2, HUGE), (1, 0.25)):
        learn(trainer, w, loss_id, slope)
    assert not trainer.step(1) and values(w) == [1.0]
    assert scales(trainer) == [2.0**16, 2.0**16, 2.0**15]
    assert [scale["growth_tracker"] for scale in states_of_scales(trainer)] == [
        1,
        0,
        0,
    ]  # one that cannot be judged stays


def test_the_log_tells_the_scale_of_the_loss_that_overflows(caplog):
    w, trainer = two_losses(grad_req="add")
    for _ in range(2):
        learn(trainer, w, 1, 0.25)
        trainer.step(1)
        w.zero_grad()
    learn(trainer, w, 0, HUGE)
    learn(trainer, w, 1, 0.25)
    with caplog.at_level(logging.INFO, logger="mxmp"):
        assert not trainer.step(1)
    assert "DynamicLossScale 65536 -> 32768;" in caplog.text


def test_a_loss_that_fails_midway_leaves_the_window():
    w, trainer = two_losses(grad_req="add")
    learn(trainer, w, 0, 0.25)
    with pytest.raises(KeyError), amp.scale_loss(mx.nd.ones(1), trainer, loss_id=1):
        raise KeyError
    assert trainer.step(1) and values(w) == [0.75]


@pytest.mark.parametrize("loss_id", [2, -1, "0", None, True])
def test_unknown_losses(loss_id):
    _, trainer = two_losses()
    with pytest.raises(TrainerError, match="the trainer has losses 0 to 1"):
        with amp.scale_loss(mx.nd.ones(1), trainer, loss_id=loss_id):
            pass


def test_states_of_several_losses(tmp_path):
    w, trainer = two_losses()
    learn(trainer, w, 1, HUGE)
    trainer.step(1)
    trainer.save_states(str(tmp_path / "states"))
    resumed = two_losses()[1]
    resumed.load_states(str(tmp_path / "states"))
    assert scales(resumed) == [2.0**16, 2.0**15]
    three = two_losses(count=3)[1]
    with pytest.raises(mxmp.errors.StateError, match=r"the state is of 2 losses; expected 3 \(num_losses\)"):
        three.load_states(str(tmp_path / "states"))


def test_setting_the_loss_scale_sets_that_of_all_losses():
    trainer = plain(param())
    mxmp.gluon.Trainer.adopt(trainer, "dynamic", num_losses=3)
    trainer.loss_scale = 64
    assert scales(trainer) == [64, 64, 64]


def test_a_shared_scale_is_for_one_loss():
    trainer = plain(param())
    with pytest.raises(TrainerError, match="a SharedLossScale is for trainers with one loss"):
        mxmp.gluon.Trainer.adopt(trainer, mxmp.gluon.SharedLossScale(8), num_losses=2)
    assert type(trainer) is gluon.Trainer
