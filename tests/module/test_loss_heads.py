"""Every loss head, against plain MXNet: same outputs, gradients times the scale, bit for bit."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import PassError, TrainerError
from mxmp.module import Module
from tests.module.tools import grads, params_of

BATCH = 4


DATA = mx.sym.var("data")


def fc(name="fc", hidden=6):
    return mx.sym.FullyConnected(DATA, num_hidden=hidden, name=name)


def ssd():
    """The pair of heads of SSD: classes of anchors with an ignore label, and boxes under a mask."""
    label = mx.sym.var("cls_label")
    classes = mx.sym.Reshape(fc("cls", 12), shape=(0, 4, 3))
    cls = mx.sym.SoftmaxOutput(
        classes, label, ignore_label=-1, use_ignore=True, grad_scale=1.0, multi_output=True,
        normalization="valid", name="cls_prob",
    )  # fmt: skip
    error = mx.sym.var("loc_mask") * (fc("loc", 8) - mx.sym.var("loc_label"))
    loc = mx.sym.MakeLoss(mx.sym.smooth_l1(error, scalar=1.0), grad_scale=1.0, normalization="valid", name="loc_loss")
    return mx.sym.Group([cls, loc, mx.sym.MakeLoss(label, grad_scale=0, name="shown")])


def ctc():
    data = mx.sym.transpose(mx.sym.Reshape(fc("fc", 20), shape=(0, 5, 4)), axes=(1, 0, 2))  # (steps, batch, letters)
    return mx.sym.MakeLoss(mx.sym.CTCLoss(data, mx.sym.var("label")), name="ctc")


def soft(data=None, **attrs):
    return mx.sym.SoftmaxOutput(fc() if data is None else data, mx.sym.var("label"), **attrs)


def on(head, **attrs):
    return head(fc(), mx.sym.var("label"), **attrs)


def error():
    return fc() - mx.sym.var("label")


CLASSES = {"label": (BATCH,)}
PIXELS = {"label": (BATCH, 2)}
VALUES = {"label": (BATCH, 6)}

# Name -> (symbol, shapes of the labels)
HEADS = {
    "SoftmaxOutput": (soft, CLASSES),
    "SoftmaxOutput, out_grad": (lambda: soft(out_grad=True), CLASSES),  # MXNet ignores the output's gradient even so
    "ignore": (lambda: soft(use_ignore=True, ignore_label=2), CLASSES),
    "batch": (lambda: soft(normalization="batch", grad_scale=3.0), CLASSES),
    "valid": (lambda: soft(normalization="valid", use_ignore=True, ignore_label=2, smooth_alpha=0.1), CLASSES),
    "multi_output": (lambda: soft(mx.sym.Reshape(fc(), shape=(0, 3, 2)), multi_output=True), PIXELS),
    "preserve_shape": (lambda: soft(mx.sym.Reshape(fc(), shape=(0, 2, 3)), preserve_shape=True), PIXELS),
    "Linear": (lambda: on(mx.sym.LinearRegressionOutput, grad_scale=0.5), VALUES),
    "Logistic": (lambda: on(mx.sym.LogisticRegressionOutput), VALUES),
    "MAE": (lambda: on(mx.sym.MAERegressionOutput), VALUES),
    "SVM": (lambda: on(mx.sym.SVMOutput, margin=0.5), CLASSES),
    "SVM L1": (lambda: on(mx.sym.SVMOutput, use_linear=True), CLASSES),
    "MakeLoss": (lambda: mx.sym.MakeLoss(mx.sym.square(error()), normalization="batch"), VALUES),
    "make_loss": (lambda: mx.sym.make_loss(mx.sym.square(error())), VALUES),
    "smooth_l1": (lambda: mx.sym.MakeLoss(mx.sym.smooth_l1(error(), scalar=2.0)), VALUES),
    "CTC": (ctc, PIXELS),
    "SSD": (ssd, {"cls_label": (BATCH, 3), "loc_label": (BATCH, 8), "loc_mask": (BATCH, 8)}),
}


def batch(labels, seed=0):
    """Return a batch whose labels are classes 1 and 2, with an ignored one for SSD, or real numbers."""
    rng = np.random.default_rng(seed)
    data = mx.nd.array(rng.normal(size=(BATCH, 5)))
    arrays = []
    for name, shape in labels.items():
        if name == "loc_label" or labels == VALUES:
            arrays.append(rng.normal(size=shape))
        else:
            arrays.append(rng.integers(*{"label": (1, 3), "cls_label": (-1, 4), "loc_mask": (0, 2)}[name], shape))
    return mx.io.DataBatch([data], [mx.nd.array(array) for array in arrays])


def bound(cls, symbol, labels, inputs_need_grad=False, **kwargs):
    module = cls(symbol, label_names=list(labels), **kwargs)
    module.bind([("data", (BATCH, 5))], list(labels.items()) or None, inputs_need_grad=inputs_need_grad)
    module.init_params(arg_params=params_of(symbol, data=(BATCH, 5), **labels)[0])
    return module


@pytest.mark.parametrize("exponent", [0, 9, -3])
@pytest.mark.parametrize("name", HEADS)
def test_float32_gradients_are_the_scale_times_plain_mxnets(name, exponent):
    make, labels = HEADS[name]
    symbol, data = make(), batch(labels)
    plain = bound(mx.mod.Module, symbol, labels, inputs_need_grad=True)
    scaled = bound(Module, symbol, labels, inputs_need_grad=True, policy="float32", loss_scale=2.0**exponent)
    for module in (plain, scaled):
        module.forward_backward(data)
    for expected, found in zip(plain.get_outputs(), scaled.get_outputs()):
        assert found.asnumpy().tobytes() == expected.asnumpy().tobytes()
    expected = grads(plain)
    assert all(np.any(gradient) for gradient in expected.values())
    for key, found in grads(scaled).items():
        assert np.array_equal(found, np.ldexp(expected[key], exponent)), key
    assert np.array_equal(scaled.get_input_grads()[0].asnumpy(), plain.get_input_grads()[0].asnumpy())


SMALL = {
    "SoftmaxOutput": (lambda k: soft(grad_scale=k), CLASSES),
    "Linear": (lambda k: on(mx.sym.LinearRegressionOutput, grad_scale=k), VALUES),
    "MakeLoss": (lambda k: mx.sym.MakeLoss(mx.sym.square(error()), grad_scale=k), VALUES),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_scale_saves_gradients_that_float16_would_flush(name):
    """2**-24 is float16's smallest number; a factor of 2**-30 in the head brings gradients below it."""
    make, labels = SMALL[name]
    data = batch(labels)
    plain = bound(mx.mod.Module, make(1.0), labels)
    saved, lost = (
        bound(Module, make(2.0**-30), labels, policy="O1", loss_scale=loss_scale) for loss_scale in (2.0**30, 1.0)
    )
    for module in (plain, saved, lost):
        module.forward_backward(data)
    expected, found = grads(plain)["fc_weight"], grads(saved)["fc_weight"]
    # Operands and the result rounded to float16, sums of 4: a few eps of the largest.
    assert np.abs(found - expected).max() < 8 * np.abs(expected).max() * np.finfo(np.float16).eps
    assert not np.any(grads(lost)["fc_weight"])


