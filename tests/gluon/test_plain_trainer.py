"""MXNet's own trainer on a converted net: one warning, where something is lacking."""

import logging

import mxnet as mx
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.gluon import Trainer, convert
from mxmp.optimizer import MultiPrecision
from tests.gluon.trainer_tools import run_backward

X = mx.nd.ones((2, 3))
# MXNet's own warning, at one weight.
pytestmark = pytest.mark.filterwarnings("ignore:Accumulating with float16 in optimizer:UserWarning")

SCALE = "its gradients are not scaled"
MASTERS = "no float32 masters"


@pytest.fixture
def warnings(caplog):
    """Return a function that gives the warnings so far."""
    caplog.set_level(logging.WARNING, "mxmp")
    return lambda: [record.getMessage() for record in caplog.records if "plain" in record.getMessage()]


def make(policy, prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(4, in_units=3), nn.Dense(2, in_units=4))
    net.initialize()
    return convert(net, policy)


def train(net, trainer, steps=5):
    for _ in range(steps):
        with autograd.record():
            loss = net(X).sum()
        run_backward(trainer, loss)
        trainer.step(2)


def plain(net, optimizer="sgd", options=None):
    return gluon.Trainer(net.collect_params(), optimizer, options or {})


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("O1", None, [SCALE]),
        ("O2", None, [SCALE, MASTERS]),
        ("O2", {"multi_precision": True}, [SCALE]),
        ("O2,loss_scale=None", None, [MASTERS]),
    ],
    ids=["O1", "O2", "O2 with MXNet's masters", "O2 without a scale"],
)
def test_it_is_warned_of_once(warnings, policy, options, expected):
    net = make(policy)
    net(X)
    train(net, plain(net, options=options))
    (message,) = warnings()
    assert message.startswith("block 'net' is converted (") and "parameter 'net_dense0_weight'" in message
    assert "plain mx.gluon.Trainer: " in message
    assert "mxmp.gluon.Trainer, or call mxmp.gluon.Trainer.adopt(trainer)" in message
    assert [each for each in (SCALE, MASTERS) if each in message] == expected


@pytest.mark.parametrize(
    "policy",
    ["O0", "O3", "O1,loss_scale=None", "O1,loss_scale=1", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)],
)
def test_nothing_is_said_where_nothing_is_lacking(warnings, policy):
    net = make(policy)
    train(net, plain(net))
    assert not warnings()


@pytest.mark.bfloat16
@pytest.mark.parametrize("policy", ["bfloat16", "O2,compute=bfloat16,param=bfloat16,loss_scale=None"])
def test_mxnet_cannot_update_weights_in_bfloat16(warnings, policy):
    """That error of MXNet's optimizers comes after the warning, at the first read of a weight."""
    net = make(policy)
    plain(net, options={"multi_precision": True})
    with autograd.record():
        net(X)
    (message,) = warnings()
    assert MASTERS in message and "cannot update them" in message
    assert SCALE not in message


def test_masters_and_trainers_of_mxmp_count(warnings):
    net = make("O2,loss_scale=None")
    train(net, gluon.Trainer(net.collect_params(), MultiPrecision(mx.optimizer.SGD())))
    for adopted in (False, True):
        net = make("O2")
        train(net, Trainer.adopt(plain(net), 8) if adopted else Trainer(net, "sgd", loss_scale=8))
    assert not warnings()


def test_a_trainer_that_comes_later_is_found(warnings):
    net = make("O1")
    with autograd.record():
        for _ in range(3):
            net(X)
    train(net, plain(net), 6)
    assert len(warnings()) == 1


def test_inference_and_parts_that_are_not_trained_say_nothing(warnings):
    net = make("O1")
    net[0].collect_params().setattr("grad_req", "null")
    plain(net[0])
    net(X)
    train(net, Trainer(net[1].collect_params(), "sgd", loss_scale=8))
    assert not warnings()


def test_one_trainer_of_several_nets_is_warned_of_once(warnings):
    nets = [make("O1", "a_"), make("O1", "b_")]

    def both(x):
        return nets[0](x) + nets[1](x)

    train(both, gluon.Trainer([p for net in nets for p in net.collect_params().values()], "sgd"))
    assert len(warnings()) == 1
