from __future__ import annotations

import math
from collections import namedtuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.dtypes import to_numpy
from mxmp.errors import TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import LOW, backward, loss_of, param, sgd, value


@pytest.mark.parametrize("inside", [True, False], ids=["inside record", "outside record"])
@pytest.mark.parametrize("run", [lambda s: s.backward(), autograd.backward], ids=["method", "function"])
def test_scale_loss_works_inside_and_outside_of_record(inside, run):
    w = param([1.0])
    trainer = sgd(w, 8)
    with autograd.record():
        loss = loss_of(w, 3)
        if inside:
            with trainer.scale_loss(loss) as scaled:
                run(scaled)
    if not inside:
        with trainer.scale_loss(loss) as scaled:
            run(scaled)
    assert w.data().grad.asscalar() == 24
    assert scaled.asscalar() == 24
    assert not autograd.is_recording()


def test_scale_loss_keeps_the_mode_of_the_block():
    w = param([1.0])
    trainer = sgd(w)
    with autograd.record(train_mode=False):
        with trainer.scale_loss(loss_of(w, 1)) as scaled:
            assert autograd.is_recording() and not autograd.is_training()
            scaled.backward()
    with trainer.scale_loss(mx.nd.ones((1,))):
        assert not autograd.is_recording() and not autograd.is_training()


Pair = namedtuple("Pair", "left right")


@pytest.mark.behaviour("nested losses")
@pytest.mark.parametrize(
    "build",
    [lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: [a, (b, [a])], lambda a, b: Pair(a, [b]), lambda a, b: []],
    ids=["list", "tuple", "nested", "namedtuple", "empty"],
)
def test_scale_loss_keeps_containers(build):
    def numbers(tree):
        if isinstance(tree, (list, tuple)):
            return type(tree), [numbers(item) for item in tree]
        return tree.asscalar()

    one, two = mx.nd.array([1.0]), mx.nd.array([2.0])
    with sgd(param([1.0]), 4).scale_loss(build(one, two)) as scaled:
        assert numbers(scaled) == numbers(build(one * 4, two * 4))


@pytest.mark.parametrize("dtype", LOW)
def test_a_low_precision_loss_is_scaled_in_float32(dtype):
    w = param([3.0], dtype)
    trainer = sgd(w, 2.0**15)
    with autograd.record():
        loss = w.data() * 1
    assert loss.dtype == to_numpy(dtype)
    with trainer.scale_loss(loss) as scaled:
        assert scaled.dtype == np.float32
        assert scaled.asscalar() == 3 * 2.0**15
        scaled.backward()
    assert trainer.step(1)
    assert value(w.data()) == [2.0]


def test_a_float16_loss_costs_one_skip_at_65536():
    w = param([3.0], "float16")
    trainer = sgd(w, DynamicLossScale(init_scale=2.0**16))
    outcomes = []
    for _ in range(2):
        with autograd.record(), trainer.scale_loss(w.data() * 1) as scaled:
            assert scaled.asscalar() == 3 * trainer.loss_scale.value  # finite: 196608
            scaled.backward()
        outcomes.append(trainer.step(1))
    assert outcomes == [False, True]


def test_a_float16_loss_costs_nothing_by_default():
    w = param([3.0], "float16")
    trainer = sgd(w, lr=0.0)
    for _ in range(10):
        with autograd.record(), trainer.scale_loss(w.data() * 1) as scaled:
            scaled.backward()
        assert trainer.step(1)
    assert trainer.loss_scale.value == 2.0**15


def test_several_losses_of_one_window_add_up():
    w = param([0.0], grad_req="add")
    trainer = sgd(w)
    with autograd.record(), trainer.scale_loss([loss_of(w, 1), loss_of(w, 2)]) as scaled:
        for one in scaled:
            one.backward()
    trainer.step(1)
    assert w.data().asscalar() == -3


@pytest.mark.behaviour("gradient penalty")
def test_gradient_penalty():
    w = param([0.0])
    trainer = sgd(w)
    with autograd.record():
        loss = mx.nd.exp(w.data())  # few operators of MXNet have a second derivative, none with `* scale`
        head = mx.nd.array([trainer.loss_scale.value])
        (grad,) = autograd.grad(loss, [w.data()], head_grads=[head], create_graph=True, retain_graph=True)
        penalty = mx.nd.exp(trainer.loss_scale.unscale(grad))
        total = loss + penalty  # exp(w) + exp(exp(w))
    with trainer.scale_loss(total) as scaled:
        scaled.backward()
    assert trainer.step(1)
    assert w.data().asscalar() == pytest.approx(-(1 + math.e), rel=1e-6)


