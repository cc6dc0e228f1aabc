"""Ctrl-C at any line of a step, of a block or of a context: later steps use their own gradients, or raise."""

import contextlib
import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from mxmp.errors import TrainerError
from mxmp.gluon import Accumulator, Trainer, averaged, convert, exact_value
from mxmp.loss_scale import DynamicLossScale
from tests.alone import alone
from tests.freeze import saved_arrays, scale_of
from tests.gluon.nets import Function
from tests.gluon.trainer_tools import LOW, backward, loss_of, param, sgd, value
from tests.stress.interrupts import count_lines, cuts, interrupted

APART = 3  # lines from one cut to the next, where each takes long
CALLS = {
    "unscale": lambda trainer: trainer.unscale(),
    "clip_global_norm": lambda trainer: trainer.clip_global_norm(100.0),
    "step": lambda trainer: trainer.step(1),
    "unscale, step": lambda trainer: (trainer.unscale(), trainer.step(1)),
}


def require_own_gradients(trainer, w):
    """Take steps of which each must use its own gradient, unless one raises: the rate is 1, without momentum."""
    with contextlib.suppress(TrainerError):
        trainer.discard_grads()
        for x in (0.5, 0.25, 2):
            before = exact_value(w).asnumpy()
            backward(trainer, w, x)
            assert trainer.step(1)
            np.testing.assert_array_equal(exact_value(w).asnumpy(), before - x)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_is_cut_leaves_later_steps_their_own_gradients(call, dtype, draw):
    for cut in cuts(1 + draw.randrange(APART), APART, least=100):
        w = param([1.0, 2.0], dtype)
        trainer = sgd(w, 64)
        backward(trainer, w, 8)
        cut(functools.partial(call, trainer))
        require_own_gradients(trainer, w)


def net_with_head():
    """Return a converted net whose loss head gives its weight the gradient (1, 2), and the function of its loss."""
    net = Function(lambda self, F, x, weight: F.MakeLoss(F.sum(x * weight)), {"weight": (2,)})
    net.initialize(mx.init.One())
    convert(net, "O1")

    def recorded():
        with autograd.record():
            return net(mx.nd.array([1, 2]))

    recorded()
    return net, recorded


def cut_blocks_with_heads():
    (net, recorded), (other, recorded_other) = net_with_head(), net_with_head()

    def block():
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    trainer = Trainer(net, "sgd", loss_scale=1024)
    for cut in cuts(least=50):
        loss = recorded()
        cut(block)
        recorded_other().backward()
        np.testing.assert_array_equal(other.weight.grad().asnumpy(), [1, 2])
        trainer.discard_grads()


def test_a_block_that_is_cut_leaves_the_gradients_of_other_nets_unscaled():
    alone(cut_blocks_with_heads)


def cut_beginnings_with_heads():
    """The other net is called before the block, which writes to the array that its head reads."""
    (net, recorded), (other, recorded_other) = net_with_head(), net_with_head()
    trainer = Trainer(net, "sgd", loss_scale=1024)
    for cut in cuts(least=50):
        waiting, block = recorded_other(), trainer.scale_loss(recorded())
        if cut(block.__enter__):
            waiting.backward()
            np.testing.assert_array_equal(other.weight.grad().asnumpy(), [1, 2])
            trainer.discard_grads()


def test_a_block_that_is_cut_while_it_begins_gives_calls_of_other_nets_their_scale_back():
    alone(cut_beginnings_with_heads)


def test_an_accumulators_loop_that_is_cut_leaves_grad_req_and_the_trainers_own_step(draw):
    def run_backward(x):
        with autograd.record():
            loss = loss_of(w, x)
        loss.backward()

    def loop():
        for x in accumulator([8, 8]):
            run_backward(x)
            accumulator.step(1)

    for cut in cuts(1 + draw.randrange(APART), APART, least=100):
        w = param([1.0, 2.0])
        trainer = sgd(w, None)
        accumulator = Accumulator(trainer, 2)
        cut(loop)
        assert w.grad_req == "write"
        trainer.discard_grads()
        before = value(w.data())
        run_backward(0.5)
        assert trainer.step(1)
        np.testing.assert_array_equal(value(w.data()), before - 0.5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_averages_that_are_swapped_in_are_out_again_wherever_that_is_cut(dtype):
    def swap():
        with average.swapped_in():
            pass

    net = nn.Dense(2, in_units=1, use_bias=False)
    net.initialize(mx.init.One())
    net.cast(dtype)
    w = net.weight
    trainer = sgd(w, 64)
    average = averaged(net, decay=0.5)
    backward(trainer, w, 0.5)
    trainer.step(1)
    average.update()
    own = exact_value(w).asnumpy()
    for cut in cuts():
        cut(swap)
        np.testing.assert_array_equal(exact_value(w).asnumpy(), own)
        backward(trainer, w, 0)
        assert trainer.step(1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of files that a cut leaves open
def test_states_whose_load_is_cut_are_all_loaded_or_none(tmp_path):
    """Cut at its last lines, where it changes the trainer."""
    fname = str(tmp_path / "states")

    def trained(steps, scale):
        w = param([1.0, 2.0], "float16")
        trainer = sgd(w, DynamicLossScale(init_scale=scale), lr=1 / steps)
        for _ in range(steps):
            backward(trainer, w, 0.5)
            trainer.step(1)
        return trainer

    def seen(trainer):
        return saved_arrays(trainer.save_states), scale_of(trainer), trainer.optimizer.num_update

    saver = trained(3, 256.0)
    new = seen(saver)
    saver.save_states(fname)
    trainer = trained(1, 16.0)
    old = seen(trainer)
    last = count_lines(lambda: trainer.load_states(fname))
    for line in range(last - 80, last + 1):
        trainer = trained(1, 16.0)
        assert seen(trainer) == old != new
        assert interrupted(functools.partial(trainer.load_states, fname), line)
        with contextlib.suppress(TrainerError):
            assert seen(trainer) in (old, new)


def test_an_adoption_that_is_cut_leaves_a_trainer_of_mxnet_or_one_of_mxmp():
    for cut in cuts():
        w = param([1.0, 2.0])
        trainer = gluon.Trainer([w], "sgd", {"learning_rate": 1.0})
        assert cut(functools.partial(Trainer.adopt, trainer, 64)) or isinstance(trainer, Trainer)
        backward(trainer, w, 0.5)
        trainer.step(1)
        np.testing.assert_array_equal(value(w.data()), [0.5, 1.5])


def test_a_constructor_that_is_cut_leaves_parameters_that_can_be_set_and_trained():
    for cut in cuts():
        w = param([1.0, 2.0])
        cut(functools.partial(sgd, w))
        w.set_data(mx.nd.array([1, 2]))
        trainer = sgd(w, 64)
        backward(trainer, w, 0.5)
        trainer.step(1)
        np.testing.assert_array_equal(value(w.data()), [0.5, 1.5])
