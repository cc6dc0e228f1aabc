"""Networks, steps that fail for a known reason, and numpy's half precision: what the tests of this folder share."""

from contextlib import suppress

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator

from mxmp import diagnose
from mxmp import gluon as mixed
from mxmp.errors import MxmpError
from mxmp.module import BucketingModule, Module

PURE = "O3"  # all in float16
SMALL, INF, NAN = 2.0**4, np.inf, np.nan
L2, SOFTMAX = gluon.loss.L2Loss(), gluon.loss.SoftmaxCrossEntropyLoss()


def half(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def ratio(low, exact):
    return np.linalg.norm(low - exact) / np.linalg.norm(exact)


def data(shape=(4, 6), seed=0, scale=1.0):
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape) * scale)


def linear(x, name, hidden=4):
    return mx.sym.FullyConnected(x, num_hidden=hidden, name=name)


def ended(x):
    """Return a network that ends in a regression; the label is zeros."""
    return mx.sym.LinearRegressionOutput(linear(x, "last", 2), name="out")


def dense(*sizes, prefix="net_", **options):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*(gluon.nn.Dense(size, **options) for size in sizes))
    return net


def layer(name, weight, units=4):
    return gluon.nn.Dense(units, prefix=f"{name}_", weight_initializer=mx.init.Constant(weight), in_units=4)


def chain(*blocks):
    """Return a plain Block that calls HybridBlocks one after the other, each with a graph of its own."""
    net = gluon.nn.Sequential(prefix="net_")
    net.add(*blocks)
    return net


class Applied(gluon.HybridBlock):
    """A dense layer, and a function of its output and of further inputs, as a net with an output or several."""

    def __init__(self, function, units=4, inputs=0):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.dense, self.function = gluon.nn.Dense(units, in_units=inputs), function

    def hybrid_forward(self, F, x, *others):
        return self.function(F, self.dense(x), *others)


def estimator_of(net, trainer, loss=L2):
    estimator = Estimator(net, loss, mx.metric.Loss(), trainer=trainer)
    estimator.logger.handlers.clear()
    estimator.logger.propagate = False
    return estimator


def trainer_of(net, loss_scale=4.0, optimizer="sgd", **options):
    return mixed.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3, **options}, loss_scale=loss_scale)


def backward(trainer, loss):
    with autograd.record():
        value = loss()
    with trainer.scale_loss(value) as scaled:
        autograd.backward(scaled)
    return value


def step(trainer, loss, rows=4):
    backward(trainer, loss)
    return trainer.step(rows)


def module_of(sym, shape=(4, 6), kind=Module, params=None, factor=0.1, label=None, **options):
    """Return a module of a symbol whose loss head is called 'out', ready to train; all buckets have the shapes."""
    module = kind(sym, **({"label_names": ["out_label"]} if isinstance(sym, mx.sym.Symbol) else {}), **options)
    label = label or sym.infer_shape(data=shape)[1][0]
    module.bind([("data", shape)], [("out_label", label)])
    module.init_params(mx.init.Uniform(factor))
    args, aux = module.get_params()
    args.update({name: mx.nd.array(np.broadcast_to(v, args[name].shape)) for name, v in (params or {}).items()})
    module.set_params(args, aux)
    module.init_optimizer(optimizer_params={"learning_rate": 1e-3})
    return module


def block_of(sym, params):
    """Return a symbol as a net, with parameters of a dict."""
    net = gluon.SymbolBlock(sym, mx.sym.var("data"))
    for name, param in net.collect_params().items():
        param._load_init(params[name], mx.cpu())
    return net


class Listed(diagnose.StepLogger):
    def __init__(self, every=1):
        super().__init__(every)
        self.records, self.ended = [], 0

    def _write(self, record):
        self.records.append(record)

    def _end(self):
        self.ended += 1

    def closed(self):
        self.close()
        return self.records


def verdict_of(owner, take, loss=None):
    with diagnose.Watch(loss).attach(owner) as watch:
        with suppress(MxmpError):
            take()
        return watch.verdict()


def values_of(sym, scale=1.0, **shapes):
    """Return arrays for all variables of a symbol: normal numbers for arguments, ones for states."""
    args, _, aux = sym.infer_shape(**shapes)
    draw = np.random.RandomState(0)
    given = {name: mx.nd.array(draw.randn(*s) * scale) for name, s in zip(sym.list_arguments(), args)}
    return {**given, **{name: mx.nd.ones(s) for name, s in zip(sym.list_auxiliary_states(), aux)}}


def split(sym, values, data):
    """Return the arguments, the states and the batch of arrays by name."""
    names = sym.list_arguments(), sym.list_auxiliary_states(), data
    return [{name: values[name] for name in each if each is data or name not in data} for each in names]


def where(*args, **options):
    """Return where `explain` finds the first inf or NaN."""
    return diagnose.explain(*args, **options).node