def test_an_exception_in_the_block_puts_the_state_back():
    w = param([1.0])
    trainer = sgd(w, 8)
    with pytest.raises(KeyError):
        with trainer.scale_loss(mx.nd.array([np.nan])):
            raise KeyError
    with pytest.raises(TrainerError, match="was not scaled|no parameter has a gradient"):
        trainer.step(1)  # READY again
    backward(trainer, w, 1)  # and the NaN loss is forgotten
    assert trainer.step(1)


def test_an_exception_in_a_second_block_keeps_the_first_window():
    w = param([0.0])
    trainer = sgd(w, 8)
    backward(trainer, w, 1)
    with pytest.raises(KeyError):
        with trainer.scale_loss(mx.nd.array([np.nan])):
            raise KeyError
    assert trainer.step(1)
    assert w.data().asscalar() == -1


def test_one_joint_loss_for_two_trainers():
    a, b = param([0.0], name="a"), param([0.0], "float16", name="b")
    first, second = sgd(a, 2.0**16), sgd(b, 2.0**8)
    with autograd.record(), first.scale_loss(loss_of([a, b], 1), second) as scaled:
        assert scaled.asscalar() == 0
        scaled.backward()
    assert a.data().grad.asscalar() == 2.0**8  # the smaller scale serves both
    assert first.step(1) and second.step(1)
    assert (value(a.data()), value(b.data())) == ([-1], [-1])


@pytest.mark.behaviour("two models")
def test_one_of_two_trainers_can_skip_alone():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = (sgd(each, DynamicLossScale(init_scale=2.0**16)) for each in (a, b))
    with autograd.record(), first.scale_loss(loss_of([a, b], 1), second) as scaled:
        scaled.backward()
    b.grad()[:] = np.inf
    assert first.step(1) is True and second.step(1) is False
    assert (a.data().asscalar(), b.data().asscalar()) == (-1, 0)
    assert (first.loss_scale.value, second.loss_scale.value) == (2.0**16, 2.0**15)


def test_a_trainer_without_a_scale_can_share_a_scaled_loss():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    scaling, plain = sgd(a), sgd(b, None)
    for bad, expected in ((False, -1), (True, -1)):
        with autograd.record(), scaling.scale_loss(loss_of([a, b], 1), plain) as scaled:
            scaled.backward()
        if bad:
            b.grad()[:] = np.inf
        scaling.step(1)
        assert plain.step(1) is not bad
        assert b.data().asscalar() == expected


@pytest.mark.behaviour("two models")
def test_two_models_with_two_losses_in_two_open_blocks():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = sgd(a, 4), sgd(b, 8)
    with autograd.record():
        one, two = loss_of(a, 1), loss_of(b, 1)
    with first.scale_loss(one) as s1, second.scale_loss(two) as s2:
        autograd.backward([s1, s2])
    assert first.step(1) and second.step(1)
    assert (a.data().asscalar(), b.data().asscalar()) == (-1, -1)


def test_scaling_one_loss_by_two_trainers_in_turn_is_refused():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = sgd(a), sgd(b)
    with pytest.raises(TrainerError, match=r"loss\[0\] is scaled by another trainer already.*first.scale_loss"):
        with first.scale_loss(mx.nd.ones((1,))) as scaled:
            with second.scale_loss([scaled]):
                pass
    backward(first, a, 1)
    assert first.step(1)


def test_trainers_at_different_scales_in_mid_window_cannot_join():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = sgd(a, 4), sgd(b, 8)
    backward(first, a, 1)
    backward(second, b, 1)
    with pytest.raises(TrainerError, match=r"wait at different scales \[4.0, 8.0\]; call step"):
        with first.scale_loss(mx.nd.ones((1,)), second):
            pass
    assert first.step(1) and second.step(1)


def test_a_second_trainer_must_be_told_of_a_scaled_loss():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = sgd(a), sgd(b)
    with autograd.record():
        loss = loss_of([a, b], 1)
    with first.scale_loss(loss) as scaled:
        scaled.backward()
    first.step(1)
    with pytest.raises(TrainerError, match="step: the loss of this step was not scaled"):
        second.step(1)
    assert b.data().asscalar() == 0
