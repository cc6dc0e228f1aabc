"""Everything that makes training steps, behind one interface: what `test_step` runs its behaviours over.

Each adapter trains parameters whose gradients are told: the loss is the sum of ``w * x`` over them, so that the
gradient of ``w`` is ``x``. Only public calls are made, and MXNet's own attributes read. An Estimator trains with
`mxmp.gluon.Trainer`, bit for bit, as tests/test_estimator.py holds.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxmp
from mxmp import amp
from mxmp.loss_scale import DynamicLossScale, parse
from tests.freeze import freeze, freeze_optimizer, saved_arrays
from tests.gluon.trainer_tools import param
from tests.values import as_float32, in_dtype

CONTEXTS = [mx.cpu(0), mx.cpu(1)]
THIN = ("setup", "dtype", "contexts", "bad")
START = {"a": [0.5, -1.5], "b": [2.0]}


class Adapter:
    """One way to train ``START``.

    Args:
        loss_scale: A `LossScale` or what one is made from.
        optimizer: Name of an optimizer of MXNet.
        options: Of the optimizer.
        dtype: In which the parameters are stored.
        contexts: How many.
        kvstore: Of several contexts.
        grad_req: Of all parameters.
    """

    lacks: dict = {}  # what it cannot do, and why
    names: dict = {}  # calls that have another name than gluon's Trainer's
    sums_early = True  # unscaled gradients are those that the step takes, summed over contexts
    waits = False
    thin = ()  # loops of which one value will do, as it steps through another adapter
    smallest = 2.0**-30  # that a gradient of low precision may show; 0 in float16

    def __init__(
        self,
        loss_scale="dynamic",
        optimizer="sgd",
        options=None,
        dtype="float32",
        contexts=1,
        kvstore="device",
        grad_req="write",
    ):
        self.contexts = CONTEXTS[:contexts]
        self.dtype, self.kvstore, self.grad_req, self.given = dtype, kvstore, grad_req, parse(loss_scale)
        self.values = {name: np.asarray(value, np.float32) for name, value in START.items()}
        if options is None:
            options = {"learning_rate": 1.0}
        self.make(optimizer, {**options})

    def rows(self, x):
        """Return a gradient per parameter for each context: from a number for all, or numbers by name."""
        x = x if isinstance(x, list) else [x] * len(self.contexts)
        named = [each if isinstance(each, dict) else dict.fromkeys(self.values, each) for each in x]
        return [
            {
                name: np.broadcast_to(np.asarray(each[name], np.float32), value.shape)
                for name, value in self.values.items()
            }
            for each in named
        ]

    def matrix(self, x):
        """Return the rows as one array (contexts, n)."""
        return np.array([np.concatenate(list(row.values())) for row in self.rows(x)])

    def spoil(self, bad=np.inf, name="a", place=-1):
        """Make the first number of a gradient on one context ``bad``, as an overflow would."""
        array = self.written()[name][place]
        values = as_float32(array)
        values.reshape(-1)[0] = bad
        array[:] = in_dtype(mx.nd.array(values, ctx=array.ctx), array.dtype)

    def written(self):
        """Return the arrays that backward writes, or what is shown in their place."""
        return self.gradients()

    def unscale(self):
        self.owner.unscale()

    def clip(self, max_norm):
        return self.owner.clip_global_norm(max_norm)

    def step(self):
        return self.owner.step(1)

    def discard(self):
        self.owner.discard_grads()

    def save(self, fname):
        getattr(self.owner, self.names.get("save_states", "save_states"))(fname)

    def load(self, fname):
        getattr(self.owner, self.names.get("load_states", "load_states"))(fname)

    def set_scale(self, spec):
        self.owner.loss_scale = spec

    def run(self, x=0.25, bad=None, **where):
        """Take one step, whose gradient is spoilt; return whether it was taken."""
        self.backward(x)
        if bad is not None:
            self.spoil(bad, **where)
        return self.step()

    def trace(self):
        """Return all that a skipped step must leave alone, bit for bit; between steps only."""
        return saved_arrays(self.save), freeze_optimizer(self.optimizer), freeze(self.weights())

    def read(self):
        """Return the parameters as float32 numbers on the first context."""
        return {name: as_float32(arrays[0]).reshape(-1) for name, arrays in self.weights().items()}

    def alike(self):
        """Return whether all contexts have the same parameters, bit for bit."""
        return all(freeze(arrays[0]) == freeze(each) for arrays in self.weights().values() for each in arrays)

    scale = property(lambda self: self.owner.loss_scale.value)
    counts = property(
        lambda self: (self.owner.last_step_skipped, self.owner.consecutive_skips, self.owner.skipped_steps)
    )


class Parameters(Adapter):
    """What trains parameters of Gluon."""

    def make_params(self):
        self.params = [
            param(value, self.dtype, ctx=self.contexts, name=name, grad_req=self.grad_req)
            for name, value in self.values.items()
        ]

    def losses(self, x):
        """Return the loss on each context, in float32."""
        found = []
        for ctx, row in zip(self.contexts, self.rows(x)):
            parts = [mx.nd.Cast(p.data(ctx), dtype="float32") * mx.nd.array(row[p.name], ctx=ctx) for p in self.params]
            found.append(mx.nd.concat(*parts, dim=0).sum())
        return found

    def weights(self):
        return {p.name: p.list_data() for p in self.params}

    def gradients(self):
        return {p.name: p.list_grad() for p in self.params}

    def written(self):
        """Who reads ``p.list_grad()`` sees true gradients, and has them unscaled."""
        return {p.name: list.copy(p._grad) for p in self.params}

    def zero(self):
        for p in self.params:
            p.zero_grad()

    def set_weight(self, name, values):
        (p,) = (p for p in self.params if p.name == name)
        p.set_data(in_dtype(mx.nd.array(values).reshape(p.shape), p.data().dtype))


class Trainer(Parameters):
    """`mxmp.gluon.Trainer`."""

    def make(self, optimizer, options):
        self.make_params()
        self.owner = self.make_trainer(optimizer, options)

    def make_trainer(self, optimizer, options):
        return mxmp.gluon.Trainer(self.params, optimizer, options, self.kvstore, loss_scale=self.given)

    def scale_loss(self, loss):
        return self.owner.scale_loss(loss)

    def backward(self, x=0.25):
        with autograd.record():
            losses = self.losses(x)
        with self.scale_loss(losses) as scaled:
            autograd.backward(scaled)

    def scale_twice(self):
        with self.scale_loss(self.losses(0.5)) as scaled, self.scale_loss(scaled):
            pass

    def scale_alone(self):
        """Scale a loss, and run no backward."""
        with autograd.record():
            losses = self.losses(0.5)
        with self.scale_loss(losses):
            pass

    optimizer = property(lambda self: self.owner.optimizer)


class ContribAmp(Trainer):
    """A trainer of MXNet with `mxmp.amp.init_trainer`, as contrib.amp's users have it."""

    thin = THIN

    def make_trainer(self, optimizer, options):
        trainer = gluon.Trainer(self.params, optimizer, options, self.kvstore)
        amp.init()
        try:
            amp.init_trainer(trainer, self.given)
        finally:
            amp.disable()
        return trainer

    def scale_loss(self, loss):
        return amp.scale_loss(loss, self.owner)

    def unscale(self):
        amp.unscale(self.owner)


