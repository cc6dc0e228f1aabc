"""Wrong arguments of LossScaleOptimizer and MultiPrecision, and calls that it has no weights or no loss for."""

from __future__ import annotations

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
RATES = {"a text": "a", "None": None, "NaN": np.nan, "inf": np.inf}
ARGUMENTS = {
    "dynamic, a number": (wrong(dynamic=1), LossScaleError, "dynamic is 1; expected True or False..."),
    "dynamic, a text": (wrong(dynamic="dynamic"), LossScaleError, "dynamic is 'dynamic'..."),
    "no initial_scale": (wrong(dynamic=False), LossScaleError, "initial_scale is missing: with dynamic=False..."),
    "no growth": (wrong(dynamic=False, initial_scale=1, dynamic_growth_steps=2), LossScaleError,
        "dynamic_growth_steps=2 with dynamic=False..."
    ),
    "below 0": (wrong(initial_scale=-1), LossScaleError, "initial_scale=-1, ...no loss scale..."),
    "NaN": (wrong(initial_scale=np.nan), LossScaleError, "initial_scale=nan..."),
    "a text": (wrong(initial_scale="8"), LossScaleError, "initial_scale='8', ...expected a number..."),
    "0": (wrong(dynamic=False, initial_scale=0), LossScaleError, "initial_scale=0, ...no loss scale..."),
    "0 steps": (wrong(dynamic_growth_steps=0), LossScaleError, "...dynamic_growth_steps=0: ...at least 1."),
    "1.5 steps": (wrong(dynamic_growth_steps=1.5), LossScaleError, "...dynamic_growth_steps=1.5: ...whole number..."),
    "a name": (lambda: LossScaleOptimizer("sgd"), TrainerError,
        "inner is 'sgd'; expected an mx.optimizer.Optimizer..."
    ),
    "wrapped": (lambda: LossScaleOptimizer(optimizer()), TrainerError,
        "inner is a LossScaleOptimizer, which has a loss scale already..."
    ),
    "a trainer's": (lambda: LossScaleOptimizer(gluon.Trainer([param([1.0])], "sgd")._optimizer), TrainerError,
        "inner is the optimizer of a trainer..."
    ),
    "MultiPrecision, a name": (lambda: MultiPrecision("sgd"), TrainerError,
        "...got 'sgd'; expected an mx.optimizer.Optimizer..."
    ),
    "MultiPrecision, wrapped": (lambda: MultiPrecision(MultiPrecision(mx.optimizer.SGD())), TrainerError,
        "...the optimizer SGD is wrapped in MultiPrecision already; wrap it..."
    ),
}  # fmt: skip
CALLS = {
    "a loss, a number": (lambda: optimizer().get_scaled_loss(1.0), TrainerError,
        "...loss is a float; expected an NDArray..."
    ),
    "a loss, integers": (lambda: optimizer().get_scaled_loss(INTS), TrainerError, "...dtype int32..."),
    "a gradient, a number": (lambda: unscaled([1.0]), TrainerError,
        "get_unscaled_gradients: item 0 holds a float; expected floating point NDArrays..."
    ),
    "a gradient, in a list": (lambda: unscaled([ARRAY, [ARRAY, 1]]), TrainerError, "...: item 1 holds a int;..."),
    "a gradient, integers": (lambda: unscaled([None, INTS]), TrainerError,
        "...: item 1 holds int32 (1,) on cpu(0); expected floating..."
    ),
    "gradients, None": (lambda: unscaled(None), TrainerError,
        "...: expected a list of NDArrays, found a NoneType..."
    ),
    "gradients, a number": (lambda: unscaled(5), TrainerError, "...: expected a list of NDArrays, found a int..."),
    "no gradients": (lambda: unscaled([]), TrainerError, "...: there is no gradient..."),
    "None for all": (lambda: unscaled([None]), TrainerError, "...: there is no..."),
    "unscale first": (lambda: optimizer().get_unscaled_gradients([ARRAY]), TrainerError,
        "get_unscaled_gradients: no loss was scaled ... call get_scaled_loss..."
    ),
    "apply first": (lambda: optimizer().apply_gradients([(ARRAY, ARRAY)]), TrainerError,
        "apply_gradients: get_scaled_loss was not called in this step..."
    ),
    **{f"learning_rate, {name}": (setting(optimizer(), "learning_rate", rate), TrainerError,
        f"the learning rate is {rate!r}; expected a finite number..."
    ) for name, rate in RATES.items()},
    "a trainer's rate": (lambda: Trainer([param([1.0])], "sgd").set_learning_rate("a"), TrainerError,
        "the learning rate is 'a'; expected a finite number..."
    ),
    "lr": (setting(optimizer(), "lr", None), TrainerError, "lr is None..."),
    "wd": (setting(MultiPrecision(mx.optimizer.SGD()), "wd", np.nan), TrainerError, "wd is nan..."),
    "save_states": (lambda: optimizer().save_states("x"), TrainerError,
        "save_states: the weights are not known yet; call build..."
    ),
    "load_states": (lambda: optimizer().load_states("x"), TrainerError,
        "load_states: the weights are not known yet; call build..."
    ),
}  # fmt: skip


@pytest.mark.behaviour("wrong optimizer arguments", "wrapping twice")
@messages.each({**ARGUMENTS, **CALLS})
def test_messages(call, error, text, tmp_path):
    assert issubclass(error, MxmpError)
    messages.check(call, error, text, tmp_path)
