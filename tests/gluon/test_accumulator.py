"""Groups of batches that make one step, against the same samples in one large batch."""

import contextlib
import gc
import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.distributed import KVStore
from mxmp.errors import NonFiniteLossError, StaleGradientError, TrainerError
from mxmp.gluon import Accumulator, SharedLossScale, Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from tests.distributed.engines import Twins
from tests.gluon import trainer_tools
from tests.gluon.trainer_tools import TWO, param, run_backward, sgd, value

LOSS = gluon.loss.L2Loss()
BFLOAT16 = pytest.param("bfloat16,output=float32", marks=pytest.mark.bfloat16)


def trained(policy="float32", loss_scale=2.0**6, optimizer="sgd", contexts=None, hybridize=False, **kwargs):
    """Return a net and its trainer; its weights are the same each time."""
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=3, activation="tanh"), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybridize:
        net.hybridize(static_alloc=True)
    convert(net, policy)
    options = {"learning_rate": 0.125, **({"momentum": 0.5} if optimizer == "sgd" else {})}
    return net, Trainer(net, optimizer, options, loss_scale=loss_scale, **kwargs)


def samples(*sizes):
    """Return batches of random samples of these sizes."""
    draw, ends = np.random.RandomState(0), np.cumsum((0, *sizes))
    x, y = draw.randn(ends[-1], 3), draw.randn(ends[-1], 2)
    return [(mx.nd.array(x[a:b]), mx.nd.array(y[a:b])) for a, b in zip(ends, ends[1:])]


def backward(net, trainer, x, y, *others):
    with autograd.record():
        loss = LOSS(net(x), y)
    run_backward(trainer, loss, *others)


def accumulated(net, trainer, batches, steps=2, passes=1):
    """Train over batches; return what `step` said."""
    accumulator, said = Accumulator(trainer, steps), []
    for _ in range(passes):
        for x, y in accumulator(batches):
            backward(net, trainer, x, y)
            said.append(accumulator.step(len(x)))
    return said


def assert_same(net, batches, atol=1e-6, **options):
    """Check that a net has the weights of one that was trained over batches with a step each."""
    other, trainer = trained(**options)
    for x, y in batches:
        backward(other, trainer, x, y)
        assert trainer.step(len(x))
    for mine, theirs in zip(net.collect_params().values(), other.collect_params().values()):
        mine, theirs = value(mine.list_data()[0]), value(theirs.list_data()[0])
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("hybridize", [False, True], ids=["", "static"])
@pytest.mark.parametrize("policy", ["O1", "O2", "float32", BFLOAT16])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_group_updates_as_one_large_batch(policy, optimizer, hybridize):
    """To the roundings of the additions; those of float16 gradients are of 2**-11 each."""
    options = {"policy": policy, "optimizer": optimizer, "hybridize": hybridize}
    net, trainer = trained(**options)
    assert accumulated(net, trainer, samples(2, 2, 2, 2, 2, 2), steps=3) == [None, None, True] * 2
    atol = {"float32": 1e-6}.get(policy, 2.0**-8 if optimizer == "adam" else 2.0**-10)
    assert_same(net, samples(6, 6), atol, **options)


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (4, 1, 3, 2, 2), (2, 1), ()])
@pytest.mark.parametrize("passes", [1, 2])
def test_batches_count_by_their_samples_and_the_last_group_may_be_smaller(sizes, passes):
    net, trainer = trained()
    said = accumulated(net, trainer, samples(*sizes), passes=passes)
    assert said == [None if k % 2 == 0 and k + 1 < len(sizes) else True for k in range(len(sizes))] * passes
    assert_same(net, samples(*[sum(sizes[k : k + 2]) for k in range(0, len(sizes), 2)]) * passes)


