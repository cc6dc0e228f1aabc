"""A block of scale_loss whose backward is forgotten, or called on something else."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import mxmp
from mxmp.errors import StaleGradientError, TrainerError
from mxmp.gluon import Trainer
from mxmp.loss_scale import DynamicLossScale
from tests.gluon.trainer_tools import backward, loss_of, param, sgd, value

NONE = r"^no backward was called on {} times the loss scale\. Run backward on what scale_loss yields"
ITSELF = r"^backward was called on {0} itself, not on {0} times the loss scale"
ANOTHER = r"^no backward was called on loss times the loss scale, but one of another loss, .*parameter '{}'"


def dense(kind):
    """Return a net that runs eagerly, hybridized or converted, and its weights' names."""
    net = nn.Dense(1, in_units=2, use_bias=False, prefix="net_")
    net.initialize(mx.init.One())
    if kind == "hybridized":
        net.hybridize()
    return mxmp.gluon.convert(net, "O1") if kind == "converted" else net


def losses_of(net):
    with autograd.record():
        return net(mx.nd.array([[1.0, 2.0]])).sum(), (net(mx.nd.array([[3.0, 4.0]])) ** 2).sum()


def nothing(*_):
    pass


MISUSES = {
    "none": (nothing, NONE.format("loss")),
    "of the loss": (lambda loss, other: loss.backward(), ITSELF.format("loss")),
    "of the loss, retained": (lambda loss, other: loss.backward(retain_graph=True), ANOTHER.format("net_weight")),
    "of another loss": (lambda loss, other: other.backward(), ANOTHER.format("net_weight")),
}


@pytest.mark.parametrize("kind", ["eager", "hybridized", "converted"])
@pytest.mark.parametrize(("misuse", "message"), MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("scale", [8, 1, DynamicLossScale(init_scale=1024)], ids=["8", "1", "dynamic"])
def test_a_missing_backward_is_an_error_at_the_end_of_the_block(kind, misuse, message, scale):
    net = dense(kind)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=scale)
    loss, other = losses_of(net)
    with pytest.raises(TrainerError, match=message):
        with trainer.scale_loss(loss):
            misuse(loss, other)
    with pytest.raises(TrainerError, match="was not scaled|no parameter has a gradient"):
        trainer.step(1)
    loss, _ = losses_of(net)
    with trainer.scale_loss(loss) as scaled:
        scaled.backward()
    assert trainer.step(1)
    assert net.weight.data().asnumpy().tolist() == [[0, -1]]


RUNS = {
    "method": lambda s, w: s.backward(),
    "function": lambda s, w: autograd.backward([s]),
    "retained": lambda s, w: s.backward(retain_graph=True),
    "twice": lambda s, w: (s.backward(retain_graph=True), s.backward()),
    "with a head gradient": lambda s, w: s.backward(mx.nd.ones(s.shape)),
    "of what is made of it": lambda s, w: of_sum(s),
}


def of_sum(scaled):
    with autograd.record():
        total = scaled.sum() * 1
    total.backward()


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("kind", ["eager", "converted"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_way_to_run_backward_counts(run, kind, dtype):
    net = dense(kind)
    trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, loss_scale=8)
    for number in (1, 2):
        with autograd.record(), trainer.scale_loss(mx.nd.Cast(net(mx.nd.array([[1.0, 2.0]])), dtype=dtype)) as scaled:
            run(scaled, net.weight.data())
        assert trainer.step(1)
        assert net.weight.data().asnumpy().tolist() == [[1 - number, 1 - 2 * number]]


def test_each_of_several_losses_needs_a_backward():
    w = param([0.0], grad_req="add")
    trainer = sgd(w, 8)
    with autograd.record():
        losses = [loss_of(w, 1), (loss_of(w, 2), [loss_of(w, 3)])]
    with pytest.raises(TrainerError, match=NONE.format(r"loss\[1\]\[1\]\[0\]")):
        with trainer.scale_loss(losses) as (first, (second, _)):
            autograd.backward([first, second])
    with autograd.record():
        losses = [loss_of(w, 1), loss_of(w, 2)]
    with pytest.raises(TrainerError, match=ITSELF.format(r"loss\[1\]")):
        with trainer.scale_loss(losses) as (first, _):
            first.backward()
            losses[1].backward()


def test_a_constant_among_the_losses_needs_none():
    w = param([0.0])
    trainer = sgd(w, 8)
    with autograd.record():
        loss = loss_of(w, 1)
    with trainer.scale_loss([loss, mx.nd.ones((1,))]) as scaled:
        with autograd.record():
            total = scaled[0] + scaled[1]
        total.backward()
    assert trainer.step(1)


def test_a_loss_that_was_not_recorded_beside_a_backward_of_another():
    w = param([0.0])
    trainer = sgd(w, 8)
    with autograd.record():
        loss = loss_of(w, 1)
    with pytest.raises(TrainerError, match=ANOTHER.format("w")):
        with trainer.scale_loss(loss.detach()):
            loss.backward()
    with pytest.raises(mx.MXNetError, match="not in a computational graph"):
        with trainer.scale_loss(mx.nd.ones((1,))) as scaled:
            scaled.backward()


def test_a_block_that_fails_leaves_an_earlier_one_alone():
    w = param([0.0], grad_req="add")
    trainer = sgd(w, 8)
    backward(trainer, w, 1)
    with autograd.record():
        loss = loss_of(w, 1)
    with pytest.raises(TrainerError, match=NONE.format("loss")):
        with trainer.scale_loss(loss):
            pass
    assert trainer.step(1)
    assert w.data().asscalar() == -1


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_loss_of_several_trainers(wrong):
    a, b = param([0.0], name="a"), param([0.0], name="b")
    first, second = sgd(a, 8), sgd(b, 8)
    with autograd.record():
        loss, other = loss_of([a, b], 1), loss_of([a, b][wrong], 1)
    with pytest.raises(TrainerError, match=ANOTHER.format("ab"[wrong])):
        with first.scale_loss(loss, second):
            other.backward()
    with autograd.record(), first.scale_loss(loss_of([a, b], 1), second) as scaled:
        scaled.backward()
    assert first.step(1) and second.step(1)


def test_a_trainer_whose_parameters_the_loss_does_not_reach_is_told_so():
    a, b = param([0.0], name="a"), param([0.0], name="b")
    trainer = sgd(b, 8)
    backward(trainer, a, 1)
    with pytest.raises(StaleGradientError, match="step: .*scaled loss, but it depends on no parameter of this trainer"):
        trainer.step(1)
    backward(trainer, b, 1)
    assert trainer.step(1)


def test_without_a_loss_scale_nothing_is_asked():
    w = param([0.0])
    trainer = sgd(w, None)
    with autograd.record():
        loss = loss_of(w, 1)
    with trainer.scale_loss(loss):
        pass
    loss.backward()
    assert trainer.step(1)


def test_a_trainer_without_a_scale_goes_on_in_a_window_that_has_one():
    """Its second loss is multiplied too, since its gradients are unscaled together."""
    a, b = param([0.0], name="a"), param([0.0], grad_req="add", name="b")
    scaling, plain = sgd(a, 8), sgd(b, None)
    with autograd.record(), scaling.scale_loss(loss_of([a, b], 1), plain) as scaled:
        scaled.backward()
    backward(plain, b, 2)
    assert scaling.step(1) and plain.step(1)
    assert (value(a.data()), value(b.data())) == ([-1], [-3])
