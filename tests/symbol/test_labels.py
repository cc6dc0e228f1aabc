"""Labels of symbols, by what reads them."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.symbol.arguments import label_names

X, TARGET = mx.sym.var("data"), mx.sym.var("target")
OUT = mx.sym.FullyConnected(X, num_hidden=5, name="fc")


@pytest.mark.parametrize(
    ("symbol", "labels"),
    [
        (mx.sym.SoftmaxOutput(OUT, name="softmax"), {"softmax_label"}),
        (mx.sym.SoftmaxOutput(OUT, TARGET), {"target"}),
        (mx.sym.LinearRegressionOutput(OUT, TARGET), {"target"}),
        (mx.sym.Group([mx.sym.SVMOutput(OUT, TARGET), mx.sym.SoftmaxOutput(OUT, name="sm")]), {"target", "sm_label"}),
        (mx.sym.LinearRegressionOutput(OUT, X), set()),  # data too
        (mx.sym.LinearRegressionOutput(OUT + TARGET, TARGET), set()),
        (mx.sym.MakeLoss(OUT - mx.sym.var("my_label")), {"my_label"}),
        (OUT, set()),
    ],
)
def test_labels_are_what_loss_heads_alone_read_or_what_is_called_so(symbol, labels):
    assert label_names(symbol) == labels
