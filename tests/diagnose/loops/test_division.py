"""A gradient that is divided twice by the batch, or by nothing, is found; losses that are normalised otherwise not."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import check_loop

B = 8
RNG = np.random.RandomState(0)
X, Y = mx.nd.array(RNG.randn(B, 6)), mx.nd.array(RNG.randint(0, 4, B))
X10 = mx.nd.array(RNG.randn(10, 6))
TARGET = mx.nd.array(RNG.randn(B, 4))
CE, L2, HUBER = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.L2Loss(), gluon.loss.HuberLoss()
CPUS = [mx.cpu(0), mx.cpu(1)]


def make(prefix="net_", ctx=None):
    net = nn.Dense(4, in_units=6, prefix=prefix)
    net.initialize(ctx=ctx)
    return net


def ours(net):
    return mxmp.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, loss_scale=64.0)


def backward(trainer, loss):
    with trainer.scale_loss(loss) as scaled:
        autograd.backward(list(scaled) if isinstance(scaled, (list, tuple)) else [scaled])


def check(losses, batch_size, net=None):
    """Check a loop whose losses are a function of the net, or a list of these with a backward each."""
    several = isinstance(losses, list)
    net = make(ctx=CPUS if getattr(losses, "__name__", "") == "on_contexts" else None) if net is None else net
    trainer = ours(net)
    if several:
        net.collect_params().setattr("grad_req", "add")

    def loop():
        for each in losses if several else [losses]:
            with autograd.record():
                loss = each(net)
            backward(trainer, loss)
        trainer.step(batch_size)
        if several:
            net.collect_params().zero_grad()

    return check_loop(net, trainer, loop, speed=False)


def by_positives(net, positives=3):
    out = net(X)
    mask = mx.nd.array([1.0] * positives + [0.0] * (B - positives))
    boxes = (mx.nd.smooth_l1(out - TARGET, scalar=1.0) * mask.reshape((-1, 1))).sum()
    return (CE(out, Y).sum() + boxes) / mask.sum()


def by_positives_as_number(net):
    return CE(net(X), Y).sum() / float(mx.nd.array([1, 1, 1, 0]).sum().asnumpy().item())


def masked_mean(net):
    mask = mx.nd.array([1, 1, 1, 1, 1, 0, 0, 0])
    return (CE(net(X), Y) * mask).sum() / mask.sum()


def on_two_contexts(reduce):
    def on_contexts(net):
        parts = zip(*(gluon.utils.split_and_load(each, CPUS) for each in (X, Y)))
        return [reduce(CE(net(x), y)) for x, y in parts]

    return on_contexts


def with_decay(reduce):
    return lambda net: reduce(CE(net(X), Y)) + 0.01 * (net.weight.data() ** 2).sum()


def own_softmax(net):
    out = net(X)
    return (mx.nd.log(mx.nd.exp(out).sum(axis=1)) - mx.nd.pick(out, Y)).mean()


def rows(start):
    return lambda net: CE(net(X[start : start + 2]), Y[start : start + 2]).mean()


TWICE = {
    "mean": (lambda net: CE(net(X), Y).mean(), 8),
    "nd.mean": (lambda net: mx.nd.mean(CE(net(X), Y)), 8),
    "mean along the only axis": (lambda net: CE(net(X), Y).mean(axis=0), 8),
    "mean of squares": (lambda net: ((net(X) - TARGET) ** 2).mean(), 8),
    "mean of sums": (lambda net: ((net(X) - TARGET) ** 2).sum(axis=1).mean(), 8),
    "sum of means": (lambda net: ((net(X) - TARGET) ** 2).mean(axis=0).sum(), 8),
    "root of a mean": (lambda net: L2(net(X), TARGET).mean() + HUBER(net(X), TARGET).mean(), 8),
    "weighted mean": (lambda net: 0.5 * CE(net(X), Y).mean() - net(X).mean() / 10, 8),
    "several": (lambda net: [CE(net(X), Y).mean(), L2(net(X), TARGET).mean(), HUBER(net(X), TARGET).mean()], 8),
    "poisson": (lambda net: gluon.loss.PoissonNLLLoss()(net(X), TARGET), 8),
    "with weight decay": (with_decay(lambda loss: loss.mean()), 8),
    "of two contexts": (on_two_contexts(lambda loss: loss.mean()), 8),
    "python's sum": (lambda net: sum([CE(net(X), Y).mean(), L2(net(X), TARGET).mean()]), 8),
    "own softmax": (own_softmax, 8),
    "accumulated": ([rows(0), rows(2), rows(4)], 6),
    "accumulated, divided": ([lambda net: rows(0)(net) / 4, lambda net: rows(2)(net) / 4, rows(4)], 6),
}


@pytest.mark.parametrize("case", TWICE)
def test_a_batch_that_is_divided_by_twice_is_found(case):
    losses, batch_size = TWICE[case]
    found = check(losses, batch_size)
    assert found.kinds == ("divided_twice",), str(found)
    assert found[0].severity == "warning" and f"step({batch_size}) divides the gradients" in found[0].text


FINE = {
    "mean and 1": (lambda net: CE(net(X), Y).mean(), 1),
    "sum": (lambda net: CE(net(X), Y).sum(), 8),
    "each": (lambda net: CE(net(X), Y), 8),
    "by hand and 1": (lambda net: CE(net(X), Y).sum() / B, 1),
    "each by hand and 1": (lambda net: CE(net(X), Y) / B, 1),
    "several": (lambda net: [CE(net(X), Y), 0.1 * L2(net(X), TARGET)], 8),
    "sum of several": (lambda net: CE(net(X), Y) + L2(net(X), TARGET), 8),
    "mean taken back": (lambda net: CE(net(X), Y).mean() * B, 8),
    "mean taken back in parts": ([lambda net, n=n: rows(n)(net) * 2 for n in (0, 2, 4, 6)], 8),
    "its own half, of two": (lambda net: L2(net(X[:2]), TARGET[:2]), 2),
    "weight, of four": (lambda net: gluon.loss.SoftmaxCrossEntropyLoss(weight=0.25)(net(X[:4]), Y[:4]), 4),
    "two losses, of two": (lambda net: (CE(net(X[:2]), Y[:2]) + CE(2 * net(X[:2]), Y[:2])) / 2, 2),
    "four heads, of four": (lambda net: sum(CE(k * net(X[:4]), Y[:4]) for k in (1, 2, 3, 4)) * 0.25, 4),
    "auxiliary loss, of ten": (lambda net: 0.1 * CE(net(X10), mx.nd.zeros(10)), 10),
    "weighted means of two": ([lambda net: rows(0)(net) / 2, lambda net: rows(2)(net) / 2], 2),
    "sum divided by hand and 1, of two": (lambda net: CE(net(X[:2]), Y[:2]).sum() / 2, 1),
    "by two positives and 1": (lambda net: CE(net(X), Y).sum() / 2, 1),
    "of elements": (lambda net: ((net(X) - TARGET) ** 2).reshape((-1,)), 32),
    "by positives and 1": (by_positives, 1),
    "by positives and batch": (by_positives, 8),
    "by a number of positives": (by_positives_as_number, 8),
    "its mean": (lambda net: by_positives(net).mean(), 8),
    "as many as examples": (lambda net: by_positives(net, B), 8),
    "masked": (masked_mean, 1),
    "masked and batch": (masked_mean, 8),
    "mixed": (lambda net: CE(net(X), Y).sum() + L2(net(X), TARGET).mean(), 8),
    "two contexts": (on_two_contexts(lambda loss: loss), 8),
    "two contexts, sums": (on_two_contexts(lambda loss: loss.sum()), 8),
    "two contexts, means": (on_two_contexts(lambda loss: loss.mean()), 2),
    "two contexts, means halved": (on_two_contexts(lambda loss: loss.mean() / len(CPUS)), 1),
    "two contexts, by hand": (on_two_contexts(lambda loss: loss.sum() / B), 1),
    "accumulated means": ([rows(0), rows(2), rows(4), rows(6)], 4),
    "accumulated sums": ([lambda net: CE(net(X[:4]), Y[:4]), lambda net: CE(net(X[4:]), Y[4:])], 8),
    "accumulated, divided": ([lambda net: rows(0)(net) / 2, lambda net: rows(2)(net) / 2], 1),
    "with weight decay": (with_decay(lambda loss: loss.sum()), 8),
    "batch of one": (lambda net: CE(net(X[:1]), Y[:1]), 1),
    "cosine": (lambda net: mx.nd.norm(net(X) - TARGET), 8),
    "weights of examples": (lambda net: (CE(net(X), Y) * mx.nd.softmax(Y)).sum(), 1),
    "sum of a mean's root": (lambda net: mx.nd.sqrt(L2(net(X), TARGET).mean()).sum(), 1),
}


@pytest.mark.parametrize("case", FINE)
def test_a_loss_that_is_divided_once_is_not_accused(case):
    losses, batch_size = FINE[case]
    found = check(losses, batch_size)
    assert str(found) == "nothing found"


SUMMED = {
    "each": lambda net: CE(net(X), Y),
    "sum": lambda net: CE(net(X), Y).sum(),
    "squares": lambda net: ((net(X) - TARGET) ** 2).sum(),
    "two": lambda net: CE(net(X), Y) + 2 * HUBER(net(X), TARGET),
}


@pytest.mark.parametrize("case", SUMMED)
def test_a_sum_that_nothing_divides_is_noted(case):
    found = check(SUMMED[case], 1)
    assert [(each.kind, each.severity) for each in found] == [("not_divided", "note")]
    assert "a batch of 8" in str(found) and "step(8)" in str(found)


@pytest.mark.parametrize("length", [5, B])
def test_a_mean_over_another_axis_than_the_batch_is_not_accused(length):
    """Of (time, batch): the mean over time of each sequence."""
    net = gluon.rnn.LSTM(4, input_size=3, prefix="lstm_")
    net.initialize()
    steps = mx.nd.array(RNG.randn(length, B, 3))
    loss = gluon.loss.L2Loss(batch_axis=1)
    target = mx.nd.zeros((length, B, 4))
    for each in (lambda net: loss(net(steps), target).sum(), lambda net: net(steps).sum(axis=2).mean(axis=0).sum()):
        assert not check(each, B, net)
    assert check(lambda net: loss(net(steps), target).mean(), B, net).kinds == ("divided_twice",)


@pytest.mark.parametrize("hybridized", [False, True])
def test_converted_nets_and_hybridized_losses_are_seen_through(hybridized):
    net = make("converted_")
    mxmp.gluon.convert(net, "O2")
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    if hybridized:
        loss.hybridize()
    assert check(lambda net: loss(net(X), Y).mean(), B, net).kinds == ("divided_twice",)
    assert not check(lambda net: loss(net(X), Y), B, net)


def test_losses_of_numpy_arrays_are_seen_through():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = make("numpy_")
        loss, x, y = gluon.loss.L1Loss(), mx.np.ones((B, 6)), mx.np.ones((B, 4))
        for each in (
            lambda net: loss(net(x), y).mean(),
            lambda net: mx.np.mean(mx.np.abs(net(x) - y), axis=1).mean(),
        ):
            assert check(each, B, net).kinds == ("divided_twice",)
        assert not check(lambda net: loss(net(x), y), B, net)
        assert check(lambda net: loss(net(x), y), 1, net).kinds == ("not_divided",)


def test_groups_of_an_accumulator_divide_once():
    net = make("groups_")
    trainer = ours(net)
    accumulator = mxmp.gluon.Accumulator(trainer, 2)

    def found(reduce, size):
        with mxmp.diagnose.checking(net, trainer, speed=False) as found:
            for x, y in accumulator([(X, Y)] * 4):
                with autograd.record():
                    loss = reduce(CE(net(x), y))
                backward(trainer, loss)
                accumulator.step(size)
        return found

    assert not found(lambda loss: loss, B)
    assert not found(lambda loss: loss.mean(), 1)
    assert found(lambda loss: loss.mean(), B).kinds == ("divided_twice",)


def test_of_two_contexts_the_number_of_these_is_left_to_divide_by():
    found = check(on_two_contexts(lambda loss: loss.mean()), B)
    assert "4 times smaller" in str(found) and "Call step(2)" in str(found)


def test_the_batch_of_one_of_several_contexts_is_not_that_of_all():
    found = check(on_two_contexts(lambda loss: loss), B // 2)
    assert found.kinds == ("batch_size",) and "batches of 4, 4; give" in str(found)


@pytest.mark.parametrize("counts, kinds", [((5, 7), ()), ((5, 5), ("batch_size",))], ids=["changing", "the same"])
def test_a_number_that_changes_may_count_what_is_not_masked(counts, kinds):
    net, numbers = make(), iter(counts)
    trainer = ours(net)

    def loop():
        count = next(numbers)
        with autograd.record():
            loss = (CE(net(X), Y) * (mx.nd.arange(B) < count)).sum()
        backward(trainer, loss)
        trainer.step(count)

    assert check_loop(net, trainer, loop, speed=False).kinds == kinds


def test_a_step_that_divides_by_no_batch_is_not_said_to_divide_twice():
    """Of 3 workers perhaps, over which a kvstore sums the gradients."""
    assert check(lambda net: CE(net(X), Y).mean(), 3).kinds == ("batch_size",)


@pytest.mark.parametrize("factor", [1 / B, 0.5, 0.1])
@pytest.mark.parametrize("size", [1, B])
def test_a_loss_that_is_divided_by_a_number_is_not_judged(factor, size):
    """What the number is cannot be told: of a batch, a weight, or of examples that count."""
    for losses in (lambda net: CE(net(X), Y) * factor, lambda net: CE(net(X), Y).sum() * factor):
        assert not check(losses, size)
