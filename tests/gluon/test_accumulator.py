"""Groups of batches that make one step, against the same samples in one large batch."""

from __future__ import annotations

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
from tests.gluon.trainer_tools import TWO, param, sgd, value
from tests.gluon.trainer_tools import backward as backward_of

LOSS = gluon.loss.L2Loss()
BFLOAT16 = pytest.param("bfloat16,output=float32", marks=pytest.mark.bfloat16)


def network(policy="O1", contexts=None, hybridize=False, bias=True):
    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=3, activation="tanh", use_bias=bias), nn.Dense(2, in_units=5, use_bias=bias))
    net.initialize(mx.init.Xavier(), ctx=contexts)
    if hybridize:
        net.hybridize(static_alloc=True)
    return convert(net, policy)


def trainer_of(net, loss_scale=2.0**6, optimizer="sgd", **kwargs):
    options = {"learning_rate": 0.125, **({"momentum": 0.5} if optimizer == "sgd" else {})}
    return Trainer(net.collect_params(), optimizer, options, loss_scale=loss_scale, **kwargs)


def samples(count):
    draw = np.random.RandomState(0)
    return draw.randn(count, 3).astype("float32"), draw.randn(count, 2).astype("float32")


def split(data, *sizes):
    ends = np.cumsum((0, *sizes))
    return [tuple(mx.nd.array(part[a:b]) for part in data) for a, b in zip(ends, ends[1:])]


def backward(net, trainer, x, y, *others):
    with autograd.record():
        loss = LOSS(net(x), y)
    with trainer.scale_loss(loss, *others) as scaled:
        scaled.backward()


def accumulated(net, trainer, batches, steps=2):
    """Train over batches; return what `step` said."""
    accumulator, said = Accumulator(trainer, steps), []
    for x, y in accumulator(batches):
        backward(net, trainer, x, y)
        said.append(accumulator.step(len(x)))
    return said


def large(net, trainer, batches):
    """Train over batches, a step each."""
    for x, y in batches:
        backward(net, trainer, x, y)
        trainer.step(len(x))


def values(net):
    return [value(p.data(p.list_ctx()[0])) for p in net.collect_params().values()]


def assert_same(net, other, rtol=1e-5, atol=1e-6):
    for mine, theirs in zip(values(net), values(other)):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


@pytest.mark.parametrize("hybridize", [False, True], ids=["", "static"])
@pytest.mark.parametrize("policy", ["O1", "O2", "float32", BFLOAT16])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_group_updates_as_one_large_batch(policy, optimizer, hybridize):
    """To the roundings of the additions; those of float16 gradients are of 2**-11 each."""
    data = samples(12)
    nets = [network(policy, hybridize=hybridize) for _ in range(2)]
    said = accumulated(nets[0], trainer_of(nets[0], optimizer=optimizer), split(data, 2, 2, 2, 2, 2, 2), steps=3)
    large(nets[1], trainer_of(nets[1], optimizer=optimizer), split(data, 6, 6))
    assert said == [None, None, True] * 2
    assert_same(*nets, atol={"float32": 1e-6}.get(policy, 2.0**-8 if optimizer == "adam" else 2.0**-10))


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (4, 1, 3, 2, 2), (2, 1)])
def test_batches_count_by_their_samples_and_the_last_group_may_be_smaller(sizes):
    net, other = network("float32"), network("float32")
    data, groups = samples(sum(sizes)), [sum(sizes[k : k + 2]) for k in range(0, len(sizes), 2)]
    said = accumulated(net, trainer_of(net), split(data, *sizes))
    large(other, trainer_of(other), split(data, *groups))
    assert said == [None if k % 2 == 0 and k + 1 < len(sizes) else True for k in range(len(sizes))]
    assert_same(net, other)


def test_several_passes_over_a_loader_begin_with_zeros():
    net, other = network("float32"), network("float32")
    data = samples(6)
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(*map(mx.nd.array, data)), 2)
    trainer = trainer_of(net)
    accumulator = Accumulator(trainer, 2)
    for _ in range(2):
        for x, y in accumulator(loader):
            backward(net, trainer, x, y)
            accumulator.step(len(x))
    large(other, trainer_of(other), split(data, 4, 2) * 2)
    assert_same(net, other)


@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_gradients_of_several_contexts_are_summed_once_a_group(kvstore, monkeypatch):
    net, other = network("float32", TWO), network("float32")
    data = samples(8)
    trainer = trainer_of(net, kvstore=kvstore)
    accumulator, reduced = Accumulator(trainer, 2), []
    monkeypatch.setattr(trainer._gradients, "reduce", lambda r=trainer._gradients.reduce: reduced.append(1) or r())
    for x, y in accumulator(split(data, 4, 4)):
        halves = zip(gluon.utils.split_and_load(x, TWO), gluon.utils.split_and_load(y, TWO))
        with autograd.record():
            losses = [LOSS(net(a), b) for a, b in halves]
        with trainer.scale_loss(losses) as scaled:
            autograd.backward(scaled)
        accumulator.step(4)
    large(other, trainer_of(other), split(data, 8))
    assert reduced == [1]
    assert_same(net, other)


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
        backward_of(trainer, w, row)
        accumulator.step(8)  # of all workers together
    total, last = np.array([2.0, 1.0]), np.array([1.0, 1.0])
    assert engine.asked == 2
    rtol = 1e-6 if dtype == "float32" else 2.0**-10
    np.testing.assert_allclose(value(w.data()), [1, 2] - 4 * total / 24 - 4 * last / 8, rtol=rtol)