class Apex(Trainer):
    """`mxmp.initialize` with two losses, each with a scale of its own; the second is in use."""

    thin = THIN
    lacks = {
        "None": "amp.initialize wants a level without a loss scale, O0, for that",
        "one read of a skip": "a second one sees which of the losses overflowed",
    }

    def make_trainer(self, optimizer, options):
        trainer = gluon.Trainer(self.params, optimizer, options, self.kvstore)
        net = gluon.nn.HybridSequential()
        amp.initialize(net, trainer, "O1", num_losses=2, loss_scale=self.given)
        return trainer

    def scale_loss(self, loss):
        return amp.scale_loss(loss, self.owner, loss_id=1)

    @property
    def scale(self):
        return amp.state_dict(self.owner)["loss_scaler0"]["loss_scales"][1]["value"]


class Shared(Trainer):
    """A trainer whose scale is a `SharedLossScale`, updated after each step."""

    thin = THIN
    lacks = {"log": "the scale does not move at the step; `test_shared_loss_scale` has its lines"}

    def make_trainer(self, optimizer, options):
        self.shared = mxmp.gluon.SharedLossScale(self.given)
        return mxmp.gluon.Trainer(self.params, optimizer, options, self.kvstore, loss_scale=self.shared)

    def step(self):
        taken = self.owner.step(1)
        self.shared.update()
        return taken


class Keras(Parameters):
    """`mxmp.optimizer.LossScaleOptimizer`."""

    names = {"scale_loss": "get_scaled_loss", "unscale": "get_unscaled_gradients", "step": "apply_gradients"}
    lacks = {
        "None": "Keras's optimizer always has a scale",
        "options": "Keras's optimizer has a growth interval, but no factors, bounds or floor",
        "clip": "Keras's optimizer clips nothing by itself: users clip what get_unscaled_gradients returns",
        "kvstore": "it sums over contexts itself",
    }
    sums_early = False
    waits = True  # for arrays whose memory it compares

    def make(self, optimizer, options):
        self.make_params()
        inner = mx.optimizer.create(optimizer, **options)
        dynamic = isinstance(self.given, DynamicLossScale)
        steps = self.given.growth_interval if dynamic else None
        self.owner = mxmp.optimizer.LossScaleOptimizer(inner, dynamic, self.given.value, steps)
        self.owner.build(self.params)
        self.unscaled = None

    def backward(self, x=0.25):
        with autograd.record():
            scaled = self.owner.get_scaled_loss(self.losses(x))
        autograd.backward(scaled)

    def scale_twice(self):
        self.owner.get_scaled_loss(self.owner.get_scaled_loss(self.losses(0.5)))

    def scale_alone(self):
        with autograd.record():
            self.owner.get_scaled_loss(self.losses(0.5))
        self.unscale()

    def gradients(self):
        return dict(zip(self.values, self.unscaled)) if self.unscaled else super().gradients()

    def written(self):
        return self.gradients() if self.unscaled else super().written()

    def unscale(self):
        self.unscaled = self.owner.get_unscaled_gradients([p.list_grad() for p in self.params])

    def step(self):
        if self.unscaled is None:
            self.unscale()
        grads, self.unscaled = self.unscaled, None
        return self.owner.apply_gradients(zip(grads, self.params))

    def discard(self):
        self.unscaled = None
        self.owner.discard_grads()

    optimizer = property(lambda self: self.owner.inner_optimizer)

    @property
    def scale(self):
        return self.owner.loss_scale