def test_outputs_that_are_blocked_have_no_part_in_it():
    out = mx.sym.Group([soft(), mx.sym.BlockGrad(fc("other"), name="shown")])
    module = bound(Module, out, CLASSES, policy="float32", loss_scale=8)
    module.forward_backward(batch(CLASSES))
    assert not np.any(grads(module)["other_weight"]) and np.any(grads(module)["fc_weight"])


def test_gradients_given_for_outputs_are_scaled_too():
    """Heads of both kinds in one network: all gradients are of one scale."""
    out = mx.sym.Group([soft(), fc("other")])
    given = [mx.nd.ones((BATCH, 6)), mx.nd.ones((BATCH, 6)) * 0.25]
    plain = bound(mx.mod.Module, out, CLASSES, inputs_need_grad=True)
    scaled = bound(Module, out, CLASSES, inputs_need_grad=True, policy="float32", loss_scale=32)
    for module in (plain, scaled):
        module.forward(batch(CLASSES), is_train=True)
        module.backward(given)
    for name, expected in grads(plain).items():
        assert np.any(expected) and np.array_equal(grads(scaled)[name], expected * 32), name
    assert np.array_equal(scaled.get_input_grads()[0].asnumpy(), plain.get_input_grads()[0].asnumpy())


def test_two_modules_in_a_row_pass_true_gradients_on():
    """What a module says of its inputs' gradients is what the one below is given, whatever the scales."""
    lower, upper = fc("lower"), mx.sym.SoftmaxOutput(fc("upper"), mx.sym.var("label"))
    found = {}
    for cls, options in ((mx.mod.Module, [{}, {}]), (Module, [{"loss_scale": 16}, {"loss_scale": 256}])):
        extra = {"policy": "float32"} if cls is Module else {}
        bottom = bound(cls, lower, {}, **options[0], **extra)
        top = cls(upper, label_names=["label"], **options[1], **extra)
        top.bind([("data", (BATCH, 6))], [("label", (BATCH,))], inputs_need_grad=True)
        top.init_params(arg_params=params_of(upper, data=(BATCH, 6), label=(BATCH,))[0])
        bottom.forward(batch({}), is_train=True)
        top.forward(mx.io.DataBatch(bottom.get_outputs(), batch(CLASSES).label), is_train=True)
        top.backward()
        bottom.backward(top.get_input_grads())
        found[cls] = grads(bottom)["lower_weight"]
    assert np.array_equal(found[Module], found[mx.mod.Module] * 16)


def test_a_network_without_a_loss_head_is_an_error_that_names_its_outputs():
    module = bound(Module, fc("last"), {}, policy="O1")
    module.forward(batch({}), is_train=True)
    with pytest.raises(TrainerError, match=r"none of the outputs \['last_output'\] comes from a loss head"):
        module.backward()
    module.backward([mx.nd.ones((BATCH, 6))])
    assert np.any(grads(module)["last_weight"])


class _OwnLoss(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], mx.nd.ones_like(in_data[0]) * 0.75)


@mx.operator.register("mxmp_test_own_loss")
class _OwnLossProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def create_operator(self, ctx, shapes, dtypes):
        return _OwnLoss()


def test_a_custom_operator_is_a_loss_head_if_it_is_named():
    out = mx.sym.Custom(fc(), op_type="mxmp_test_own_loss", name="own")
    with pytest.raises(PassError, match=r"output 'own' \(Custom\) is an operator of yours.*name it in loss_heads"):
        bound(Module, out, {}, policy="O1")
    found = {}
    for scale in (1, 8):
        module = bound(Module, out, {}, policy="float32", loss_scale=scale, loss_heads=["own"])
        module.forward_backward(batch({}))
        found[scale] = grads(module)["fc_bias"]
    assert found[1].tolist() == [0.75 * BATCH] * 6
    assert np.array_equal(found[8], found[1] * 8)
