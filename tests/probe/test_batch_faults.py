"""What is wrong with a batch though the step is finite: NaN that is swallowed, and class indices that are clipped."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.diagnose import explain, find_nonfinite
from mxmp.probe import batch_faults
from mxmp.symbol.inference import infer_facts, to_graph

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


def hot():
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    classes = mx.sym.one_hot(mx.sym.reshape(mx.sym.var("label"), shape=(-1,)), depth=3)
    return mx.sym.MakeLoss(-mx.sym.log_softmax(scores) * classes), {"fc_weight": mx.nd.ones((3, 5))}, {}


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


@pytest.mark.parametrize("label, rows", [([0, 1, 3, 2], (2,)), ([-1, 1, 7, 2], (0, 2))])
def test_a_class_index_out_of_range_is_named(label, rows):
    verdict = explain(net(), (X, mx.nd.array(label)), loss=LOSS)
    ends = f"from {min(label)} to {max(label)}, expected 0 to 2"
    assert verdict.kind == "data" and verdict.node.rows == rows
    assert f"label 'label' holds class indices {ends}, in row" in verdict.text


@pytest.mark.parametrize("made, name", [(head, "softmax_label"), (hot, "label")])
def test_a_class_index_out_of_range_is_named_in_a_symbol(made, name):
    verdict = explain(made(), {"data": X, name: mx.nd.array([0, 1, 3, 2])})
    assert (verdict.kind, verdict.node.name, verdict.node.classes) == ("data", name, 3)


def test_labels_of_bfloat16_are_read_in_float32():
    """As asnumpy() gives bfloat16: of a dtype that numpy cannot compare."""

    class Labels:
        shape, size, context, dtype = (4,), 4, mx.cpu(), "bfloat16"

        def astype(self, dtype):
            return mx.nd.array([0, 1, 3, 2]).astype(dtype)

        def asnumpy(self):
            return np.zeros(4, np.dtype([("bfloat16", np.uint16)]))

        def as_nd_ndarray(self):
            return self.astype("float32")

    sym = head()[0]
    graph = to_graph(sym)
    facts = infer_facts(sym, graph, {"data": (4, 5)}, {}, frozenset())
    assert batch_faults._in_graph(graph, facts, {"softmax_label": Labels()}).rows == (2,)


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
    yield "a loss that takes a label's row", lambda: explain(net(), (X, labels), loss=OfArrays(lambda _, y: y[1]))
    yield "a loss that asserts arrays", lambda: explain(net(), (X, labels), loss=OfArrays(is_array))
    yield "a regression", lambda: explain(net(), (X, mx.nd.ones((4, 3)) * 99), loss=gluon.loss.L2Loss())


@pytest.mark.parametrize("ask", [pytest.param(ask, id=name) for name, ask in picked()])
def test_no_fault_is_found_in_labels_that_are_right(ask):
    assert ask().kind == "no fault found"
