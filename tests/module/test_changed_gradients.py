"""Subclasses of Module that change the executors' gradients between backward and update, as MXNet's SVRGModule does."""

import contextlib

import mxnet as mx
import numpy as np

from mxmp.errors import TrainerError
from mxmp.module import Module
from tests.module.tools import batches, mlp, ready, train, values


def adding(base):
    """Return a module that adds a number to each gradient before it updates."""

    class Adding(base):
        def update(self):
            for arrays in self._exec_group.grad_arrays:
                for grad in arrays:
                    grad[:] = grad + 0.25
            return super().update()

    return Adding


def test_what_a_subclass_adds_to_gradients_is_not_divided_by_the_scale():
    options = {"learning_rate": 0.125, "rescale_grad": 1.0}
    expected = train(ready(cls=adding(mx.mod.Module), options=options), batches())
    module = adding(Module)(mlp(), policy="O0", loss_scale=1024)
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(arg_params=ready(cls=mx.mod.Module).get_params()[0], aux_params={})
    module.init_optimizer("local", "sgd", options)
    with contextlib.suppress(TrainerError):
        train(module, batches())
        found = values(module)
        for name, array in values(expected).items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