def test_several_trainers_of_a_net_step_together():
    net, other = network("float32"), network("float32")
    data, shared = samples(8), SharedLossScale(64)
    trainers = [Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.125}, loss_scale=shared) for layer in net]
    accumulator = Accumulator(trainers, 2)
    for x, y in accumulator(split(data, 2, 2, 2, 2)):
        backward(net, trainers[0], x, y, trainers[1])
        if accumulator.step(len(x)) is not None:
            shared.update()
    large(other, Trainer(other.collect_params(), "sgd", {"learning_rate": 0.125}, loss_scale=64), split(data, 4, 4))
    assert_same(net, other)


def test_clipping_comes_where_a_group_ends():
    net, other = network("float32"), network("float32")
    data = samples(8)
    trainer, plain = trainer_of(net), trainer_of(other)
    accumulator = Accumulator(trainer, 2)
    for x, y in accumulator(split(data, 2, 2, 2, 2)):
        backward(net, trainer, x, y)
        if accumulator.ends_group:
            assert trainer.clip_global_norm(0.1) > 0.1
        accumulator.step(len(x))
    for x, y in split(data, 4, 4):
        backward(other, plain, x, y)
        plain.clip_global_norm(0.1)
        plain.step(len(x))
    assert_same(net, other)


def test_a_group_is_skipped_whole_and_the_next_begins_with_zeros():
    net, other = network("float32"), network("float32")
    data = samples(8)
    trainer = trainer_of(net, DynamicLossScale(init_scale=64))
    accumulator, said = Accumulator(trainer, 2), []
    for k, (x, y) in enumerate(accumulator(split(data, 2, 2, 2, 2))):
        backward(net, trainer, x, y)
        if k == 0:
            net[0].weight.grad()[0, 0] = np.inf
        said.append(accumulator.step(len(x)))
    large(other, trainer_of(other), split(data, 4, 4)[1:])
    assert said == [None, False, None, True] and trainer.loss_scale.value == 32
    assert_same(net, other)


def test_a_loss_that_is_not_finite_drops_the_group():
    net = network("float32")
    trainer, before = trainer_of(net, "dynamic"), values(net)
    accumulator = Accumulator(trainer, 2)
    raised = []
    for x, y in accumulator(split(samples(8), 2, 2, 2, 2)):
        backward(net, trainer, x * (1 if raised else np.nan), y)
        try:
            accumulator.step(len(x))
        except NonFiniteLossError as e:
            raised.append(e)
            for mine, theirs in zip(values(net), before):
                np.testing.assert_array_equal(mine, theirs)
    assert len(raised) == 1 and all(np.isfinite(each).all() for each in values(net))


@pytest.mark.parametrize("before", ["write", "add"])
def test_the_parameters_are_afterwards_as_they_were(before):
    net = network("float32")
    net[0].bias.grad_req = "null"
    for p in (net[0].weight, net[1].weight, net[1].bias):
        p.grad_req = before
    trainer = trainer_of(net)
    accumulator = Accumulator(trainer, 2)
    for x, y in accumulator(split(samples(4), 2, 2)):
        assert [p.grad_req for p in net.collect_params().values()] == ["add", "null", "add", "add"]
        backward(net, trainer, x, y)
        accumulator.step(len(x))
    assert [p.grad_req for p in net.collect_params().values()] == [before, "null", before, before]
    assert not net[0].weight.grad().asnumpy().any()
    backward(net, trainer, *split(samples(2), 2)[0])
    assert trainer.step(2)


def test_parameters_whose_shapes_the_first_batch_tells_are_accumulated():
    net = nn.Dense(2)
    net.initialize(mx.init.One())
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    data = samples(4)
    accumulated(net, trainer, split(data, 2, 2))
    ((x, y),) = split(data, 4)
    gradient = (x.asnumpy().sum(1, keepdims=True) - y.asnumpy()).T @ x.asnumpy() / 2 / 4
    np.testing.assert_allclose(net.weight.data().asnumpy(), 1 - gradient, rtol=1e-5)


@pytest.mark.parametrize("error", [False, True])
def test_a_loop_that_ends_within_a_group_drops_it_and_says_so(error, caplog):
    net, other = network("float32"), network("float32")
    trainer, data = trainer_of(net), samples(8)
    accumulator = Accumulator(trainer, 2)
    with caplog.at_level(logging.WARNING):
        try:
            for k, (x, y) in enumerate(accumulator(split(data, 2, 2, 2, 2))):
                backward(net, trainer, x, y)
                accumulator.step(len(x))
                if k == 2:
                    if error:
                        raise ZeroDivisionError
                    break
        except ZeroDivisionError:
            pass
        gc.collect()
    assert "the loop ended within a group; its 1 batches are dropped" in caplog.text
    assert net[0].weight.grad_req == "write"
    large(net, trainer, split(data, 4, 4)[1:])
    large(other, trainer_of(other), split(data, 4, 4))
    assert_same(net, other)


