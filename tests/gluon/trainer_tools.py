"""What the tests of the trainer share."""

import mxnet as mx
import numpy as np
from mxnet import autograd

from mxmp.gluon import Trainer
from tests import values as precisions
from tests.freeze import freeze, freeze_optimizer

DTYPES = ["float32", "float16", "bfloat16"]
LOW = DTYPES[1:]
KVSTORES = [None, "local", "device"]
TWO = [mx.cpu(0), mx.cpu(1)]


def param(values, dtype="float32", ctx=None, name="w", **kwargs):
    """Return an initialized parameter with the given values."""
    values = np.asarray(values, np.float32)
    result = mx.gluon.Parameter(name, shape=values.shape, **kwargs)
    result.initialize(init=mx.init.Zero(), ctx=ctx)
    result.set_data(mx.nd.array(values))
    if dtype != "float32":
        wide = result.list_data()
        result.cast(precisions.DTYPES[dtype])
        for source, weight in zip(wide, result.list_data()):
            weight[:] = precisions.in_dtype(source, weight.dtype)
    return result


def value(array):
    return precisions.as_float32(array)


def loss_of(params, x, ctx=None):
    """Return sum(w * x) over the parameters in float32; the gradient of each is x."""
    x = np.asarray(x, np.float32)
    total = 0
    for p in params if isinstance(params, list) else [params]:
        data = p.data(ctx) if ctx else p.list_data()[0]
        # Neither amp_cast nor astype: their backward loses gradients with grad_req='add' on CPU.
        wide = mx.nd.Cast(data, dtype="float32")
        total = total + (wide * mx.nd.array(np.broadcast_to(x, data.shape), ctx=data.ctx)).sum()
    return total


def backward(trainer, params, x, ctx=None):
    """Run one backward pass that gives the gradient x."""
    with autograd.record():
        loss = loss_of(params, x, ctx)
    run_backward(trainer, loss)


def run_backward(trainer, losses, *others):
    """Run backward on a loss or a list of them, scaled for a trainer and others unless it is one of MXNet."""
    losses = losses if isinstance(losses, list) else [losses]
    if isinstance(trainer, Trainer):
        with trainer.scale_loss(losses, *others) as scaled:
            autograd.backward(scaled)
    else:
        autograd.backward(losses)


def backward_everywhere(trainer, params, xs):
    """Run a backward pass on each context of the parameters, with a gradient for each."""
    first = params[0] if isinstance(params, list) else params
    for x, ctx in zip(xs, first.list_ctx()):
        backward(trainer, params, x, ctx)


def run(trainer, params, x=1, bad=None):
    """Take a step with the gradient x on each context, or with one that is no number; return whether it was taken."""
    first = params[0] if isinstance(params, list) else params
    backward_everywhere(trainer, params, [x] * len(first.list_ctx()))
    if bad is not None:
        fill(first.list_grad()[0], bad)
    return trainer.step(1)


def fill(grad, number):
    """Make all of a gradient, of any dtype, a number, as an overflow would."""
    grad[:] = precisions.in_dtype(mx.nd.full(grad.shape, number, ctx=grad.ctx), grad.dtype)


def sgd(params, loss_scale="dynamic", lr=1.0, **kwargs):
    params = params if isinstance(params, (list, dict)) else [params]
    return Trainer(params, "sgd", {"learning_rate": lr}, loss_scale=loss_scale, **kwargs)


def trained(params, *args, **kwargs):
    """Return a parameter or a list of them, and a trainer by `sgd`."""
    return params, sgd(params, *args, **kwargs)


def snapshot(trainer):
    """Return everything that a skipped step must leave alone, bit for bit."""
    weights = [p.list_data() for p in trainer._params]
    states = [updater.states for updater in trainer._updaters]
    masters = [each.arrays for each in trainer._training_step.masters]
    return freeze([weights, states, masters]), freeze_optimizer(trainer.optimizer)


def collapse(trainer, w, steps):
    for _ in range(steps):
        backward(trainer, w, 1)
        w.grad()[:] = np.nan
        trainer.step(1)
