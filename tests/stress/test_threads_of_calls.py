"""Threads of which one calls a net while another makes nets and trainers, or calls the same net."""

import mxnet as mx
from mxnet.gluon import nn

from mxmp.diagnose.watch import calls_of
from mxmp.gluon import Trainer, convert
from mxmp.loss_scale import DynamicLossScale
from tests.alone import alone
from tests.gluon.trainer_tools import TWO
from tests.stress.pauses import CALLS, paused
from tests.stress.test_threads_of_steps import X, recorded


def dense():
    """Return a converted net that was called."""
    net = nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.One())
    convert(net, "O1")
    recorded(net)
    return net


def steps_beside_new_nets():
    def step():
        with trainer.scale_loss(recorded(net)) as scaled:
            scaled.backward()
        trainer.step(1)

    net, nets = dense(), [dense()]
    trainer = Trainer(net, "sgd", loss_scale=1)
    for line in range(1, 60):
        if not paused(step, line, lambda: nets.append(dense()), CALLS):
            break
    assert line > 10


def test_a_step_and_a_new_net_of_another_thread_do_not_meet():
    alone(steps_beside_new_nets)


def calls_beside_new_trainers():
    net = dense()
    trainers = [Trainer(net, "sgd", loss_scale=1)]
    for line in range(1, 60):
        if not paused(lambda: recorded(net), line, lambda: trainers.append(Trainer(dense(), "sgd")), CALLS):
            break
    assert line > 10


def test_a_recorded_call_and_a_new_trainer_of_another_thread_do_not_meet():
    alone(calls_beside_new_trainers)


def calls_of_one_net():
    net = dense()
    net.collect_params().reset_ctx(TWO)
    trainer = Trainer(net, "sgd", loss_scale=DynamicLossScale(init_scale=1, max_floor_skips=1))  # which keeps gradients
    for line in range(1, 60):
        there = paused(lambda: recorded(net), line, lambda: recorded(net, X.as_in_context(TWO[1])), CALLS)
        contexts = [call.context for call, zeros in calls_of(trainer).calls if zeros]
        assert sorted(map(str, contexts)) == sorted(map(str, TWO if there else TWO[:1]))
        trainer.discard_grads()
        if not there:
            break
    assert line > 10


def test_calls_of_one_net_by_several_threads_are_all_kept():
    alone(calls_of_one_net)
