"""Steps that fail, each for a reason that is known, and healthy ones: what verdicts are tried on.

Each case gives a verdict. Those of symbols run ``explain``; those of trainers and modules make a step under a `Watch`.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from mxmp import diagnose
from mxmp import gluon as mixed
from mxmp.errors import MxmpError
from mxmp.module import BucketingModule, Module

PURE = "O3"  # all in float16
SMALL, INF, NAN = 2.0**4, np.inf, np.nan


def data(shape=(4, 6), seed=0, scale=1.0):
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape) * scale)


def linear(x, name, hidden=4):
    return mx.sym.FullyConnected(x, num_hidden=hidden, name=name)


def ended(x):
    """Return a network that ends in a regression; the label is zeros."""
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(x, num_hidden=2, name="last"), name="out")


def of_symbol(sym, policy="O1", scale=SMALL, batch=None, params=None, seed=1, factor=0.3):
    """Return the verdict on a step of a symbol, its parameters small unless they are given."""
    batch = {"data": data(), **(batch or {})}
    shapes = {name: array.shape for name, array in batch.items()}
    found, _, aux = sym.infer_shape(**shapes)
    rng = np.random.default_rng(seed)
    values = {
        n: mx.nd.array(rng.normal(size=s) * factor) for n, s in zip(sym.list_arguments(), found) if n not in batch
    }
    labels = {name: mx.nd.zeros(array.shape) for name, array in values.items() if name.endswith("label")}
    args = {name: array for name, array in values.items() if name not in labels}
    args.update(
        {name: mx.nd.array(np.broadcast_to(v, args[name].shape)) for name, v in (params or {}).items() if name in args}
    )
    states = {n: mx.nd.zeros(s) + ("var" in n) for n, s in zip(sym.list_auxiliary_states(), aux)}
    states.update(
        {n: mx.nd.array(np.broadcast_to(v, states[n].shape)) for n, v in (params or {}).items() if n in states}
    )
    return diagnose.explain((sym, args, states), {**labels, **batch}, policy, loss_scale=scale)


def of_trainer(
    net, x, y=None, loss=None, policy="O1", scale=SMALL, watch_loss=True, init=0.3, before=None, **hybridize
):
    """Return the verdict on a step of a trainer."""
    loss = loss or gluon.loss.L2Loss()
    net.initialize(mx.init.Constant(init) if isinstance(init, float) else init)
    if hybridize:
        net.hybridize(**hybridize)
    mixed.convert(net, policy)
    outputs = net(x)
    if before is not None:
        before(net)
    y = mx.nd.zeros_like(outputs) if y is None else y
    trainer = mixed.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, loss_scale=scale)
    with diagnose.Watch(loss if watch_loss else None).attach(trainer) as watch:
        with autograd.record():
            value = loss(net(x), y)
        with trainer.scale_loss(value) as scaled:
            autograd.backward(scaled)
        try:
            trainer.step(4)
        except MxmpError:
            pass
        return watch.verdict()


def of_module(sym, policy="O1", scale=SMALL, x=None, label=None, factor=0.3, contexts=None, params=None):
    """Return the verdict on a step of a Module whose network ends in 'out'."""
    x = data() if x is None else x
    module = Module(sym, label_names=["out_label"], policy=policy, loss_scale=scale, context=contexts or mx.cpu())
    shape = sym.infer_shape(data=x.shape)[1][0]
    module.bind([("data", x.shape)], [("out_label", shape)])
    module.init_params(mx.init.Uniform(factor))
    args, aux = module.get_params()
    args.update({name: mx.nd.array(np.broadcast_to(v, args[name].shape)) for name, v in (params or {}).items()})
    module.set_params(args, aux)
    module.init_optimizer(optimizer_params={"learning_rate": 1e-3})
    with diagnose.Watch().attach(module) as watch:
        module.forward_backward(mx.io.DataBatch([x], [mx.nd.zeros(shape) if label is None else label]))
        try:
            module.update()
        except MxmpError:
            pass
        return watch.verdict()


def of_buckets(scale):
    """Return the verdict on a step of the second bucket."""

    def make(key):
        x = mx.sym.mean(mx.sym.var("data"), axis=1)
        return ended(linear(x, "first")), ("data",), ("out_label",)

    module = BucketingModule(make, 8, policy="O1", loss_scale=scale)
    module.bind([("data", (4, 8, 6))], [("out_label", (4, 2))])
    module.init_params(mx.init.Uniform(0.5))
    module.init_optimizer()
    batch = mx.io.DataBatch(
        [data((4, 5, 6))],
        [mx.nd.zeros((4, 2))],
        bucket_key=5,
        provide_data=[mx.io.DataDesc("data", (4, 5, 6))],
        provide_label=[mx.io.DataDesc("out_label", (4, 2))],
    )
    with diagnose.Watch().attach(module) as watch:
        module.forward_backward(batch)
        try:
            module.update()
        except MxmpError:
            pass
        return watch.verdict()


def dense(*sizes, prefix="net_", **options):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        for size in sizes:
            net.add(gluon.nn.Dense(size, **options))
    return net


def chain(*blocks):
    """Return a plain Block that calls HybridBlocks one after the other, each with a graph of its own."""
    net = gluon.nn.Sequential(prefix="net_")
    net.add(*blocks)
    return net


def layer(name, weight, units=4):
    """Return a dense layer whose weights are all alike."""
    return gluon.nn.Dense(units, prefix=f"{name}_", weight_initializer=mx.init.Constant(weight), in_units=4)


class Applied(gluon.HybridBlock):
    """A dense layer, and a function of its output, as a net with an output or several."""

    def __init__(self, function, units=4):
        super().__init__(prefix="net_")
        with self.name_scope():
            self.dense, self.function = gluon.nn.Dense(units), function

    def hybrid_forward(self, F, x):
        return self.function(F, self.dense(x))


def attention(mask=None, factor=1.0, keep="op:batch_dot=float16"):
    x = mx.sym.var("data")  # (2, 5, 6)
    q, k, v = (mx.sym.FullyConnected(x, num_hidden=6, flatten=False, name=name) for name in "qkv")
    scores = mx.sym.batch_dot(q * factor, k, transpose_b=True, name="attention_scores")
    if mask is not None:
        scores = mx.sym.broadcast_add(scores, mask, name="masked")
    out = mx.sym.batch_dot(mx.sym.softmax(scores, name="weights"), v, name="mixed")
    return mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(out, num_hidden=2, name="last"), name="out")


def looped(factor):
    """Return a network whose loop multiplies by ``factor`` at each of three steps."""

    def step(x, states):
        new = mx.sym.FullyConnected(states[0] * factor, num_hidden=4, name="inner", no_bias=True)
        new = mx.sym.broadcast_add(new, mx.sym.reshape(x, shape=(1, -1)))
        return new, [new]

    outputs, _ = mx.sym.contrib.foreach(step, mx.sym.transpose(mx.sym.var("data")), [mx.sym.var("state")], name="loop")
    return ended(mx.sym.transpose(outputs, axes=(1, 0, 2)))


def growing(depth, factor):
    x = linear(mx.sym.var("data"), "stem")
    for number in range(depth):
        x = mx.sym.elemwise_add(x, linear(x, f"block{number}") * factor, name=f"sum{number}")
    return ended(x)
