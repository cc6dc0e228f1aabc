"""Threads that train at once, each with a step or a net of its own, or one for each device."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.errors import TrainerError
from mxmp.gluon import Trainer, convert, precision
from tests.gluon.nets import Function
from tests.gluon.trainer_tools import TWO, loss_of, param, sgd, value
from tests.stress.pauses import TRAIN, paused

X = mx.nd.ones((1, 1))


def recorded(net, x=X):
    with autograd.record():
        return net(x)


class Head:
    """Trains a net with a loss head, whose weight gets the gradient (1, 2), on a context."""

    def __init__(self, ctx):
        self.net = Function(lambda self, F, x, weight: F.MakeLoss(F.sum(x * weight)), {"weight": (2,)})
        self.net.initialize(mx.init.One(), ctx=ctx)
        convert(self.net, "O1")
        self.x, self.trainer = mx.nd.array([1, 2], ctx=ctx), Trainer(self.net, "sgd", loss_scale=1024)

    def step(self, meanwhile=lambda: None):
        loss = recorded(self.net, self.x)
        with self.trainer.scale_loss(loss) as scaled:
            meanwhile()
            scaled.backward()
        found = value(self.net.weight.grad())
        self.trainer.step(1)
        np.testing.assert_array_equal(found, [1, 2])


def test_heads_of_two_threads_that_run_first_at_once_have_the_scale_of_their_blocks():
    for line in range(1, 60):
        first, second = (Head(mx.cpu(100 + line)) for _ in range(2))  # a context that no head has run on
        if not paused(first.step, line, second.step, TRAIN):
            break
        first.step()
        second.step()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_head_may_wait_for_its_backward_while_another_net_with_a_head_steps(threads):
    """MXNet frees with the other's graph what it knows of an array that both read: "The any container is empty"."""
    first, second = Head(mx.cpu()), Head(mx.cpu())
    loss = recorded(first.net, first.x)
    if threads == 2:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(second.step).result()
    else:
        second.step()
    with first.trainer.scale_loss(loss) as scaled:
        scaled.backward()
    np.testing.assert_array_equal(value(first.net.weight.grad()), [1, 2])


# In a process of its own, where no loss head has run before.
BLOCK_THAT_IS_LEFT = """
import faulthandler
import threading
import mxmp  # before MXNet, which newer versions of Python need
import mxnet as mx
from tests.gluon.trainer_tools import loss_of, param, sgd
from tests.stress.test_threads_of_steps import Head, autograd

faulthandler.dump_traceback_later(100, exit=True)  # tells where it hangs
entered, left = threading.Event(), threading.Event()
head, w = Head(mx.cpu()), param([1.0])

def other():
    trainer = sgd(w, 8)
    with autograd.record():
        loss = loss_of(w, 1)
    with trainer.scale_loss(loss) as scaled:
        entered.set()
        in_head.wait(2)
        scaled.backward()
    left.set()
    trainer.step(1)

def meanwhile():
    in_head.set()
    left.wait(2)

in_head = threading.Event()
thread = threading.Thread(target=other)
thread.start()
entered.wait()
head.step(meanwhile)
thread.join()
"""


def test_a_block_that_one_thread_leaves_does_not_unscale_the_head_of_another():
    done = subprocess.run([sys.executable, "-c", BLOCK_THAT_IS_LEFT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_block_of_a_net_that_runs_as_written_in_one_thread_stays_hybridized_in_another():
    class Noting(nn.Dense):
        def hybrid_forward(self, F, x, *args, **params):
            if F is mx.nd:
                ran.append(threading.get_ident())
                if len(ran) == 1:
                    pool.submit(recorded, block).result(10)
            return super().hybrid_forward(F, x, *args, **params)

    ran, block = [], Noting(1, in_units=1)
    net = nn.HybridSequential()
    net.add(block)
    net.initialize()
    net.hybridize()
    recorded(block)
    convert(net, "O1")
    recorded(net)
    with ThreadPoolExecutor(1) as pool, precision("float32"):
        recorded(net)
    assert ran == [threading.get_ident()]


FORK = """
import os
import threading
import time
import mxmp
import mxnet as mx
from mxnet.gluon import nn
from mxmp.gluon import convert

tracing = threading.Event()

class Slow(nn.Dense):
    def hybrid_forward(self, F, x, *args, **params):
        if F is mx.sym and threading.current_thread() is not threading.main_thread():
            tracing.set()
            time.sleep(1)
        return super().hybrid_forward(F, x, *args, **params)

nets = [convert(kind(1, in_units=1), "O1") for kind in (Slow, nn.Dense)]
for net in nets:
    net.initialize()
x = mx.nd.ones((1, 1))
thread = threading.Thread(target=lambda: nets[0](x).wait_to_read())
thread.start()
tracing.wait()
child = os.fork()
if not child:
    for net in reversed(nets):
        net(x).wait_to_read()
    os._exit(0)
thread.join()
deadline = time.time() + 5
done, status = 0, None
while not done and time.time() < deadline:
    time.sleep(0.1)
    done, status = os.waitpid(child, os.WNOHANG)
if not done:
    os.kill(child, 9)
    os.waitpid(child, 0)
assert done and status == 0, "the child waits for ever"
"""


def test_a_process_that_is_forked_while_another_thread_makes_a_graph_makes_graphs():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_blocks_of_one_trainer_in_two_threads_may_be_open_at_once_or_the_second_is_refused():
    w = param([1.0, 2.0], ctx=TWO)
    trainer, barrier = sgd(w, 64), threading.Barrier(2)

    def work(ctx):
        with autograd.record():
            loss = loss_of(w, 0.25, ctx)
        with trainer.scale_loss(loss) as scaled:
            barrier.wait(2)  # else broken
            scaled.backward()

    with ThreadPoolExecutor(2) as pool:
        errors = [future.exception(30) for future in [pool.submit(work, ctx) for ctx in TWO]]
    if not any(isinstance(error, TrainerError) for error in errors):
        assert errors == [None, None]
        assert trainer.step(1)
        np.testing.assert_array_equal(value(w.data(TWO[0])), [0.5, 1.5])


@pytest.mark.parametrize("by_block", [True, False], ids=["a block for each thread", "one block"])
def test_backward_passes_of_threads_are_told_from_those_of_other_losses(by_block):
    def run(ctx):
        with autograd.record():
            loss = loss_of(w, 0.25, ctx)
        with trainer.scale_loss(loss) as scaled:
            scaled.backward()

    w = param([1.0], ctx=TWO)
    trainer = sgd(w, 64, lr=2.0**-4)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(64):
            if by_block:
                list(pool.map(run, TWO))
            else:
                with autograd.record():
                    losses = [loss_of(w, 0.25, ctx) for ctx in TWO]
                with trainer.scale_loss(losses) as scaled:
                    list(pool.map(lambda each: each.backward(), scaled))
            assert trainer.step(1)
    assert value(w.data(TWO[0])) == [1 - 64 * 0.5 * 2.0**-4]
