"""Ctrl-C, or any error, at any line of ``convert`` and ``restore``: the net restores to its exact float32 weights."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import mxmp
from mxmp.gluon import convert, export, report, restore, set_policy
from tests.gluon.nets import X, cnn
from tests.stress.interrupts import count_lines, cuts, interrupted


def make():
    net = cnn()
    net.hybridize()
    return net


def state(net):
    params = net.collect_params().values()
    return type(net), net._active, [(p.dtype, p.list_data()[0].asnumpy().tobytes(), p.grad_req) for p in params]


def low(net):
    convert(net, "O2")


def low_and_called(net):
    convert(net, "O2")(X)


# What is done before, what is interrupted, at every how many lines, and how many lines there are at least.
ACTIONS = {
    "convert": (lambda net: None, lambda net, _: convert(net, "O2"), KeyboardInterrupt, 3, 200),
    "convert, an error": (lambda net: None, lambda net, _: convert(net, "O2"), MemoryError, 11, 200),
    "convert to another policy": (low, lambda net, _: convert(net, "O1"), KeyboardInterrupt, 13, 200),
    "convert with a policy within": (lambda net: set_policy(net[3], "float32"), lambda net, _: convert(net, "O2"), KeyboardInterrupt, 11, 200),
    "the first call": (low, lambda net, _: net(X), KeyboardInterrupt, 11, 20),
    "restore": (low_and_called, lambda net, _: restore(net), KeyboardInterrupt, 7, 50),
    "restore before a call": (low, lambda net, _: restore(net), KeyboardInterrupt, 5, 50),
    "export": (low_and_called, lambda net, path: export(net, path), KeyboardInterrupt, 7, 20),
}


@pytest.mark.parametrize("prepare, action, error, every, least", ACTIONS.values(), ids=ACTIONS)
def test_a_net_restores_to_its_float32_weights_after_an_interrupt(prepare, action, error, every, least, draw, tmp_path):
    net = make()
    expected, before = net(X).asnumpy(), state(net)
    for number, cut in enumerate(cuts(1 + draw.randrange(every), every, least)):
        prepare(net)
        cut(lambda: action(net, str(tmp_path / "net")), error)
        set_policy(net[3], None)
        restore(net)
        assert state(net) == before
        assert not [name for block in (net, *net) for name in vars(block) if name.startswith("_mxmp")]
        assert number % 5 or np.array_equal(net(X).asnumpy(), expected)
        assert all(p.grad_req == "null" or p.list_data()[0].grad is not None for p in net.collect_params().values())
        assert not {"forward", "unroll"} & vars(net[3]).keys()


def test_a_conversion_that_is_interrupted_is_not_made_and_a_first_call_can_be_made_again(draw):
    net = make()
    expected, conversions = net(X).asnumpy(), 0
    for number, cut in enumerate(cuts(1 + draw.randrange(19), 19, least=200)):
        cut(lambda: convert(net, "O2"))
        conversions += hasattr(net, "_mxmp_conversion")
        convert(restore(net), "O1")
        interrupted(lambda: net(X), 1 + 19 * number)
        assert 0 < np.abs(net(X).asnumpy() - expected).max() < 0.02
        restore(net)
    assert conversions <= 2


def test_a_net_converted_to_float32_is_that_after_an_interrupt(draw):
    net = make()
    found = []
    for cut in cuts(1 + draw.randrange(40), 40, least=200):
        convert(net, "O0")
        cut(lambda: convert(net, "O2"))
        net(X)
        found.append(report(net).policy)
        restore(net)
    assert set(found[:-2]) == {str(mxmp.Policy())}  # in its last lines the conversion is made
    assert found[-1] == str(mxmp.Policy.parse("O2"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """What is set for a thread while a net is traced or run is as before: other nets run as they did, under their names."""
    other = cnn("O2", prefix="other_")
    part = mx.nd.ones((2, 64))
    outputs = [other(X).asnumpy(), other[3](part).asnumpy()]  # a part of a converted net by itself runs in float32
    yield
    for output, again in zip(outputs, (other(X), other[3](part))):
        np.testing.assert_array_equal(again.asnumpy(), output)
    assert nn.Dense(1, prefix="named_").name == "named"  # in no scope of another block


def test_a_conversion_that_fails_in_its_last_lines_gives_the_one_before_back():
    net, failed = cnn("O2"), 0
    expected = net(X).asnumpy()
    lines = count_lines(lambda: convert(net, "O1"))
    for line in range(lines - 20, lines + 1):
        net = cnn("O2")
        net(X)
        if interrupted(lambda net=net: convert(net, "O1"), line, MemoryError):
            np.testing.assert_array_equal(net(X).asnumpy(), expected)
            failed += report(net).policy.startswith("param=float16")
    assert failed > 5


def test_of_several_nets_all_are_converted_or_none():
    first = cnn("O2")
    with pytest.raises(mxmp.errors.ConvertError, match="found int"):
        mxmp.initialize([first, 7], opt_level="O1")
    first(X)
    assert report(first).policy.startswith("param=float16")