def test_an_empty_loader_makes_no_step():
    net = network("float32")
    assert accumulated(net, trainer_of(net), []) == []


# ---------------------------------------------------------------------- misuse


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None])
def test_a_wrong_number_of_steps_is_refused(steps):
    with pytest.raises(TrainerError, match="^Accumulator: steps=.*; expected how many batches make a group, 1 or more"):
        Accumulator(trainer_of(network()), steps)


def test_what_is_no_trainer_of_ours_is_refused():
    plain = gluon.Trainer(network().collect_params(), "sgd")
    with pytest.raises(
        TrainerError, match="found a Trainer of mxnet.gluon.trainer; Trainer.adopt makes it one of mxmp"
    ):
        Accumulator(plain, 2)
    with pytest.raises(TrainerError, match="trainer is an empty list; give a trainer of mxmp"):
        Accumulator([], 2)


def test_a_batch_without_a_step_is_an_error():
    net = network()
    trainer = trainer_of(net)
    with pytest.raises(TrainerError, match="no step was made for a batch; call accumulator.step"):
        for x, y in Accumulator(trainer, 2)(split(samples(4), 2, 2)):
            backward(net, trainer, x, y)


def test_steps_out_of_turn_are_errors():
    net = network()
    trainer = trainer_of(net)
    accumulator = Accumulator(trainer, 2)
    with pytest.raises(TrainerError, match="^step was called outside of the loop"):
        accumulator.step(2)
    for x, y in accumulator(split(samples(4), 2, 2)):
        backward(net, trainer, x, y)
        accumulator.step(2)
        with pytest.raises(TrainerError, match="^step was called twice for a batch"):
            accumulator.step(2)
        with pytest.raises(TrainerError, match="a loop of this accumulator is running"):
            next(accumulator([1]))


def test_the_trainers_own_step_is_an_error_in_the_loop():
    net = network()
    trainer = trainer_of(net)
    with pytest.raises(TrainerError, match="the trainer's own step was called in an accumulator's loop"):
        for x, y in Accumulator(trainer, 2)(split(samples(4), 2, 2)):
            backward(net, trainer, x, y)
            trainer.step(2)
    backward(net, trainer, x, y)
    assert trainer.step(2)


def test_a_batch_without_backward_is_an_error():
    trainer = trainer_of(network())
    with pytest.raises(StaleGradientError, match="^step: no parameter has a gradient"):
        accumulator = Accumulator(trainer, 2)
        for x, _ in accumulator(split(samples(4), 2, 2)):
            accumulator.step(len(x))


def test_a_loss_that_was_not_scaled_is_an_error_at_once():
    net = network()
    accumulator = Accumulator(trainer_of(net), 2)
    with pytest.raises(TrainerError, match="^step: the loss of this step was not scaled"):
        for x, y in accumulator(split(samples(4), 2, 2)):
            with autograd.record():
                loss = LOSS(net(x), y)
            loss.backward()
            accumulator.step(len(x))


def test_a_loop_between_backward_and_step_is_an_error():
    net = network()
    trainer = trainer_of(net)
    backward(net, trainer, *split(samples(2), 2)[0])
    with pytest.raises(TrainerError, match="^Accumulator came between backward and step"):
        next(Accumulator(trainer, 2)([1]))
    assert trainer.step(2)


def test_row_sparse_gradients_are_refused_by_name():
    net = nn.Embedding(5, 3, sparse_grad=True)
    net.initialize()
    with pytest.raises(TrainerError, match=f"gradient of parameter '{net.weight.name}' is row_sparse"):
        next(Accumulator(trainer_of(net), 2)([1]))
    assert net.weight.grad_req == "write"


def test_what_cannot_be_looped_over_is_refused():
    with pytest.raises(TrainerError, match="^Accumulator: a int is nothing to loop over"):
        Accumulator(trainer_of(network()), 2)(3)


@pytest.mark.parametrize("size", [0, -1, None, "2"])
def test_a_wrong_batch_size_is_refused(size):
    net = network()
    trainer = trainer_of(net)
    accumulator = Accumulator(trainer, 2)
    for x, y in accumulator(split(samples(2), 2)):
        backward(net, trainer, x, y)
        with pytest.raises(TrainerError, match="^step: batch_size=.*expected a positive number"):
            accumulator.step(size)
        assert accumulator.step(2)


def test_numpy_counts_and_trainers_that_are_given_twice_are_taken():
    net = _one_weight()
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=None)
    before = net.weight.data().asscalar()
    for _ in (accumulator := Accumulator([trainer, trainer], np.int64(2)))([0, 1]):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1)))
        loss.backward()
        accumulator.step(1)
    assert net.weight.data().asscalar() == pytest.approx(before - 1.0)


def _one_weight():
    net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
    net.initialize()
    return net