@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_gradients_of_several_contexts_are_summed_once_a_group(kvstore):
    net, trainer = trained(contexts=TWO, kvstore=kvstore)
    accumulator = Accumulator(trainer, 2)
    for x, y in accumulator(samples(4, 4)):
        halves = zip(gluon.utils.split_and_load(x, TWO), gluon.utils.split_and_load(y, TWO))
        with autograd.record():
            losses = [LOSS(net(a), b) for a, b in halves]
        run_backward(trainer, losses)
        accumulator.step(4)
    assert_same(net, samples(8))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_workers_are_asked_once_a_group_and_its_gradients_are_summed_once(dtype):
    class Counting(Twins):
        asked = 0

        def sum(self, key, array, priority):
            self.asked += array.shape == (2,)
            super().sum(key, array, priority)

    w, engine = param([1.0, 2.0], dtype), Counting(4)
    trainer = sgd(w, loss_scale=64, kvstore=KVStore(engine))
    accumulator = Accumulator(trainer, 3)
    for row in accumulator([[0.5, 0.25], [1.0, 0.5], [0.5, 0.25], [1.0, 1.0]]):
        trainer_tools.backward(trainer, w, row)
        accumulator.step(8)  # of all workers together
    total, last = np.array([2.0, 1.0]), np.array([1.0, 1.0])
    assert engine.asked == 2
    rtol = 1e-6 if dtype == "float32" else 2.0**-10
    np.testing.assert_allclose(value(w.data()), [1, 2] - 4 * total / 24 - 4 * last / 8, rtol=rtol)


def test_several_trainers_of_a_net_step_together():
    net, _ = trained()
    shared = SharedLossScale(64)
    trainers = [Trainer(layer, "adam", {"learning_rate": 0.125}, loss_scale=shared) for layer in net]
    accumulator = Accumulator([*trainers, trainers[0]], np.int64(2))  # one that is given twice counts once
    for x, y in accumulator(samples(2, 2, 2, 2)):
        backward(net, trainers[0], x, y, trainers[1])
        if accumulator.step(len(x)) is not None:
            shared.update()
    assert_same(net, samples(4, 4), optimizer="adam")


