"""Wrong arguments of LossScaleOptimizer and MultiPrecision, and calls that it has no weights or no loss for."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.errors import LossScaleError, MxmpError, TrainerError
from mxmp.gluon import Trainer
from mxmp.optimizer import LossScaleOptimizer, MultiPrecision
from tests import messages
from tests.gluon.trainer_tools import param


def optimizer(**arguments):
    return LossScaleOptimizer(mx.optimizer.SGD(), **arguments)


def wrong(**arguments):
    return lambda: optimizer(**arguments)


def unscaled(grads):
    made = optimizer()
    made.get_scaled_loss(mx.nd.ones(1))
    return made.get_unscaled_gradients(grads)


def setting(owner, name, value):
    return lambda: setattr(owner, name, value)


ARRAY, INTS = mx.nd.ones(1), mx.nd.ones(1, dtype="int32")
NO_SCALE = "expected a positive, finite number between 2**-126 and 2**126, so that it and its inverse are float32 numbers."
SCALES = {
    "dynamic, a number": (wrong(dynamic=1), LossScaleError, "dynamic is 1; expected True or False."),
    "dynamic, a text": (wrong(dynamic="dynamic"), LossScaleError, "dynamic is 'dynamic'; expected True or False."),
    "no initial_scale": (wrong(dynamic=False), LossScaleError,
        "initial_scale is missing: with dynamic=False the scale has to be given, such as 1024."
    ),
    "no growth": (wrong(dynamic=False, initial_scale=1, dynamic_growth_steps=2), LossScaleError,
        "dynamic_growth_steps=2 with dynamic=False: a static scale does not grow."
    ),
    "below 0": (wrong(initial_scale=-1), LossScaleError,
        f"initial_scale=-1, dynamic_growth_steps=None: init_scale=-1.0 is no loss scale; {NO_SCALE}"
    ),
    "NaN": (wrong(initial_scale=np.nan), LossScaleError,
        f"initial_scale=nan, dynamic_growth_steps=None: init_scale=nan is no loss scale; {NO_SCALE}"
    ),
    "a text": (wrong(initial_scale="8"), LossScaleError,
        "initial_scale='8', dynamic_growth_steps=None: init_scale is '8'; expected a number."
    ),
    "0": (wrong(dynamic=False, initial_scale=0), LossScaleError,
        f"initial_scale=0, dynamic_growth_steps=None: scale=0.0 is no loss scale; {NO_SCALE}"
    ),
    "0 steps": (wrong(dynamic_growth_steps=0), LossScaleError,
        "initial_scale=None, dynamic_growth_steps=0: growth_interval=0; expected a whole number of at least 1."
    ),
    "1.5 steps": (wrong(dynamic_growth_steps=1.5), LossScaleError,
        "initial_scale=None, dynamic_growth_steps=1.5: growth_interval=1.5; expected a whole number of at least 1."
    ),
}  # fmt: skip
OPTIMIZERS = {
    "a name": (lambda: LossScaleOptimizer("sgd"), TrainerError,
        "inner is 'sgd'; expected an mx.optimizer.Optimizer. Create it by name with mx.optimizer.create."
    ),
    "wrapped": (lambda: LossScaleOptimizer(optimizer()), TrainerError,
        "inner is a LossScaleOptimizer, which has a loss scale already; wrap the optimizer in it once."
    ),
    "a trainer's": (lambda: LossScaleOptimizer(gluon.Trainer([param([1.0])], "sgd")._optimizer), TrainerError,
        "inner is the optimizer of a trainer, which would go on using it; make another one."
    ),
    "MultiPrecision, a name": (lambda: MultiPrecision("sgd"), TrainerError,
        "MultiPrecision got 'sgd'; expected an mx.optimizer.Optimizer. Create it by name with mx.optimizer.create."
    ),
    "MultiPrecision, wrapped": (lambda: MultiPrecision(MultiPrecision(mx.optimizer.SGD())), TrainerError,
        "the optimizer SGD is wrapped in MultiPrecision already; wrap it once."
    ),
    **{f"learning_rate, {rate}": (setting(optimizer(), "learning_rate", rate), TrainerError,
        f"the learning rate is {rate!r}; expected a finite number."
    ) for rate in ("a", None, np.nan, np.inf)},
    "a trainer's rate": (lambda: Trainer([param([1.0])], "sgd").set_learning_rate("a"), TrainerError,
        "the learning rate is 'a'; expected a finite number."
    ),
    "a rate": (lambda: MultiPrecision(mx.optimizer.SGD()).set_learning_rate(np.nan), TrainerError,
        "the learning rate is nan; expected a finite number."
    ),
}  # fmt: skip
CALLS = {
    "a loss, a number": (lambda: optimizer().get_scaled_loss(1.0), TrainerError,
        "scale_loss: loss is a float; expected an NDArray, or lists and tuples of them."
    ),
    "a loss, integers": (lambda: optimizer().get_scaled_loss(INTS), TrainerError,
        "scale_loss: loss has dtype int32; expected a float."
    ),
    "a gradient, a number": (lambda: unscaled([1.0]), TrainerError,
        "get_unscaled_gradients: item 0 holds a float; expected floating point NDArrays."
    ),
    "a gradient, in a list": (lambda: unscaled([ARRAY, [ARRAY, 1]]), TrainerError,
        "get_unscaled_gradients: item 1 holds a int; expected floating point NDArrays."
    ),
    "a gradient, integers": (lambda: unscaled([None, INTS]), TrainerError,
        "get_unscaled_gradients: item 1 holds int32 (1,) on cpu(0); expected floating point NDArrays."
    ),
    "gradients, None": (lambda: unscaled(None), TrainerError,
        "get_unscaled_gradients: expected a list of NDArrays, found a NoneType."
    ),
    "gradients, a number": (lambda: unscaled(5), TrainerError,
        "get_unscaled_gradients: expected a list of NDArrays, found a int."
    ),
    "no gradients": (lambda: unscaled([]), TrainerError,
        "get_unscaled_gradients: there is no gradient; give those of all weights."
    ),
    "None for all": (lambda: unscaled([None]), TrainerError,
        "get_unscaled_gradients: there is no gradient; give those of all weights."
    ),
    "unscale first": (lambda: optimizer().get_unscaled_gradients([ARRAY]), TrainerError,
        "get_unscaled_gradients: no loss was scaled since the last step; call get_scaled_loss and run backward on the "
        "loss that it returns."
    ),
    "apply first": (lambda: optimizer().apply_gradients([(ARRAY, ARRAY)]), TrainerError,
        "apply_gradients: get_scaled_loss was not called in this step; the order is get_scaled_loss, backward, "
        "get_unscaled_gradients, apply_gradients."
    ),
    "save_states": (lambda: optimizer().save_states("x"), TrainerError,
        "save_states: the weights are not known yet; call build with all of them first."
    ),
    "load_states": (lambda: optimizer().load_states("x"), TrainerError,
        "load_states: the weights are not known yet; call build with all of them first."
    ),
}  # fmt: skip


@pytest.mark.behaviour("wrong optimizer arguments", "wrapping twice")
@messages.each({**SCALES, **OPTIMIZERS, **CALLS})
def test_messages(call, error, text, tmp_path):
    assert issubclass(error, MxmpError)
    messages.check(call, error, text, tmp_path)
