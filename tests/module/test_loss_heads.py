"""Loss heads in a module, against plain MXNet: same outputs, gradients times the scale, bit for bit.

Every kind of head is in tests/passes/test_scale_loss.py.
"""

import mxnet as mx
import numpy as np
import pytest

from mxmp.module import Module
from tests.freeze import freeze
from tests.module.tools import grads, params_of

BATCH = 4
DATA, LABEL = mx.sym.var("data"), mx.sym.var("label")
CLASSES, VALUES = {"label": (BATCH,)}, {"label": (BATCH, 6)}
ONES = mx.nd.ones((BATCH, 6))


def fc(name="fc", hidden=6):
    return mx.sym.FullyConnected(DATA, num_hidden=hidden, name=name)


def soft(**attrs):
    return mx.sym.SoftmaxOutput(fc(), LABEL, **attrs)


def squared(**attrs):
    return mx.sym.MakeLoss(mx.sym.square(fc() - LABEL), **attrs)


def linear(**attrs):
    return mx.sym.LinearRegressionOutput(fc(), LABEL, **attrs)


def ssd():
    """The pair of heads of SSD: classes of anchors with an ignore label, and boxes under a mask."""
    label, classes = mx.sym.var("cls_label"), mx.sym.Reshape(fc("cls", 12), shape=(0, 4, 3))
    options = {"ignore_label": -1, "use_ignore": True, "multi_output": True, "normalization": "valid"}
    cls = mx.sym.SoftmaxOutput(classes, label, name="cls_prob", **options)
    error = mx.sym.var("loc_mask") * (fc("loc", 8) - mx.sym.var("loc_label"))
    loc = mx.sym.MakeLoss(mx.sym.smooth_l1(error, scalar=1.0), normalization="valid", name="loc_loss")
    return mx.sym.Group([cls, loc, mx.sym.MakeLoss(label, grad_scale=0, name="shown")])


HEADS = {  # name -> (symbol, shapes of the labels)
    "SoftmaxOutput": (soft, CLASSES),
    "Linear": (linear, VALUES),
    "MakeLoss": (squared, VALUES),
    "SSD": (ssd, {"cls_label": (BATCH, 3), "loc_label": (BATCH, 8), "loc_mask": (BATCH, 8)}),
}


def batch(labels):
    """Return a batch whose labels are classes 1 and 2, with an ignored one for SSD."""
    rng, ranges = np.random.default_rng(0), {"cls_label": (-1, 4), "loc_mask": (0, 2)}
    arrays = [mx.nd.array(rng.integers(*ranges.get(name, (1, 3)), shape)) for name, shape in labels.items()]
    return mx.io.DataBatch([mx.nd.array(rng.normal(size=(BATCH, 5)))], arrays)


def run(cls, symbol, labels, out_grads=None, data=None, **kwargs):
    """Return a module after a forward and a backward pass."""
    module, data = cls(symbol, label_names=list(labels), **kwargs), data or batch(labels)
    module.bind([("data", data.data[0].shape)], list(labels.items()) or None, inputs_need_grad=True)
    module.init_params(arg_params=params_of(symbol, data=data.data[0].shape, **labels)[0])
    module.forward(data, is_train=True)
    module.backward(out_grads)
    return module


@pytest.mark.parametrize("exponent", [9, -3])
@pytest.mark.parametrize("name", HEADS)
def test_float32_gradients_are_the_scale_times_plain_mxnets(name, exponent):
    make, labels = HEADS[name]
    plain, scaled = run(mx.mod.Module, make(), labels), run(Module, make(), labels, **at(2.0**exponent))
    check_scaled(plain, scaled, 2.0**exponent)


def check_scaled(plain, scaled, factor):
    """Check that outputs and gradients of inputs are the same, and gradients of parameters a power of two larger."""
    assert freeze(plain.get_outputs()) == freeze(scaled.get_outputs())
    for name, expected in grads(plain).items():
        assert np.any(expected) and np.array_equal(grads(scaled)[name], expected * factor), name
    assert freeze(scaled.get_input_grads()) == freeze(plain.get_input_grads())


def test_outputs_that_are_infinite_stay_so():
    symbol = mx.sym.LinearRegressionOutput(DATA, LABEL)
    data = mx.io.DataBatch([mx.nd.array([[np.inf, -np.inf, 3e38]])], [mx.nd.zeros((1, 3))])
    (output,) = run(Module, symbol, {"label": (1, 3)}, data=data, **at(2.0**10)).get_outputs()
    assert output.asnumpy().tolist() == data.data[0].asnumpy().tolist()


def at(loss_scale):
    return {"policy": "float32", "loss_scale": loss_scale}


@pytest.mark.parametrize("make, labels", [(soft, CLASSES), (linear, VALUES), (squared, VALUES)])
def test_a_scale_saves_gradients_that_float16_would_flush(make, labels):
    """2**-24 is float16's smallest number; a factor of 2**-30 in the head brings gradients below it."""
    expected = grads(run(mx.mod.Module, make(), labels))["fc_weight"]
    saved, lost = (run(Module, make(grad_scale=2.0**-30), labels, loss_scale=scale) for scale in (2.0**30, 1.0))
    # Operands and the result rounded to float16, sums of 4: a few eps of the largest.
    bound = 8 * np.abs(expected).max() * np.finfo(np.float16).eps
    assert np.abs(grads(saved)["fc_weight"] - expected).max() < bound
    assert not np.any(grads(lost)["fc_weight"])


def test_gradients_given_for_outputs_are_scaled_too():
    """Heads of both kinds in one network: all gradients are of one scale; another backward pass has none given."""
    assert np.any(grads(run(Module, fc("last"), {}, ONES))["last_weight"])  # all that a network without a head has
    blocked = grads(run(Module, mx.sym.Group([soft(), mx.sym.BlockGrad(fc("other"), name="shown")]), CLASSES, **at(8)))
    assert not np.any(blocked["other_weight"]) and np.any(blocked["fc_weight"])
    out, given = mx.sym.Group([soft(), fc("other")]), [ONES, ONES * 0.25]
    check_scaled(run(mx.mod.Module, out, CLASSES, given), run(Module, out, CLASSES, given, **at(32)), 32)


def test_two_modules_in_a_row_pass_true_gradients_on():
    """What a module says of its inputs' gradients is what the one below is given, whatever the scales."""
    lower, upper, found = fc("lower"), mx.sym.SoftmaxOutput(fc("upper"), LABEL), {}
    for cls, options in ((mx.mod.Module, ({}, {})), (Module, (at(16), at(256)))):
        bottom = run(cls, lower, {}, [ONES * 0], **options[0])
        top = run(cls, upper, CLASSES, data=mx.io.DataBatch(bottom.get_outputs(), batch(CLASSES).label), **options[1])
        bottom.backward(top.get_input_grads())
        found[cls] = grads(bottom)["lower_weight"]
    assert np.any(found[Module]) and np.array_equal(found[Module], found[mx.mod.Module] * 16)
