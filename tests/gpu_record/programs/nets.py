"""The Gluon networks that are recorded, with inputs and losses: small batches, because nothing is computed."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn, rnn

import symbols

CTX = mx.gpu(0)
CROSS_ENTROPY = gluon.loss.SoftmaxCrossEntropyLoss()


class Case(NamedTuple):
    """A net, the shapes of its inputs, and its loss as a function of its outputs and a context."""

    net: gluon.HybridBlock
    shapes: List[Tuple[int, ...]]
    loss: Callable[[Any, Any], Any]


def _cross_entropy(*shape: int) -> Callable[[Any, Any], Any]:
    return lambda out, ctx: CROSS_ENTROPY(out, mx.nd.zeros((len(out), *shape[1:]), ctx=ctx))


def small() -> Case:
    """Return a net with a layer of each of the usual kinds."""
    net = nn.HybridSequential(prefix="small_")
    with net.name_scope():
        net.add(nn.Conv2D(16, 3), nn.BatchNorm(), nn.LeakyReLU(0.1), nn.GlobalAvgPool2D(), nn.Dense(10))
    return Case(net, [(8, 3, 32, 32)], _cross_entropy(8))


def resnet50() -> Case:
    """Return the model zoo's ResNet-50."""
    return Case(gluon.model_zoo.vision.resnet50_v1(classes=1000), [(4, 3, 64, 64)], _cross_entropy(4))


def ssd() -> Case:
    """Return GluonCV's SSD with MobileNet, and its loss."""
    from gluoncv.loss import SSDMultiBoxLoss
    from gluoncv.model_zoo import get_model

    classes = ["a", "b", "c"]
    name = "ssd_512_mobilenet1.0_custom"
    net = get_model(name, classes=classes, pretrained_base=False, norm_layer=nn.BatchNorm)
    multi_box = SSDMultiBoxLoss()

    def loss(out: Any, ctx: Any) -> Any:
        classes, boxes, _ = out
        targets = mx.nd.ones(classes.shape[:2], ctx=ctx, dtype=classes.dtype)
        return multi_box([classes], [boxes], [targets], [mx.nd.zeros_like(boxes)])[0][0]

    return Case(net, [(2, 3, 256, 256)], loss)


def bert() -> Case:
    """Return BERT mini as a SymbolBlock: the network of `symbols` up to its classes."""
    symbol = symbols.get_symbol("bert_mini", num_classes=2, vocab_size=1000)
    logits = symbol.get_internals()["classifier_output"]
    shapes = {"data": (8, 64), "token_types": (8, 64), "valid_length": (8,)}
    inputs = [name for name in logits.list_arguments() if name in shapes]
    net = gluon.SymbolBlock(logits, [mx.sym.var(name) for name in inputs])
    return Case(net, [shapes[name] for name in inputs], _cross_entropy(8))


class LanguageModel(gluon.HybridBlock):
    """Words in, the next words' scores out: an embedding, two LSTM layers, a dense layer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(1000, 128)
            self.lstm = rnn.LSTM(128, 2, layout="NTC", input_size=128)
            self.head = nn.Dense(1000, flatten=False, in_units=128)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.head(self.lstm(self.embed(x)))


def lstm() -> Case:
    """Return a language model."""
    return Case(LanguageModel(), [(8, 35)], _cross_entropy(8, 35))


NETS: Dict[str, Callable[[], Case]] = {f.__name__: f for f in (small, resnet50, ssd, bert, lstm)}
