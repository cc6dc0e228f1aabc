"""Ctrl-C at lines of a comparison or an explanation: the net and its trainer stay whole."""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.diagnose import compare, explain
from mxmp.gluon import convert
from tests.diagnose.nets import L2, backward, data, trainer_of
from tests.stress.interrupts import count_lines, interrupted

X, LABEL = data((4, 6)), mx.nd.ones((4, 2))
APART = 37  # lines from one cut to the next: what puts a net back has hundreds


def made():
    """Return a converted net, its trainer, which moves no weight, and a step of both."""
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(2, in_units=6))
    net.initialize(mx.init.Xavier())
    trainer = trainer_of(convert(net, "O1"), 64.0, learning_rate=0.0)

    def step():
        backward(trainer, lambda: L2(net(X), LABEL))
        trainer.step(4)

    step()
    return net, trainer, step


VERBS = {
    "compare": lambda net, trainer, step: compare(net, X),
    "explain": lambda net, trainer, step: explain(net, (X, LABEL), loss=L2),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_cut_leaves_the_net_its_children_its_parameters_and_its_trainer(verb, draw):
    parts = made()
    output, names = parts[0](X).asnumpy(), list(parts[0].collect_params())
    lines = count_lines(functools.partial(verb, *parts))
    assert lines > 500
    for line in range(1 + draw.randrange(APART), lines, APART):
        net, trainer, step = parts = made()
        interrupted(functools.partial(verb, *parts), line)
        assert not autograd.is_recording() and not autograd.is_training(), line
        assert len(net) == 1 and list(net.collect_params()) == names
        assert all(np.isfinite(param.data().asnumpy()).all() for param in net.collect_params().values())
        np.testing.assert_allclose(net(X).asnumpy(), output, rtol=0.02, atol=0.01)  # in float16 or in float32
        trainer.discard_grads()
        step()
