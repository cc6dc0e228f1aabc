"""What the tests of modules share."""

import mxnet as mx
import numpy as np

from mxmp.loss_scale import DynamicLossScale
from mxmp.module import Module
from tests.freeze import freeze, freeze_optimizer, saved_arrays

TWO = [mx.cpu(0), mx.cpu(1)]
BFLOAT16 = "mixed_bfloat16"
SHAPES = [("data", (8, 6))], [("softmax_label", (8,))]
SGD = {"learning_rate": 0.1, "momentum": 0.9}


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
    label, centers = rng.integers(0, classes, count), rng.normal(size=(classes, *shape))
    data = centers[label] + 0.3 * rng.normal(size=(count, *shape))
    return data.astype(np.float32), label.astype(np.float32)


def iterator(batch_size=8, **kwargs):
    return mx.io.NDArrayIter(*samples(**kwargs), batch_size, label_name="softmax_label")


def batches(batch_size=8, **kwargs):
    return list(iterator(batch_size, **kwargs))


def params_of(symbol, seed=0, **shapes):
    """Return reproducible float32 parameters."""
    rng, (sizes, _, aux) = np.random.default_rng(seed), symbol.infer_shape(**shapes)
    args = {name: mx.nd.array(rng.normal(size=size) * 0.3) for name, size in zip(symbol.list_arguments(), sizes)}
    values = {name: value for name, value in args.items() if name not in shapes and "label" not in name}
    return values, {n: mx.nd.zeros(s) + ("var" in n) for n, s in zip(symbol.list_auxiliary_states(), aux)}


def bound(symbol=None, policy="O1", shape=(8, 6), cls=Module, seed=0, bind=None, **kwargs):
    """Return a module that is bound and has parameters; ``bind`` are options of its ``bind``."""
    symbol = mlp() if symbol is None else symbol
    module = cls(symbol, **({"policy": policy} if cls is Module else {}), **kwargs)
    module.bind([("data", shape)], [("softmax_label", shape[:1])], **(bind or {}))
    args, aux = params_of(symbol, seed, data=shape)
    module.init_params(arg_params=args, aux_params=aux)
    return module


def ready(*args, optimizer="sgd", options=None, kvstore="local", **kwargs):
    """Return a module that is bound, initialized and has an optimizer."""
    module = bound(*args, **kwargs)
    module.init_optimizer(kvstore, optimizer, SGD if options is None else options)
    return module


def plain(symbol=None, **kwargs):
    """Return MXNet's own module in the same state."""
    return ready(symbol, cls=mx.mod.Module, **kwargs)


class _Updating(mx.kv.KVStore):
    type = "dist_async"

    def set_optimizer(self, optimizer):
        self._updater = mx.optimizer.get_updater(optimizer)
        self._set_updater(self._updater)


def updating():
    """Return a store of this process that says, as one of several machines, that it updates weights itself."""
    store = mx.kv.create("device")
    store.__class__ = _Updating
    return store


def train(module, data, epochs=1):
    for batch in data * epochs:
        module.forward_backward(batch)
        module.update()
    return module


def grads(module):
    """Return the parameters' gradients on the first context as they are now, times the scale or not."""
    group = module._exec_group
    found = [list.copy(each)[0] for each in group.grad_arrays]
    return {name: grad.asnumpy() for name, grad in zip(group.param_names, found) if grad is not None}


def arrays(module, name):
    """Return the executors' arrays of a parameter."""
    return [executor.arg_dict[name] for executor in module._exec_group.execs]


def values(module):
    args, aux = module.get_params()
    return {name: array.asnumpy() for name, array in {**args, **aux}.items()}


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def trace(module):
    """Return everything that a skipped step must leave alone, bit for bit; between steps only."""
    weights = module._exec_group.param_arrays
    return saved_arrays(module.save_optimizer_states), freeze_optimizer(module._optimizer), freeze(weights)


def poison(module):
    """Make one gradient on the last context NaN, as an overflow would."""
    executor = module._exec_group.execs[-1]
    next(grad for name in module._param_names if (grad := executor.grad_dict[name]) is not None)[:] = np.nan


def scale(value, **kwargs):
    return DynamicLossScale(init_scale=value, **kwargs)
