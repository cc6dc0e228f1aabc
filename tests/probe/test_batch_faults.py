"""What is wrong with a batch though the step is finite: NaN that is swallowed, and class indices that are clipped."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.arrays import amp_cast
from mxmp.diagnose import explain, find_nonfinite
from mxmp.dtypes import NUMPY_BFLOAT16

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
X = mx.nd.array(np.random.RandomState(0).randn(4, 5))


def net(*blocks):
    found = gluon.nn.HybridSequential() if not blocks else gluon.nn.Sequential()
    found.add(*(blocks or (gluon.nn.Dense(3, in_units=5),)))
    found.initialize()
    return found


def head(**attrs):
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    return mx.sym.SoftmaxOutput(scores, name="softmax", **attrs), {"fc_weight": mx.nd.ones((3, 5))}, {}


def picking(name):
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    classes = mx.sym.reshape(mx.sym.var(name), shape=(-1,))
    return mx.sym.MakeLoss(-mx.sym.pick(mx.sym.log_softmax(scores), classes)), {"fc_weight": mx.nd.ones((3, 5))}, {}


def embedding():
    scores = mx.sym.FullyConnected(mx.sym.one_hot(mx.sym.var("data"), depth=4), num_hidden=3, no_bias=True, name="fc")
    return scores, {"fc_weight": mx.nd.ones((3, 8))}, {}


class Masked(gluon.HybridBlock):
    """A loss of labels that are padded with -1."""

    def hybrid_forward(self, F, output, label):
        return -F.pick(F.log_softmax(output), label) * (label >= 0)


class Hot(gluon.HybridBlock):
    """A loss in which a class out of range has a row of zeros, as one_hot defines it."""

    def hybrid_forward(self, F, output, label):
        return -(F.log_softmax(output) * F.one_hot(label, 3)).sum(axis=-1)


class OfArrays(gluon.HybridBlock):
    """A loss that no symbols can be given."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def hybrid_forward(self, F, output, label):
        self.fails(output, label)
        return (output.sum(axis=-1) - label) ** 2


def is_array(output, label):
    assert isinstance(output, mx.nd.NDArray), "arrays alone"


@pytest.mark.parametrize("made", [net, lambda: net(gluon.nn.Dense(4, in_units=5), gluon.nn.Dense(3, in_units=4))])
def test_nan_in_a_label_that_the_loss_clips_is_named(made):
    batch = X, mx.nd.array([0, 1, np.nan, 2])
    verdict = explain(made(), batch, loss=LOSS)
    assert (verdict.kind, verdict.node.name, verdict.node.rows) == ("data", "label", (2,))
    assert "input 'label' holds NaN in 1 of 4 elements, in row 2" in verdict.text
    assert find_nonfinite(made(), batch, loss=LOSS).rows == (2,)


@pytest.mark.parametrize(
    "label, ends, rows", [([0, 1, 3, 2], "from 0 to 3", "row 2"), ([-1, 4, 7, 2], "from -1 to 7", "rows 1, 2")]
)
@pytest.mark.parametrize("dtype", ["float32", "int32", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_a_class_index_that_pick_clips_is_a_hint(label, ends, rows, dtype):
    label = mx.nd.array(label)
    label = amp_cast(label, NUMPY_BFLOAT16) if dtype == "bfloat16" else label.astype(dtype)
    verdict = explain(net(), (X, label), loss=LOSS)
    assert (verdict.kind, verdict.node) == ("no fault found", None)
    hint = f"Besides, label 'label' holds class indices {ends}, expected 0 to 2, in {rows}. Unless the loss masks them, that is a fault"
    assert hint in verdict.text


@pytest.mark.parametrize("name, kind", [("label", "label"), ("action", "input")])
def test_a_class_index_that_pick_clips_is_a_hint_in_a_symbol(name, kind):
    verdict = explain(picking(name), {"data": X, name: mx.nd.array([0, 1, 3, -1])})
    assert verdict.kind == "no fault found" and f"Besides, {kind} '{name}' holds class indices" in verdict.text
    assert "in row 2." in verdict.text


@pytest.mark.parametrize("label, kind", [([0, 1, 3, -1], "data"), ([0, 1, 2, -1], "no fault found")])
def test_a_class_index_out_of_range_of_a_softmax_output_is_bad_data_if_it_is_too_large(label, kind):
    verdict = explain(head(), {"data": X, "softmax_label": mx.nd.array(label)})
    assert verdict.kind == kind
    assert f"label 'softmax_label' holds class indices from -1 to {max(label)}, expected 0 to 2, in row" in verdict.text
    if kind == "data":
        assert (verdict.node.name, verdict.node.classes, verdict.node.rows) == ("softmax_label", 3, (2, 3))


def test_labels_and_inputs_in_bfloat16_are_read():
    label = amp_cast(mx.nd.array([0, 1, 3, 2]), NUMPY_BFLOAT16)
    verdict = explain(head(), {"data": X, "softmax_label": label})
    assert (verdict.kind, verdict.node.name, verdict.node.rows) == ("data", "softmax_label", (2,))
    data = amp_cast(mx.nd.array([[0, 1], [np.nan, 3], [4, 5]]), NUMPY_BFLOAT16)
    weights = {"fc_weight": mx.nd.ones((3, 2))}
    assert find_nonfinite((head()[0].get_internals()["fc_output"], weights, {}), {"data": data}).rows == (1,)


def test_what_is_wrong_with_labels_stands_beside_another_verdict():
    verdict = explain(net(), (X, mx.nd.array([0, 1, 3, 2])), loss=LOSS, loss_scale=2.0**24)
    assert verdict.kind == "scale too high" and "Besides, label 'label' holds class indices" in verdict.text


def picked():
    labels = mx.nd.array([0, 1, 2, 0])
    weight = mx.nd.array([[1], [1], [1], [0]])
    yield "all in range", lambda: explain(net(), (X, labels), loss=LOSS)
    yield (
        "dense labels",
        lambda: explain(
            net(), (X, mx.nd.ones((4, 3)) * 7), loss=gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
        ),
    )
    yield (
        "a loss that reads weights too",
        lambda: explain(net(), (X, [labels - 1, weight]), loss=lambda output, label: LOSS(output, *label)),
    )
    yield (
        "an ignored label",
        lambda: explain(head(use_ignore=True, ignore_label=-1), {"data": X, "softmax_label": labels - 1}),
    )
    yield "probabilities", lambda: explain(head(), {"data": X, "softmax_label": mx.nd.ones((4, 3)) * 4})
    padded = mx.nd.array([0, 1, 2, -1])
    yield "padding that is masked", lambda: explain(net(), (X, padded), loss=Masked())
    yield "classes that one_hot has none of", lambda: explain(net(), (X, padded), loss=Hot())
    yield "data that one_hot reads", lambda: explain(embedding(), {"data": mx.nd.array([[0, -1], [1, 9]])})
    yield "a loss that takes a label's row", lambda: explain(net(), (X, labels), loss=OfArrays(lambda _, y: y[1]))
    yield "a loss that asserts arrays", lambda: explain(net(), (X, labels), loss=OfArrays(is_array))
    yield "a regression", lambda: explain(net(), (X, mx.nd.ones((4, 3)) * 99), loss=gluon.loss.L2Loss())


@pytest.mark.parametrize("ask", [pytest.param(ask, id=name) for name, ask in picked()])
def test_no_fault_is_found_in_labels_that_are_right(ask):
    verdict = ask()
    assert verdict.kind == "no fault found" and "Besides" not in verdict.text
