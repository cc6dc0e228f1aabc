"""What the tests of modules share."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from mxmp.loss_scale import DynamicLossScale
from mxmp.module import Module
from tests.freeze import freeze, freeze_optimizer, saved_arrays

TWO = [mx.cpu(0), mx.cpu(1)]


def mlp(hidden=8, classes=4, bias=True):
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=hidden, name="fc1", no_bias=not bias)
    x = mx.sym.Activation(x, act_type="relu", name="relu1")
    x = mx.sym.FullyConnected(x, num_hidden=classes, name="fc2", no_bias=not bias)
    return mx.sym.SoftmaxOutput(x, name="softmax")


def convnet(classes=4):
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=8, no_bias=True, name="conv")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name="bn"), act_type="relu", name="relu")
    x = mx.sym.FullyConnected(mx.sym.Flatten(x, name="flat"), num_hidden=classes, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def samples(count=32, shape=(6,), classes=4, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, count)
    centers = rng.normal(size=(classes, *shape))
    data = centers[label] + 0.3 * rng.normal(size=(count, *shape))
    return data.astype(np.float32), label.astype(np.float32)


def iterator(batch_size=8, **kwargs):
    return mx.io.NDArrayIter(*samples(**kwargs), batch_size, label_name="softmax_label")


def batches(batch_size=8, **kwargs):
    return list(iterator(batch_size, **kwargs))


def params_of(symbol, seed=0, **shapes):
    """Return reproducible float32 parameters."""
    rng = np.random.default_rng(seed)
    found, _, _ = symbol.infer_shape(**shapes)
    args = {
        name: mx.nd.array(rng.normal(size=shape) * 0.3)
        for name, shape in zip(symbol.list_arguments(), found)
        if name not in shapes and "label" not in name
    }
    _, _, found = symbol.infer_shape(**shapes)
    return args, {n: mx.nd.zeros(s) + ("var" in n) for n, s in zip(symbol.list_auxiliary_states(), found)}


def ready(symbol=None, policy="O1", optimizer="sgd", options=None, shape=(8, 6), kvstore="local", seed=0, **kwargs):
    """Return a module that is bound, initialized and has an optimizer."""
    symbol = mlp() if symbol is None else symbol
    module = Module(symbol, policy=policy, **kwargs)
    module.bind([("data", shape)], [("softmax_label", shape[:1])])
    args, aux = params_of(symbol, seed, data=shape)
    module.init_params(arg_params=args, aux_params=aux)
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1, "momentum": 0.9} if options is None else options)
    return module


def plain(symbol=None, context=None, kvstore="local", optimizer="sgd", options=None):
    symbol = mlp() if symbol is None else symbol
    module = mx.mod.Module(symbol, context=context or mx.cpu())
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params(arg_params=params_of(symbol, data=(8, 6))[0], aux_params={})
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1, "momentum": 0.9} if options is None else options)
    return module


def train(module, data, epochs=1):
    for batch in data * epochs:
        module.forward_backward(batch)
        module.update()


def grads(module):
    """Return the parameters' gradients on the first context, as they are now."""
    group = module._exec_group
    return {n: g[0].asnumpy() for n, g in zip(group.param_names, group.grad_arrays) if g[0] is not None}


def values(module):
    args, aux = module.get_params()
    return {name: array.asnumpy() for name, array in {**args, **aux}.items()}


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def trace(module):
    """Return everything that a skipped step must leave alone, bit for bit; between steps only."""
    weights = module._exec_group.param_arrays
    return saved_arrays(module.save_optimizer_states), freeze_optimizer(module._optimizer.inner), freeze(weights)


def poison(module):
    """Make one gradient on the last context NaN, as an overflow would."""
    arrays = next(g for g in module._exec_group.grad_arrays if g[0] is not None)
    arrays[-1][:] = np.nan


def scale(value, **kwargs):
    return DynamicLossScale(init_scale=value, **kwargs)