class Module(Adapter):
    """`mxmp.module.Module`."""

    names = {"step": "update", "save_states": "save_optimizer_states", "load_states": "load_optimizer_states"}
    lacks = {
        "nesting": "backward scales by itself",
        "one read of a skip": "a second one sees whether the outputs of the loss were finite",
        "losses": "it sees the outputs of its last forward pass alone",
        "bfloat16": "runs on processors with AVX-512 only",
    }
    smallest = 2.0**-24  # its data is of low precision too

    def make(self, optimizer, options):
        rescale = {"rescale_grad": 1.0}  # MXNet divides by the batch otherwise
        self.owner = self.make_module(policy={"float32": "float32", "float16": "O2"}[self.dtype], loss_scale=self.given)
        width = sum(map(len, self.values.values()))
        self.owner.bind([("data", (len(self.contexts), width))], grad_req=self.grad_req)
        args = {f"{name}_weight": mx.nd.array(value.reshape(1, -1)) for name, value in self.values.items()}
        self.owner.init_params(arg_params=args, aux_params={})
        self.owner.init_optimizer(self.kvstore, optimizer, {**options, **rescale})

    def make_module(self, **kwargs):
        return mxmp.module.Module(self.symbol(), label_names=None, context=self.contexts, **kwargs)

    def symbol(self):
        """Return the sum of the products of each weight (1, n) with its columns of the data (rows, all n), (rows, 1)."""
        data, parts, begin = mx.sym.var("data"), [], 0
        for name, values in self.values.items():
            part = mx.sym.slice_axis(data, axis=1, begin=begin, end=begin + len(values))
            weight = mx.sym.var(f"{name}_weight")
            parts.append(mx.sym.FullyConnected(part, weight, num_hidden=1, no_bias=True, flatten=False))
            begin += len(values)
        return mx.sym.MakeLoss(mx.sym.elemwise_add(*parts), name="loss")

    def batch(self, x):
        return mx.io.DataBatch([mx.nd.array(self.matrix(x))], [])

    def backward(self, x=0.25):
        self.owner.forward_backward(self.batch(x))

    def _arrays(self, arrays):
        group = self.group
        found = dict(zip(group.param_names, getattr(group, arrays)))
        return {name: found[f"{name}_weight"] for name in self.values}

    group = property(lambda self: self.owner._exec_group)

    def weights(self):
        return self._arrays("param_arrays")

    def gradients(self):
        return self._arrays("grad_arrays")

    def written(self):
        """Who reads ``grad_arrays`` sees true gradients, and has them unscaled."""
        return {name: list.copy(arrays) for name, arrays in self.gradients().items()}

    def zero(self):
        for arrays in self.gradients().values():
            for array in arrays:
                array[:] = 0

    def set_weight(self, name, values):
        args, aux = self.owner.get_params()
        args = {**args, f"{name}_weight": mx.nd.array(np.reshape(values, (1, -1)))}
        self.owner.set_params(args, aux)

    def step(self):
        return self.owner.update()

    optimizer = property(lambda self: self.owner._optimizer)


class Bucketing(Module):
    """`mxmp.module.BucketingModule`, in its two buckets in turn."""

    thin = THIN
    turn = 0

    def make_module(self, **kwargs):
        def sym_gen(key):
            return self.symbol(), ("data",), None

        return mxmp.module.BucketingModule(sym_gen, 0, context=self.contexts, **kwargs)

    def batch(self, x):
        batch = super().batch(x)
        batch.bucket_key = self.turn
        batch.provide_data, batch.provide_label = [mx.io.DataDesc("data", batch.data[0].shape)], None
        return batch

    def step(self):
        taken = super().step()
        self.turn = 1 - self.turn
        return taken

    group = property(lambda self: self.owner._curr_module._exec_group)
    optimizer = property(lambda self: self.owner._curr_module._optimizer)


ADAPTERS = [Trainer, ContribAmp, Apex, Shared, Keras, Module, Bucketing]