@pytest.mark.parametrize("look", [False, True], ids=["clip_global_norm", "param.grad()"])
def test_clipping_comes_where_a_group_ends_and_looks_at_gradients_are_true(look):
    found = []
    for steps, sizes in ((2, (2, 2, 2, 2)), (1, (4, 4))):
        net, trainer = trained()
        weights, accumulator = list(net.collect_params().values()), Accumulator(trainer, steps)
        for x, y in accumulator(samples(*sizes)):
            backward(net, trainer, x, y)
            scaled = weights[0].data().grad.asnumpy()
            if accumulator.ends_group and look:
                gluon.utils.clip_global_norm([p.grad() for p in weights], 0.1)
            elif accumulator.ends_group:
                assert trainer.clip_global_norm(0.1) > 0.1
            if accumulator.step(len(x)) is None and look:  # between two batches of a group too
                np.testing.assert_array_equal(weights[0].grad().asnumpy(), scaled / 64)
        found.append(np.concatenate([value(p.data()).ravel() for p in weights]))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_the_mean_gradient_of_a_group_is_clipped_where_it_ends():
    net, trainer = trained()
    accumulator, norms = Accumulator(trainer, 2), []
    for x, y in accumulator(samples(2, 3, 1, 2, 2)):
        backward(net, trainer, x, y)
        norms.append(accumulator.clip_global_norm(0.25, batch_size=len(x)))
        accumulator.step(len(x))
    other, plain = trained()
    for number, (x, y) in zip((1, 3, 4), samples(5, 3, 2)):
        backward(other, plain, x, y)
        norm = gluon.utils.clip_global_norm([p.grad() for p in other.collect_params().values()], 0.25 * len(x))
        assert norms[number] == pytest.approx(norm / len(x), rel=1e-5) and norm / len(x) > 0.25
        assert plain.step(len(x))
    assert norms[0] is norms[2] is None
    for mine, theirs in zip(net.collect_params().values(), other.collect_params().values()):
        np.testing.assert_allclose(value(mine.data()), value(theirs.data()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", ["gradient", "loss"])
def test_a_group_is_dropped_whole_and_the_next_begins_with_zeros(bad):
    net, trainer = trained(loss_scale=DynamicLossScale(init_scale=64))
    accumulator, said = Accumulator(trainer, 2), []
    for k, (x, y) in enumerate(accumulator(samples(2, 2, 2, 2))):
        backward(net, trainer, x * np.nan if k == 0 and bad == "loss" else x, y)
        if k == 0 and bad == "gradient":
            net[0].weight.grad()[0, 0] = np.inf
        with pytest.raises(NonFiniteLossError) if k == 1 and bad == "loss" else contextlib.nullcontext():
            said.append(accumulator.step(len(x)))
    assert said == ([None, None, True] if bad == "loss" else [None, False, None, True])
    assert trainer.loss_scale.value == (64 if bad == "loss" else 32)
    assert_same(net, samples(4, 4)[1:])


@pytest.mark.parametrize("before", ["write", "add"])
def test_the_parameters_are_afterwards_as_they_were(before):
    net, trainer = trained()
    for p in net.collect_params().values():
        p.grad_req = before
    net[0].bias.grad_req = "null"
    accumulator = Accumulator(trainer, 2)
    for x, y in accumulator(samples(2, 2)):
        assert [p.grad_req for p in net.collect_params().values()] == ["add", "null", "add", "add"]
        backward(net, trainer, x, y)
        accumulator.step(len(x))
    assert [p.grad_req for p in net.collect_params().values()] == [before, "null", before, before]
    assert not net[0].weight.grad().asnumpy().any()
    backward(net, trainer, x, y)
    assert trainer.step(2)


def test_parameters_whose_shapes_the_first_batch_tells_are_accumulated():
    net = nn.Dense(2)
    net.initialize(mx.init.One())
    accumulated(net, Trainer(net, "sgd", {"learning_rate": 1.0}, loss_scale=8), samples(2, 2))
    ((x, y),) = samples(4)
    gradient = (x.asnumpy().sum(1, keepdims=True) - y.asnumpy()).T @ x.asnumpy() / 2 / 4
    np.testing.assert_allclose(net.weight.data().asnumpy(), 1 - gradient, rtol=1e-5)


@pytest.mark.parametrize("error", [False, True])
def test_a_loop_that_ends_within_a_group_drops_it_and_says_so(error, caplog):
    net, trainer = trained()
    accumulator = Accumulator(trainer, 2)
    with caplog.at_level(logging.WARNING), contextlib.suppress(ZeroDivisionError):
        for k, (x, y) in enumerate(accumulator(samples(2, 2, 2, 2))):
            backward(net, trainer, x, y)
            accumulator.step(len(x))
            if k == 2 and error:
                raise ZeroDivisionError
            if k == 2:
                break
    gc.collect()
    assert "the loop ended within a group; its 1 batches are dropped" in caplog.text
    assert net[0].weight.grad_req == "write"
    for x, y in samples(4, 4)[1:]:
        backward(net, trainer, x, y)
        assert trainer.step(4)
    assert_same(net, samples(4, 4))


# What is refused.


CALLS = {
    "backward": lambda accumulator, net, trainer, x, y: backward(net, trainer, x, y),
    "not scaled": lambda accumulator, net, trainer, x, y: backward(net, None, x, y),
    "step": lambda accumulator, net, trainer, x, y: accumulator.step(len(x)),
    "step of 0": lambda accumulator, net, trainer, x, y: accumulator.step(0),
    "own step": lambda accumulator, net, trainer, x, y: trainer.step(2),
    "loop": lambda accumulator, net, trainer, x, y: next(accumulator([1])),
}
LOOPS = {
    "backward": (TrainerError, "no step was made for a batch; call accumulator.step"),
    "step": (StaleGradientError, "^step: no parameter has a gradient"),
    "not scaled, step": (TrainerError, "^step: the loss of this step was not scaled"),
    "backward, own step": (TrainerError, "the trainer's own step was called in an accumulator's loop"),
    "backward, step of 0": (TrainerError, "^step: batch_size=0; expected a positive number"),
    "backward, step, step": (TrainerError, "^step was called twice for a batch"),
    "loop": (TrainerError, "a loop of this accumulator is running"),
}


@pytest.mark.parametrize(("calls", "error", "message"), [(calls, *each) for calls, each in LOOPS.items()], ids=LOOPS)
def test_calls_out_of_turn_in_a_loop_are_errors(calls, error, message):
    net, trainer = trained()
    accumulator = Accumulator(trainer, 2)
    with pytest.raises(error, match=message):
        for x, y in accumulator(samples(2, 2)):
            for name in calls.split(", "):
                CALLS[name](accumulator, net, trainer, x, y)
    trainer.discard_grads()
    backward(net, trainer, x, y)
    with pytest.raises(TrainerError, match="^Accumulator came between backward and step"):
        next(Accumulator(trainer, 2)([1]))
    assert trainer.step(2)
