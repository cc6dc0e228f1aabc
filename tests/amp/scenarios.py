"""What users do with contrib.amp, as functions of the module that they import as ``amp``.

``python -m tests.amp.scenarios`` runs them with mxnet.contrib.amp, which changes its process for good,
and prints the outcomes as JSON; the tests run them with mxmp.amp.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

TWO = [mx.cpu(0), mx.cpu(1)]
HUGE = 3e38  # twice that is no float32


def param(value=1.0, name="w", dtype="float32", ctx=None, grad_req="write"):
    result = gluon.Parameter(name, shape=(1,), dtype=dtype, grad_req=grad_req)
    result.initialize(mx.init.Constant(value), ctx=ctx)
    return result


def trainer_of(amp, params, lr=1.0, **kwargs):
    trainer = gluon.Trainer(params if isinstance(params, list) else [params], "sgd", {"learning_rate": lr}, **kwargs)
    amp.init_trainer(trainer)
    return trainer


def backward(amp, trainer, loss_of):
    """Run one backward pass of the scaled loss; return the scale, seen in the last loss of a list."""
    with autograd.record():
        loss = loss_of()
        with amp.scale_loss(loss, trainer) as scaled:
            autograd.backward(scaled)
    last, scaled = (loss[-1], scaled[-1]) if isinstance(loss, list) else (loss, scaled)
    return float(scaled.asscalar() / last.asscalar())


def error_of(function, *args):
    """Return the name of the error that a call ends with, None if it ends well."""
    try:
        function(*args)
    except Exception as e:
        return type(e).__name__
    return None


def values(p):
    return [float(p.data(ctx).asscalar()) for ctx in p.list_ctx()]


def overflow_on_two_devices(amp):
    w = param(ctx=TWO)
    trainer = trainer_of(amp, w)
    backward(amp, trainer, lambda: [w.data(ctx) * HUGE for ctx in TWO])
    trainer.step(1)
    return values(w)


def scales_while_backing_off(amp):
    w = param()
    trainer = trainer_of(amp, w, lr=0.0)
    slope, scales = 1.5 * 2.0**117, []  # overflows with a scale above 2**10
    for _ in range(9):
        scales.append(math.log2(backward(amp, trainer, lambda: [(w.data() - 1) * slope, w.data() * 1.0])))
        trainer.step(1)
    return scales


def gradients_that_stay_infinite(amp):
    w = param()
    trainer = trainer_of(amp, w)
    for step in range(1, 1201):
        with autograd.record():
            loss = mx.nd.sqrt(w.data() - 1)  # 0, with an infinite slope
            error = error_of(scaled_backward, amp, loss, trainer) or error_of(trainer.step, 1)
        if error:
            return step, error
    return step, None


def scaled_backward(amp, loss, trainer):
    with amp.scale_loss(loss, trainer) as scaled:
        scaled.backward()


def overflow_on_the_second_device_alone(amp):
    w = param(ctx=TWO)
    trainer = trainer_of(amp, w, kvstore=None)
    backward(amp, trainer, lambda: [w.data(TWO[0]) * 1.0, w.data(TWO[1]) * HUGE])
    trainer.step(1)
    return values(w)


def two_trainers_of_one_loss(amp):
    a, b = param(name="a"), param(name="b")
    first, second = trainer_of(amp, a), trainer_of(amp, b)
    backward(amp, first, lambda: a.data() * b.data())
    first.step(1)
    return error_of(second.step, 1), values(b)


def step_without_scale_loss(amp):
    w = param()
    trainer = trainer_of(amp, w)
    backward(amp, trainer, lambda: w.data() * 0.1)
    trainer.step(1)
    before = values(w)[0]
    with autograd.record():
        loss = w.data() * 0.1
    loss.backward()
    return error_of(trainer.step, 1), before - values(w)[0]


def unscale_after_each_micro_batch(amp):
    w = param(grad_req="add")
    trainer = trainer_of(amp, w)
    for _ in range(2):
        error = error_of(backward, amp, trainer, lambda: w.data() * 1.0)
        if not error:
            amp.unscale(trainer)
    return error, float(w.grad().asscalar())


def clip_elements_after_unscale(amp):
    w = param()
    trainer = trainer_of(amp, w)
    backward(amp, trainer, lambda: w.data() * HUGE)
    amp.unscale(trainer)
    mx.nd.clip(w.grad(), -1, 1, out=w.grad())
    trainer.step(1)
    return values(w)


def scale_after_resuming(amp):
    w = param()
    trainer = trainer_of(amp, w)
    for _ in range(3):
        backward(amp, trainer, lambda: w.data() * HUGE)
        trainer.step(1)
    other = param()
    resumed = trainer_of(amp, other)
    with tempfile.TemporaryDirectory() as folder:
        trainer.save_states(f"{folder}/states")
        resumed.load_states(f"{folder}/states")
    pairs = (trainer, w), (resumed, other)
    return [backward(amp, each, lambda weight=weight: weight.data() * 1.0) for each, weight in pairs]


def float16_loss(amp):
    w = param()
    trainer = trainer_of(amp, w)
    with autograd.record(), amp.scale_loss(mx.nd.Cast(w.data() * 384, dtype="float16"), trainer) as scaled:
        scaled.backward()
        return float(scaled.asscalar())


def gradients_of_two_dtypes(amp):
    a, b = param(name="a"), param(name="b", dtype="float16")
    trainer = trainer_of(amp, [a, b])
    backward(amp, trainer, lambda: a.data() * mx.nd.Cast(b.data(), dtype="float32") / 65536)
    return error_of(trainer.step, 1 / 65536), values(a) + values(b)


def unscale_small_float16_gradients(amp):
    w = param(dtype="float16")
    trainer = trainer_of(amp, w)
    backward(amp, trainer, lambda: mx.nd.Cast(w.data(), dtype="float32") * 2.0**-26)
    amp.unscale(trainer)
    return float(w.grad().asscalar())


def dense(name):
    net = gluon.nn.Dense(2, in_units=3, prefix=f"{name}_")
    net.initialize(mx.init.One())
    return net


X = np.full((1, 3), 1.001, np.float32)  # no float16


def run_and_count_casts(net, x):
    """Call a net; return the number of casts in the graph that ran."""
    net(x).wait_to_read()
    nodes = json.loads(net._cached_graph[1].tojson(remove_amp_cast=False))["nodes"]
    return sum(node["op"] in ("Cast", "amp_cast") for node in nodes)


def build_before_init():
    """Return nets that the operators patched by contrib.amp do not reach."""
    hybridized = dense("hybridized")
    hybridized.hybridize()
    hybridized(mx.nd.array(X))
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    block = gluon.SymbolBlock(mx.sym.load_json(symbol.tojson()), mx.sym.var("data"))
    block.initialize(mx.init.One())
    return hybridized, block


def casts_in(nets):
    """Return the casts that run in nets of `build_before_init`, and in one of numpy operators."""
    counts = [run_and_count_casts(net, mx.nd.array(X)) for net in nets]
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = dense("numpy")
        net.hybridize()
        return [*counts, run_and_count_casts(net, mx.np.array(X))]


def eager_dense_on_cpu(amp):
    return error_of(lambda: dense("eager")(mx.nd.array(X)).wait_to_read())


def output_argument(amp):
    out = mx.nd.zeros((1,))
    mx.nd.negative(mx.nd.ones((1,)), out=out)
    return float(out.asscalar())


TRAINING = (
    overflow_on_two_devices,
    scales_while_backing_off,
    gradients_that_stay_infinite,
    overflow_on_the_second_device_alone,
    two_trainers_of_one_loss,
    step_without_scale_loss,
    unscale_after_each_micro_batch,
    clip_elements_after_unscale,
    scale_after_resuming,
    float16_loss,
    gradients_of_two_dtypes,
    unscale_small_float16_gradients,
)


class _Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def main():
    from mxnet.contrib import amp

    found = {}
    nets, convolution = build_before_init(), mx.sym.Convolution
    found["error of init"] = error_of(amp.init, "float16", ["Convolution", "no_such_operator"])
    found["patched by the failed init"] = mx.sym.Convolution is not convolution
    fully_connected = mx.sym.FullyConnected
    amp.init()
    found["patched by the second init"] = mx.sym.FullyConnected is not fully_connected
    amp.amp._amp_initialized = False  # the only way out of it
    amp.init(target_precision_ops=[*amp.list_lp16_ops("float16"), "negative"])
    for scenario in (*TRAINING, eager_dense_on_cpu, output_argument):
        found[scenario.__name__] = scenario(amp)
    found["casts"] = casts_in(nets)
    messages = _Messages()
    logging.getLogger().addHandler(messages)
    head = mx.sym.SoftmaxOutput(mx.sym.var("data"), name="softmax")
    found["warning"] = messages.texts
    found["error of a module"] = error_of(amp.init_trainer, mx.mod.Module(head, context=mx.cpu()))
    x = mx.sym.var("x")
    calls = [mx.sym.Activation(x, "softrelu"), mx.sym.Activation(x, act_type="softrelu")]
    found["softrelu casts"] = [each.tojson(remove_amp_cast=False).count('"op": "amp_cast"') for each in calls]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
