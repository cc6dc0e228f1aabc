"""Batches of shapes alone."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from mxmp.symbol import Checkpoint
from mxmp.tune.speed.inputs import make_batch
from tests.cli.checkpoints import network, params


def test_inputs_are_random_and_labels_zeros():
    symbol = mx.sym.Group([network(), mx.sym.Embedding(mx.sym.var("words"), input_dim=3, output_dim=2, name="embed")])
    args, aux = params(network())
    model = Checkpoint(symbol, {**args, "embed_weight": mx.nd.ones((3, 2))}, aux)
    shapes = {"data": (2, 3, 8, 8), "words": (4, 5), "softmax_label": (2,)}
    found = make_batch(model, shapes, {"words": "int32"})
    assert {name: array.shape for name, array in found.items()} == shapes
    data, words = found["data"].asnumpy(), found["words"].asnumpy()
    assert 0 <= data.min() < 0.1 < 0.9 < data.max() <= 1 and words.dtype == np.int32 and set(words.flat) == {0, 1}
    assert not found["softmax_label"].asnumpy().any()


def test_an_input_that_declares_its_dtype_gets_it():
    words = mx.sym.var("words", dtype="int32")
    model = Checkpoint(
        mx.sym.Embedding(words, mx.sym.var("w"), input_dim=3, output_dim=2), {"w": mx.nd.ones((3, 2))}, {}
    )
    assert make_batch(model, {"words": (2,)}, {})["words"].dtype == np.int32


def test_a_label_is_known_by_the_loss_head_that_reads_it():
    symbol = mx.sym.LinearRegressionOutput(mx.sym.var("data") * mx.sym.var("w"), mx.sym.var("target"))
    model = Checkpoint(symbol, {"w": mx.nd.ones((2,))}, {})
    assert list(make_batch(model, {"data": (2,)}, {})) == ["data"]
    assert not make_batch(model, {"data": (2,), "target": (2,)}, {})["target"].asnumpy().any()
