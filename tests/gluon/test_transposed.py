"""Transposed convolutions that are called twice in a recording, which ends the process in MXNet."""

import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

from mxmp.gluon import convert
from tests.alone import alone
from tests.gluon.nets import sequence

CASES = {
    "two axes": (lambda: nn.Conv2DTranspose(6, 4, strides=2, padding=1, in_channels=8), (2, 8, 5, 5)),
    "no bias": (lambda: nn.Conv2DTranspose(6, 3, use_bias=False, in_channels=8), (2, 8, 5, 5)),
    "adjusted": (lambda: nn.Conv2DTranspose(6, 3, strides=2, output_padding=1, in_channels=8), (2, 8, 5, 5)),
    "groups": (lambda: nn.Conv2DTranspose(6, 3, groups=2, in_channels=8), (2, 8, 5, 5)),
    "a channel a group": (lambda: nn.Conv2DTranspose(16, 3, groups=8, in_channels=8), (2, 8, 5, 5)),
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


@pytest.mark.bfloat16
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "O1"])
def test_a_net_may_be_called_twice_in_a_recording(policy):
    code = f"from tests.gluon.test_transposed import check; check({policy!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def check(policy):
    bound = 0.01 if policy == "O1" else 1e-5
    for case in CASES:
        expected = results(case, None, calls=1)  # MXNet adds to an array of the user's
        for hybridizes in (False, True):
            for found, wanted in zip(results(case, policy, hybridizes), expected):
                np.testing.assert_allclose(found, wanted, rtol=0, atol=bound * np.abs(wanted).max(), err_msg=case)


def run_beside_float16():
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


def test_one_in_float32_behind_float16_may_be_called_twice_in_a_recording():
    alone(run_beside_float16)
