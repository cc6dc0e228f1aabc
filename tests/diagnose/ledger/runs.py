"""Runs for a ledger: a trainer whose gradients are given as they are after backward, times the scale."""

from __future__ import annotations

import mxnet as mx
import numpy as np

import mxmp
from mxmp.diagnose import Ledger


class Run:
    """Parameters by name with a trainer; `step` takes their scaled gradients.

    Args:
        shapes: Of the parameters.
        dtypes: Of them, 'float16' for all unless given.
        contexts: How many.
        loss_scale: Of the trainer.
        options: Of SGD.
        start: Their values.
    """

    def __init__(self, shapes, dtypes=None, contexts=1, loss_scale=1024.0, start=1.0, **options):
        self.contexts = [mx.cpu(number) for number in range(contexts)]
        self.params = []
        for name, shape in shapes.items():
            param = mx.gluon.Parameter(name, shape=shape, dtype=(dtypes or {}).get(name, "float16"))
            param.initialize(mx.init.Constant(start), ctx=self.contexts)
            self.params.append(param)
        options = {"learning_rate": 0.0, **options}
        self.trainer = mxmp.gluon.Trainer(self.params, "sgd", options, loss_scale=loss_scale)

    def step(self, grads):
        """Take a step with gradients by name: an array for all contexts, or one each; returns whether it was taken."""
        with self.trainer.scale_loss(mx.nd.ones((1,))):
            pass
        for param in self.params:
            given = grads[param.name]
            each = given if isinstance(given, list) else [given] * len(self.contexts)
            for data, values in zip(param.list_data(), each):
                grad = data.grad  # as backward writes it: who reads param.grad() has it unscaled
                grad[:] = mx.nd.array(np.broadcast_to(values, param.shape), dtype=param.dtype)
                data._fresh_grad = True
        return self.trainer.step(1)


def layers(ledger):
    """Return what a ledger knows of each parameter, by name, as plain data."""
    return {layer["name"]: layer for layer in ledger.to_dict()["layers"]}


def seen(true, scale=1024.0, dtype="float16", **options):
    """Return a ledger of a run in which true gradients, float64 arrays by name, came out of float16 at a scale."""
    run = Run({name: values.shape for name, values in true.items()}, dict.fromkeys(true, dtype), loss_scale=scale)
    ledger = Ledger(every=1, **options).attach(run.trainer)
    run.step({name: (values * scale).astype(np.float16) for name, values in true.items()})
    return ledger


def lognormal(median, spread, size=20000, seed=0):
    """Return values whose log2 is normal around a median's, with a standard deviation in binades."""
    random = np.random.RandomState(seed)
    return random.choice([-1, 1], size) * 2.0 ** (np.log2(median) + spread * random.standard_normal(size))