def of_symbol(sym, policy="O1", scale=SMALL, batch=None, params=None):
    """Return the verdict on a step of a symbol, its parameters small unless they are given, its labels zeros."""
    batch = {"data": data(), **(batch or {})}
    values = values_of(sym, 0.3, **{name: array.shape for name, array in batch.items()})
    batch = {**{name: array * 0 for name, array in values.items() if name.endswith("label")}, **batch}
    values.update({name: mx.nd.zeros(values[name].shape) + value for name, value in (params or {}).items()})
    args, aux, batch = split(sym, {**values, **batch}, tuple(batch))
    return diagnose.explain((sym, args, aux), batch, policy, loss_scale=scale)


def of_trainer(net, x, y=None, loss=L2, policy="O1", scale=SMALL, watch_loss=True, init=0.3, before=None, **hybridize):
    """Return the verdict on a step of a trainer; the label is zeros unless it is given."""
    net.initialize(mx.init.Constant(init) if isinstance(init, float) else init)
    if hybridize:
        net.hybridize(**hybridize)
    outputs = mixed.convert(net, policy)(x)
    if before is not None:
        before(net)
    y = mx.nd.zeros_like(outputs) if y is None else y
    trainer = trainer_of(net, scale)
    return verdict_of(trainer, lambda: step(trainer, lambda: loss(net(x), y)), loss if watch_loss else None)


def forward_and_update(module, batch):
    module.forward_backward(batch)
    return module.update()


def of_module(sym, policy="O1", scale=SMALL, x=None, label=None, contexts=None, params=None):
    x = data() if x is None else x
    module = module_of(
        sym, x.shape, factor=0.3, params=params, policy=policy, loss_scale=scale, context=contexts or mx.cpu()
    )
    label = mx.nd.zeros(module.label_shapes[0].shape) if label is None else label
    return verdict_of(module, lambda: forward_and_update(module, mx.io.DataBatch([x], [label])))


def bucket(x, label=(4, 2)):
    described = [mx.io.DataDesc("data", x.shape)], [mx.io.DataDesc("out_label", label)]
    return mx.io.DataBatch([x], [mx.nd.zeros(label)], 0, None, x.shape[1], *described)


def buckets(function, kind=BucketingModule, **options):
    """Return a BucketingModule of networks of a mean over the buckets' axis, by their keys."""

    def make(key):
        return ended(function(mx.sym.mean(mx.sym.var("data"), axis=1), key)), ("data",), ("out_label",)

    return module_of(make, (4, 8, 6), kind, label=(4, 2), default_bucket_key=8, **options)


def attention(mask=None, factor=1.0):
    x = mx.sym.var("data")  # (2, 5, 6)
    q, k, v = (mx.sym.FullyConnected(x, num_hidden=6, flatten=False, name=name) for name in "qkv")
    scores = mx.sym.batch_dot(q * factor, k, transpose_b=True, name="attention_scores")
    scores = scores if mask is None else mx.sym.broadcast_add(scores, mask, name="masked")
    return ended(mx.sym.batch_dot(mx.sym.softmax(scores, name="weights"), v, name="mixed"))


def looped(factor):
    def body(x, states):
        new = mx.sym.FullyConnected(states[0] * factor, num_hidden=4, name="inner", no_bias=True)
        new = mx.sym.broadcast_add(new, mx.sym.reshape(x, shape=(1, -1)))
        return new, [new]

    outputs, _ = mx.sym.contrib.foreach(body, mx.sym.transpose(mx.sym.var("data")), [mx.sym.var("state")], name="loop")
    return ended(mx.sym.transpose(outputs, axes=(1, 0, 2)))


# ---------------------------------------------------------------------- a classifier of four rows of five numbers

DATA = mx.nd.array(np.random.RandomState(0).randn(4, 5))
LABEL = mx.nd.array([0, 1, 2, 0])


def made(net, init="normal"):
    mx.random.seed(0)
    net.initialize(mx.init.Normal(1.0) if init == "normal" else init)
    return net


def classifier():
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(6, in_units=5, activation="relu", use_bias=False), gluon.nn.BatchNorm(in_channels=6))
        net.add(gluon.nn.Dropout(0.5), gluon.nn.Dense(3, in_units=6, use_bias=False))
    return made(net)


def state(net):
    """Return all that is seen of a net: the identity of arrays, values, gradients, its text, and its hooks."""
    found = []
    for param in net.collect_params().values():
        arrays = [*param.list_data(), *(param.list_grad() if param.grad_req != "null" else ())]
        found.append((type(param), str(param.dtype), [(id(array), array.asnumpy().tobytes()) for array in arrays]))
    return found, repr(net), net._active, dict(net._forward_pre_hooks)


def model():
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    draw = np.random.RandomState(1)
    args = {"first_weight": mx.nd.array(draw.randn(6, 5)), "second_weight": mx.nd.array(draw.randn(3, 6))}
    second = mx.sym.FullyConnected(first, num_hidden=3, no_bias=True, name="second")
    return mx.sym.SoftmaxOutput(second, name="softmax"), args, {}


def bound(kind=Module, **options):
    """Return a module, or a BucketingModule, of that model."""
    sym, args, aux = model()
    module = kind((lambda key: (sym, ("data",), ("softmax_label",))) if "default_bucket_key" in options else sym, **options)
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.set_params(args, aux)
    return module
