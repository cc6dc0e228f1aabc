"""Transposed convolutions in recordings, where an error of MXNet's ends the process or stays for what comes after it."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.alone import alone
from tests.gluon.nets import initialized, sequence
from tests.values import as_float32

IMAGE = mx.nd.array(np.random.RandomState(0).randn(2, 3, 8, 8))
CASES = {
    "two axes": (lambda: nn.Conv2DTranspose(6, 4, strides=2, padding=1, in_channels=8), (2, 8, 5, 5)),
    "no bias": (lambda: nn.Conv2DTranspose(6, 3, use_bias=False, in_channels=8), (2, 8, 5, 5)),
    "groups": (lambda: nn.Conv2DTranspose(6, 3, groups=2, in_channels=8), (2, 8, 5, 5)),
    "one channel": (lambda: nn.Conv2DTranspose(6, 3, strides=2, in_channels=1), (2, 1, 5, 5)),
    "one axis": (lambda: nn.Conv1DTranspose(6, 3, strides=2, in_channels=8), (2, 8, 9)),
}


def results(case, policy, hybridizes=True, calls=2):
    """Return the gradients of a net for some calls in one recording, or of the sum of single recordings."""
    make, shape = CASES[case]
    mx.random.seed(0)
    net = make()
    net.initialize(mx.init.Xavier())
    net.collect_params().setattr("grad_req", "add" if calls == 1 else "write")
    net = convert(net, policy) if policy else net
    if hybridizes:
        net.hybridize()
        net(mx.nd.ones(shape)).wait_to_read()  # leaves the weight in a layout of oneDNN's
    images = [mx.nd.array(np.random.RandomState(k).randn(*shape)) for k in range(2)]
    for image in images:
        image.attach_grad()
    for part in (images[:1], images[1:]) if calls == 1 else (images,):
        with autograd.record():
            loss = sum((net(image).square().mean() for image in part), mx.nd.zeros(1))
        loss.backward()
    gradients = [image.grad for image in images] + [param.grad() for param in net.collect_params().values()]
    return [each.asnumpy() for each in gradients]


def check(policy, bound):
    for case in CASES:
        expected = results(case, None, calls=1)  # MXNet adds to an array of the user's
        for hybridizes in (False, True):
            for found, wanted in zip(results(case, policy, hybridizes), expected):
                np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * np.abs(wanted).max(), err_msg=case)


def check_one_in_float32_behind_float16():
    image = mx.nd.array(np.random.RandomState(0).randn(2, 8, 5, 5))
    gradients = []
    for policy in (None, "O1"):
        mx.random.seed(0)
        net = sequence(nn.Conv2D(8, 1, in_channels=8), nn.Conv2DTranspose(6, 3, in_channels=8, prefix="wide_"))
        net.initialize(mx.init.Xavier())
        net.collect_params().setattr("grad_req", "write" if policy else "add")
        if policy:
            convert(net, policy, names={"wide_*": "float32"})
        for _ in range(1 if policy else 2):
            with autograd.record():
                loss = sum(net(image).square().mean() for _ in range(2 if policy else 1))
            loss.backward()
        gradients.append([param.grad().asnumpy() for param in net.collect_params().values()])
    for wanted, found in zip(*gradients):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.01 * np.abs(wanted).max())


def check_one_that_is_called_by_itself():
    for policy in ("O2", "float16"):
        net = initialized(sequence(nn.Conv2DTranspose(4, 3, in_channels=3)))
        convert(net, policy)(IMAGE).wait_to_read()
        with autograd.record():
            output = net[0](IMAGE)
        output.backward()
        np.testing.assert_array_equal(as_float32(net[0].bias.grad()), 2 * 10 * 10)


def train_in_float16():
    check("O1", 0.01)
    check_one_in_float32_behind_float16()
    check_one_that_is_called_by_itself()


def train_in_bfloat16():
    check("mixed_bfloat16", 1e-5)


@pytest.mark.parametrize("train", [train_in_float16, pytest.param(train_in_bfloat16, marks=pytest.mark.bfloat16)])
def test_transposed_convolutions_run_backward_twice_in_a_recording_and_by_themselves(train):
    alone(train, timeout=300)
