"""GluonCV's classifiers and SSD, converted and run on CPU."""

import mxnet as mx
import numpy as np
import pytest
from gluoncv.model_zoo import get_model
from mxnet import autograd

from mxmp import Policy
from mxmp.gluon import convert, report, restore
from tests.gluon.nets import initialized
from tests.values import as_float32

pytestmark = pytest.mark.slow

# Without training the signal dies in MobileNets: their logits are below float16's range.
CLASSIFIERS = {
    "cifar_resnet20_v1": 32,
    "se_resnet18_v1": 64,
    "resnest14": 64,
    "densenet121": 224,
    "shufflenet_v2": 224,
}
MIXED_BFLOAT16 = pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)


def images(size, batch=2):
    return mx.nd.array(np.random.RandomState(0).randn(batch, 3, size, size))


def make(name, init="msraprelu", **kwargs):
    return initialized(get_model(name, pretrained=False, **kwargs), init)


@pytest.fixture(scope="module")
def classifier(request):
    """A classifier, images, and its logits before any conversion."""
    net, x = make(request.param), images(CLASSIFIERS[request.param], batch=1)
    return net, x, net(x).asnumpy()


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
@pytest.mark.parametrize("classifier", CLASSIFIERS, indirect=True)
def test_classifier_gives_nearly_the_same_logits(classifier, policy):
    net, x, expected = classifier
    # Relative to the largest logit: some tens of layers, two roundings each, errors of random sign.
    error = np.abs(convert(net, policy)(x).asnumpy() - expected).max()
    assert report(net).without_rule == ()
    assert 0 < error < 32 * 2.0 ** (-8 if "bfloat16" in policy else -11) * np.abs(expected).max()
    np.testing.assert_array_equal(restore(net)(x).asnumpy(), expected)


@pytest.mark.parametrize("policy", ["O1", "O2", MIXED_BFLOAT16])
def test_ssd_trains_and_detects(policy):
    net, x = make("ssd_300_mobilenet0.25_voc", mx.init.Uniform(0.05), pretrained_base=False), images(300)
    shapes = [(out.shape, np.float32) for out in net(x)]
    with autograd.train_mode():
        anchors = net(x)[2].asnumpy()
    convert(net, policy)
    assert [(out.shape, out.dtype) for out in net(x)] == shapes
    with autograd.record():
        classes, boxes, exact = net(x)
        loss = (classes * classes).mean() + boxes.abs().mean()
    loss.backward()
    np.testing.assert_array_equal(exact.asnumpy(), anchors)  # not rounded anywhere
    grads = [as_float32(p.grad()) for p in net.collect_params().values() if p.grad_req != "null"]
    assert all(np.isfinite(grad).all() for grad in grads)
    assert report(net).without_rule == ()
    convolutions = [row for row in report(net).rows if row.op == "Convolution"]
    narrow = [row for row in convolutions if "nothing but padding" in row.reason]  # of the heads on one pixel
    depthwise = [row for row in convolutions if "8 channels, each by itself" in row.reason]
    others = [row for row in convolutions if row not in (*narrow, *depthwise)]
    assert {row.precision for row in others} == {Policy.parse(policy).compute_dtype}
    assert (len(narrow), len(depthwise)) == ((3, 1) if policy == "mixed_bfloat16" else (0, 0))
    assert [(out.shape, out.dtype) for out in restore(net)(x)] == shapes


# Networks with depthwise convolutions, the last one with PixelShuffle behind convolutions.
WITH_LAYOUTS = {
    "mobilenet0.25": {},
    "mobilenetv2_0.25": {},
    "mobile_pose_mobilenetv3_small": {"num_joints": 4, "pretrained_base": False},
}


def output_and_gradient(net, x):
    """Return what a net gives, and the gradients of all its parameters as one vector; BatchNorm is not trained."""
    with autograd.record(train_mode=False):
        out = net(x)
        loss = out.mean()
    loss.backward()
    grads = [as_float32(param.grad()).ravel() for param in net.collect_params().values() if param.grad_req != "null"]
    return out.asnumpy(), np.concatenate(grads).astype("float64")


@pytest.mark.bfloat16
@pytest.mark.parametrize("name", WITH_LAYOUTS)
def test_network_that_has_run_in_float32_runs_and_trains_in_bfloat16(name):
    net, x = make(name, **WITH_LAYOUTS[name]), images(64)
    expected, gradient = output_and_gradient(net, x)
    net.hybridize()
    for _ in range(2):  # the first call leaves the weights in oneDNN's layouts
        net(x).wait_to_read()
    convert(net, "mixed_bfloat16")
    for _ in range(2):
        found, found_gradient = output_and_gradient(net, x)
        assert np.linalg.norm(found - expected) < 0.1 * np.linalg.norm(expected)
        cosine = found_gradient @ gradient / np.linalg.norm(found_gradient) / np.linalg.norm(gradient)
        assert cosine > 0.99
        net(x).wait_to_read()
