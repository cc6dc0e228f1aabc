"""A run stopped and resumed is bit-identical to one that was not, at every level."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp import Policy
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale, NoOpLossScale
from tests.freeze import scale_of
from tests.gluon.trainer_tools import TWO, snapshot

LEVELS = ["O0", "O1", "O2", "O3", "mixed_bfloat16", "bfloat16"]
RUNS = [pytest.param(level, 1, marks=[pytest.mark.bfloat16] * ("bfloat16" in level)) for level in LEVELS]
STOPS, STEPS = (1, 4), 7
OVERFLOW_AT = 3


def start(level, contexts):
    """Return a net with the same names and values every time, converted, and its trainer."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(3, 3, in_channels=2))
        if len(contexts) == 1:  # MXNet saves the mean of what the contexts have for running statistics
            net.add(nn.BatchNorm(in_channels=3))
        net.add(nn.Activation("relu"), nn.Dense(5, in_units=48))
    mx.random.seed(1)
    net.initialize(mx.init.Xavier(), ctx=contexts)
    convert(net, level)
    wanted = Policy.parse(level).loss_scale
    scale = DynamicLossScale(init_scale=2.0**6, growth_interval=2) if wanted == "dynamic" else wanted
    schedule = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5)
    options = {"learning_rate": 0.01, "lr_scheduler": schedule, "wd": 1e-3}
    return net, Trainer(net.collect_params(), "nadam", options, loss_scale=scale)


def run(net, trainer, contexts, steps):
    """Train on the batches of these numbers and return the losses, one of them lost to an overflow."""
    losses = []
    for step in steps:
        images = mx.nd.array(np.random.RandomState(step).rand(4, 2, 6, 6))
        parts = mx.gluon.utils.split_and_load(images, contexts)
        with autograd.record():
            loss = [mx.nd.square(mx.nd.Cast(net(part), dtype="float32") - 1).mean() for part in parts]
            with trainer.scale_loss(loss) as scaled:
                autograd.backward(scaled)
        if step == OVERFLOW_AT and trainer.loss_scale != NoOpLossScale():
            net[0].bias.grad(contexts[-1])[:] = np.inf
        trainer.step(1)
        losses.append(tuple(part.asscalar() for part in loss))
    return losses


def bits(net, trainer):
    """Return every parameter, statistics included, and all that a skipped step must not touch."""
    values = [array.asnumpy().tobytes() for p in net.collect_params().values() for array in p.list_data()]
    return values, snapshot(trainer), scale_of(trainer)


@pytest.mark.behaviour("a resumed run")
@pytest.mark.parametrize(("level", "contexts"), [*RUNS, ("O2", 2)])
def test_a_run_stopped_and_resumed_is_bit_identical(level, contexts, tmp_path):
    contexts = TWO[:contexts]
    net, trainer = start(level, contexts)
    losses = run(net, trainer, contexts, range(STEPS))

    resumed, again = start(level, contexts)
    found, begin = [], 0
    for stop in (*STOPS, STEPS):
        found += run(resumed, again, contexts, range(begin, stop))
        resumed.save_parameters(str(tmp_path / "net"))
        again.save_states(str(tmp_path / "states"))
        resumed, again = start(level, contexts)
        resumed.load_parameters(str(tmp_path / "net"), ctx=contexts)
        again.load_states(str(tmp_path / "states"))
        begin = stop

    assert found == losses and len(set(losses)) == STEPS
    assert run(resumed, again, contexts, [STEPS]) == run(net, trainer, contexts, [STEPS])
    assert bits(resumed, again) == bits(net, trainer)
    assert trainer.skipped_steps == (trainer.loss_scale != NoOpLossScale())
