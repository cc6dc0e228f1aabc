"""Every optimizer that MXNet registers, through a whole Trainer.

The oracle is ``mx.gluon.Trainer`` on float32 parameters, whose step neither scales nor checks.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.dtypes import to_numpy
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from mxmp.train.masters import MasterState
from tests.gluon.trainer_tools import DTYPES, param, value
from tests.masters.test_optimizer import OPTIMIZERS, make

# Two matrices: GroupAdaGrad takes no vectors.
VALUES = [np.linspace(-1.5, 1.5, 12).reshape(4, 3), np.linspace(0.1, 0.9, 4).reshape(2, 2)]
STEPS = 20
OVERFLOW_AT = 7


def schedule():
    """Return a scheduler that changes its own fields as it is asked."""
    return mx.lr_scheduler.MultiFactorScheduler(step=[3, 11], factor=0.5, base_lr=0.01)


def gradients(seed):
    """Return gradients that float16 and bfloat16 hold exactly, even times 2**14: 7 bits above 2**-9."""
    draw = np.random.RandomState(seed)
    return [draw.randint(-64, 65, np.shape(values)) * 2.0**-9 for values in VALUES]


def backward(trainer, params, grads):
    """Give the parameters exactly these gradients, times the loss scale where the trainer has one."""
    with autograd.record():
        loss = 0
        for p, grad in zip(params, grads):
            loss = loss + (mx.nd.Cast(p.data(), dtype="float32") * mx.nd.array(grad)).sum()
        if isinstance(trainer, Trainer):
            with trainer.scale_loss(loss) as scaled:
                scaled.backward()
        else:
            loss.backward()


def spoil(p):
    """Put an inf into a parameter's gradient, whatever its dtype."""
    p.grad()[-1:] = mx.nd.amp_cast(mx.nd.full(p.grad()[-1:].shape, np.inf), dtype=to_numpy(np.dtype(p.dtype)))


def pair(name, dtype):
    """Return parameters in a dtype with mxmp's trainer, and float32 ones of the same values with MXNet's."""
    params = [param(values, dtype, name=f"p{i}") for i, values in enumerate(VALUES)]
    plain = [param(value(p.data()), name=f"p{i}") for i, p in enumerate(params)]
    # The scale moves within the run: up every fifth step, down once.
    scale = DynamicLossScale(init_scale=2.0**10, growth_interval=5)
    return (params, Trainer(params, make(name, lr_scheduler=schedule()), loss_scale=scale)), (
        plain,
        mx.gluon.Trainer(plain, make(name, lr_scheduler=schedule())),
    )


def round_on_host(values, dtype):
    """Return float32 values rounded to nearest even, by numpy and by integer arithmetic."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_within_a_rounding_of_the_float32_run(name, dtype):
    """The bound: half a unit in the last place of the stored weight, and nothing else.

    Gradients are given, so that no difference between the weights feeds back; they are exact in
    every dtype, and so is scaling by a power of two. The inner optimizer then computes the same
    in float32 on the master as MXNet's on the weight, bit for bit, overflow and all; the weight is
    the master rounded to nearest even, by numpy, and differs by that one rounding.
    """
    (params, trainer), (plain, reference) = pair(name, dtype)
    mx.random.seed(3)  # SGLD draws noise
    for step in range(STEPS):
        if step == OVERFLOW_AT:
            backward(trainer, params, gradients(step))
            spoil(params[1])
            assert not trainer.step(1)
        backward(trainer, params, gradients(step))
        assert trainer.step(1)
    mx.random.seed(3)
    for step in range(STEPS):
        backward(reference, plain, gradients(step))
        reference.step(1)

    assert trainer.loss_scale.value == 2.0**12  # 1 + 3 times up, 1 time down
    for i, (p, exact) in enumerate(zip(params, plain)):
        expected = exact.data().asnumpy()
        assert not np.array_equal(expected, VALUES[i].astype(np.float32))
        if dtype == "float32":
            np.testing.assert_array_equal(p.data().asnumpy(), expected)
        else:
            np.testing.assert_array_equal(trainer._updaters[0].states[i].master.asnumpy(), expected)
            np.testing.assert_array_equal(value(p.data()), round_on_host(expected, dtype))


def freeze(thing):
    """Return all that ``thing`` holds as plain values: bytes of arrays, fields of objects."""
    if isinstance(thing, (mx.nd.NDArray, np.ndarray)):
        array = thing.asnumpy() if isinstance(thing, mx.nd.NDArray) else thing
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(thing, dict):
        return {key: freeze(item) for key, item in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [freeze(item) for item in thing]
    if isinstance(thing, mx.gluon.Parameter):
        return [freeze(array) for array in thing.list_data()]
    if isinstance(thing, (mx.lr_scheduler.LRScheduler, MasterState)):
        return freeze(vars(thing))
    assert thing is None or isinstance(thing, (bool, int, float, str)), type(thing)
    return thing


def everything(trainer, params):
    """Return weights, masters, states and every field of the optimizer and of its scheduler."""
    return freeze([params, [updater.states for updater in trainer._updaters], vars(trainer.optimizer.inner)])


@pytest.mark.behaviour("an infinite step")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_every_bit(name, dtype):
    (params, trainer), _ = pair(name, dtype)
    for step in range(4):  # past the first change of the learning rate
        backward(trainer, params, gradients(step))
        assert trainer.step(2)
    rate = trainer.learning_rate  # first: asking moves MXNet's schedulers
    before = everything(trainer, params)
    mx.random.seed(9)
    for size in (2, 3):  # another batch size, which an update would note in rescale_grad
        backward(trainer, params, gradients(99))
        spoil(params[0])
        assert not trainer.step(size)
    noise = mx.nd.random.uniform().asscalar()
    assert everything(trainer, params) == before
    assert trainer.learning_rate == rate
    mx.random.seed(9)
    assert noise == mx.nd.random.uniform().asscalar()  # nor was noise drawn

    backward(trainer, params, gradients(4))
    assert trainer.step(2)
    assert everything(trainer, params) != before  # a step that is taken does show


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_first_step_makes_no_state(name):
    (params, trainer), _ = pair(name, "float16")
    backward(trainer, params, gradients(0))
    spoil(params[0])
    before = freeze(vars(trainer.optimizer.inner))
    assert not trainer.step(1)
    assert [updater.states for updater in trainer._updaters] == [{}]
    assert freeze(vars(trainer.optimizer.inner)) == before
