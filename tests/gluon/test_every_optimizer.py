"""Every optimizer that MXNet registers, through a whole Trainer.

The oracle is ``mx.gluon.Trainer`` on float32 parameters, whose step neither scales nor checks.
"""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import TWO, fill, loss_of, param, snapshot, value
from tests.optimizer.test_multi_precision import OPTIMIZERS, make
from tests.values import DTYPES, in_dtype

# Two matrices: GroupAdaGrad takes no vectors.
VALUES = [np.linspace(-1.5, 1.5, 12).reshape(4, 3), np.linspace(0.1, 0.9, 4).reshape(2, 2)]
STEPS = 20
OVERFLOWS = (0, 7)  # before these steps


def scheduled(name):
    """Return an optimizer with a scheduler that changes its own fields as it is asked."""
    return make(name, lr_scheduler=mx.lr_scheduler.MultiFactorScheduler(step=[3, 11], factor=0.5, base_lr=0.01))


def gradients(seed):
    """Return gradients that float16 and bfloat16 hold exactly, even halves times 2**14: 7 bits above 2**-9."""
    draw = np.random.RandomState(seed)
    return [draw.randint(-64, 65, np.shape(values)) * 2.0**-9 for values in VALUES]


def backward(trainer, params, grads):
    """Give the parameters exactly these gradients, in equal parts on each context, times the loss scale."""
    contexts = params[0].list_ctx()
    with autograd.record():
        losses = [sum(loss_of(p, x / len(contexts), ctx) for p, x in zip(params, grads)) for ctx in contexts]
    with trainer.scale_loss(losses) if isinstance(trainer, Trainer) else nullcontext(losses) as scaled:
        autograd.backward(scaled)


def everything(trainer):
    """Return weights, masters, states and every field of the optimizer and of its scheduler."""
    return snapshot(trainer), trainer.optimizer.rescale_grad


@pytest.mark.behaviour("an infinite step")
@pytest.mark.parametrize(("dtype", "contexts"), [("float32", 1), ("float16", 2), ("bfloat16", 1)])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.slow
def test_twenty_steps_are_those_of_float32_and_skips_leave_no_trace(name, dtype, contexts):
    """The bound: half a unit in the last place of the stored weight, and nothing else.

    Gradients are given, so that no difference between the weights feeds back; they are exact in
    every dtype, and so is scaling by a power of two. The inner optimizer then computes the same
    in float32 on the master as MXNet's on the weight, bit for bit, overflow and all; the weight is
    the master rounded to nearest even, and differs by that one rounding.
    """
    params = [param(values, dtype, TWO[:contexts], f"p{i}") for i, values in enumerate(VALUES)]
    plain = [param(value(p.list_data()[0]), name=f"p{i}") for i, p in enumerate(params)]
    # The scale moves within the run: up every fifth step, down twice.
    scale = DynamicLossScale(init_scale=2.0**10, growth_interval=5)
    trainer = Trainer(params, scheduled(name), loss_scale=scale)
    reference = mx.gluon.Trainer(plain, scheduled(name))
    mx.random.seed(3)  # SGLD draws noise, and must not in a step that is skipped
    for step in range(STEPS):
        if step in OVERFLOWS:
            before = everything(trainer)
            backward(trainer, params, gradients(99))
            fill(params[1].list_data()[-1].grad, np.inf)
            assert not trainer.step(3)  # another batch size, which an update would note in rescale_grad
            assert everything(trainer) == before
        backward(trainer, params, gradients(step))
        assert trainer.step(1)
    mx.random.seed(3)
    for step in range(STEPS):
        backward(reference, plain, gradients(step))
        reference.step(1)

    assert trainer.loss_scale.value == 2.0**11
    for i, (p, exact) in enumerate(zip(params, plain)):
        expected = exact.data().asnumpy()
        assert not np.array_equal(expected, VALUES[i].astype(np.float32))
        if dtype != "float32":
            np.testing.assert_array_equal(trainer._gradients.masters[0].arrays[i].asnumpy(), expected)
        for weight in p.list_data():
            np.testing.assert_array_equal(value(weight), value(in_dtype(exact.data(), DTYPES[dtype])))
