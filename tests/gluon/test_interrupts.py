"""Ctrl-C, or any error, at any line of ``convert`` and ``restore``: the net restores to its exact float32 weights."""

from __future__ import annotations

import itertools
import os
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp.gluon import blocks, convert, export, regions, report, restore, storage

# Where nets and parameters are changed: the passes build new graphs.
CHANGING = tuple(os.path.join(os.path.dirname(mxmp.__file__), name) for name in ("gluon", "train"))
X = mx.nd.array(np.random.RandomState(0).uniform(-1, 1, (2, 3, 8, 8)))


class Residual(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = nn.Conv2D(4, 3, padding=1, in_channels=3)
            self.norm = nn.BatchNorm(in_channels=4)
            self.out = nn.Dense(3, in_units=256)

    def hybrid_forward(self, F, x):
        return self.out(F.relu(self.norm(self.conv(x))))


def make(hybridized=True):
    net = Residual()
    net.initialize(mx.init.Xavier())
    net.hybridize(hybridized)
    return net


def interrupted(action, line, error=KeyboardInterrupt):
    """Whether an action was interrupted at this line of those that change something; it has fewer else."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if not frame.f_code.co_filename.startswith(CHANGING):
            return None
        if event == "line":
            count += 1
            if count == line:
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except error:
        pass
    finally:
        sys.settrace(before)
    return count >= line


def state(net):
    params = net.collect_params().values()
    return type(net), net._active, [(p.dtype, p.list_data()[0].asnumpy().tobytes(), p.grad_req) for p in params]


def require_restores(net, found, expected, line):
    restore(net)
    assert state(net) == found
    assert not [name for block in (net, *net._children.values()) for name in vars(block) if name.startswith("_mxmp")]
    assert line % 5 or np.array_equal(net(X).asnumpy(), expected)
    assert all(p.grad_req == "null" or p.list_data()[0].grad is not None for p in net.collect_params().values())


@pytest.mark.parametrize("error, step", [(KeyboardInterrupt, 1), (MemoryError, 5)])
def test_convert_is_interrupted(error, step):
    net, whole = make(), 0
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1, step):
        went_on = not interrupted(lambda: convert(net, "O2"), line, error)
        whole += hasattr(net, "_mxmp_conversion")
        require_restores(net, found, expected, line)
        if went_on:
            break
    assert line > 200 and (whole <= 2 or error is MemoryError)  # all but the last line take it back


@pytest.mark.parametrize("policy, called", [("O1", False), ("O2", True)])
def test_restore_is_interrupted(policy, called):
    net = make(called)
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1):
        convert(net, policy)
        if called:
            net(X)
        went_on = not interrupted(lambda: restore(net), line)
        require_restores(net, found, expected, line)
        if went_on:
            break
    assert line > 50


def test_converting_to_another_policy_is_interrupted():
    net, whole = make(), 0
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1, 3):
        convert(net, "O2")
        went_on = not interrupted(lambda: convert(net, "O1"), line)
        whole += net._mxmp_conversion.policy == mxmp.Policy.parse("O1")
        require_restores(net, found, expected, line)
        if went_on:
            break
    assert line > 200 and whole <= 2


def test_the_first_call_is_interrupted():
    net = make()
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1):
        convert(net, "O2")
        went_on = not interrupted(lambda: net(X), line)
        converted = net(X).asnumpy()  # called again it runs
        require_restores(net, found, expected, line)
        assert 0 < np.abs(converted - expected).max() < 0.02
        if went_on:
            break


def test_export_is_interrupted(tmp_path):
    net = make()
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1, 2):
        convert(net, "O2")
        net(X)
        went_on = not interrupted(lambda: export(net, str(tmp_path / "net")), line)
        require_restores(net, found, expected, line)
        if went_on:
            break
    assert line > 20


def test_converting_a_net_with_the_policy_of_a_block_is_interrupted():
    net = make()
    expected, found = net(X).asnumpy(), state(net)
    for line in itertools.count(1, 5):
        mxmp.gluon.set_policy(net.out, "float32")
        went_on = not interrupted(lambda: convert(net, "O2"), line)
        mxmp.gluon.set_policy(net.out, None)
        require_restores(net, found, expected, line)
        assert not {"forward", "unroll"} & vars(net.out).keys()
        if went_on:
            break


def test_a_net_converted_to_float32_is_that_after_an_interrupt():
    net = make()
    for line in itertools.count(1, 40):
        convert(net, "O0")
        went_on = not interrupted(lambda: convert(net, "O2"), line)
        assert went_on or report(net).policy == str(mxmp.Policy())
        restore(net)
        if went_on:
            break


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What is set for a thread while a net is traced or run is as before, or other nets run unconverted, or in float32."""
    yield
    assert regions.current_region() is None and not blocks._UNCONVERTED.get()
    assert nn.Dense(1, prefix="named_").name == "named"  # in no scope of another block
    assert not getattr(storage._LOCAL, "reads_stored", False)
