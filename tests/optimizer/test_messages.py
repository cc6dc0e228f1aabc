"""Wrong arguments of LossScaleOptimizer and MultiPrecision, and calls that it has no weights or no loss for."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.errors import LossScaleError, TrainerError
from mxmp.gluon import Trainer
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests import messages
from tests.gluon.trainer_tools import param


def optimizer(**arguments):
    return LossScaleOptimizer(mx.optimizer.SGD(), **arguments)


def unscaled(grads):
    made = optimizer()
    made.get_scaled_loss(mx.nd.ones(1))
    return made.get_unscaled_gradients(grads)


ARRAY = mx.nd.ones(1)
NO_SCALE = "expected a positive, finite number between 2**-126 and 2**126, so that it and its inverse are float32 numbers."
TABLE = {
    "no initial_scale": (lambda: optimizer(dynamic=False), LossScaleError,
        "initial_scale is missing: with dynamic=False the scale has to be given, such as 1024."
    ),
    "no growth": (lambda: optimizer(dynamic=False, initial_scale=1, dynamic_growth_steps=2), LossScaleError,
        "dynamic_growth_steps=2 with dynamic=False: a static scale does not grow."
    ),
    "below 0": (lambda: optimizer(initial_scale=-1), LossScaleError,
        f"initial_scale=-1, dynamic_growth_steps=None: init_scale=-1.0 is no loss scale; {NO_SCALE}"
    ),
    "a name": (lambda: LossScaleOptimizer("sgd"), TrainerError,
        "inner is 'sgd'; expected an mx.optimizer.Optimizer. Create it by name with mx.optimizer.create."
    ),
    "wrapped": (lambda: LossScaleOptimizer(optimizer()), TrainerError,
        "inner is a LossScaleOptimizer, which has a loss scale already; wrap the optimizer in it once."
    ),
    "a trainer's": (lambda: LossScaleOptimizer(gluon.Trainer([param([1.0])], "sgd")._optimizer), TrainerError,
        "inner is the optimizer of a trainer, which would go on using it; make another one."
    ),
    "MultiPrecision, wrapped": (lambda: MultiPrecision(MultiPrecision(mx.optimizer.SGD())), TrainerError,
        "the optimizer SGD is wrapped in MultiPrecision already; wrap it once."
    ),
    "a rate of text": (lambda: setattr(optimizer(), "learning_rate", "a"), TrainerError,
        "the learning rate is 'a'; expected a finite number."
    ),
    "a trainer's rate": (lambda: Trainer([param([1.0])], "sgd").set_learning_rate("a"), TrainerError,
        "the learning rate is 'a'; expected a finite number."
    ),
    "a rate": (lambda: MultiPrecision(mx.optimizer.SGD()).set_learning_rate(np.nan), TrainerError,
        "the learning rate is nan; expected a finite number."
    ),
    "a loss, a number": (lambda: optimizer().get_scaled_loss(1.0), TrainerError,
        "scale_loss: loss is a float; expected an NDArray, or lists and tuples of them."
    ),
    "gradients, None": (lambda: unscaled(None), TrainerError,
        "get_unscaled_gradients: expected a list of NDArrays, found a NoneType."
    ),
    "no gradients": (lambda: unscaled([]), TrainerError,
        "get_unscaled_gradients: there is no gradient; give those of all weights."
    ),
    "apply first": (lambda: optimizer().apply_gradients([(ARRAY, ARRAY)]), TrainerError,
        "apply_gradients: get_scaled_loss was not called in this step; the order is get_scaled_loss, backward, "
        "get_unscaled_gradients, apply_gradients."
    ),
    "save_states": (lambda: optimizer().save_states("x"), TrainerError,
        "save_states: the weights are not known yet; call build with all of them first."
    ),
}  # fmt: skip


@pytest.mark.behaviour("wrong optimizer arguments", "wrapping twice")
@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
