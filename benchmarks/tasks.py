"""What the training benchmark trains: networks, inputs and labels of noise, and an optimizer."""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, Dict, List, NamedTuple, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

import symbols
from benchmarks.common import undecided_inputs
from examples.word_lm.model import INITIALIZER, LanguageModel
from examples.word_lm.settings import Hyperparameters


class Task(NamedTuple):
    """A network, initialized, with one batch.

    Attributes:
        net: Gives logits first, if it gives several outputs.
        inputs: Of the net.
        labels: For softmax cross-entropy on the last axis of the logits.
        optimizer: Name and arguments.
    """

    net: gluon.HybridBlock
    inputs: List[mx.nd.NDArray]
    labels: mx.nd.NDArray
    optimizer: Tuple[str, Dict[str, Any]]


class Case(NamedTuple):
    """How a task is made: from a batch size and the source of its noise; and the usual batch."""

    batch_size: int
    title: str
    make: Callable[[int, np.random.RandomState], Task]


# The labels are noise: small learning rates keep the losses finite for as long as it runs.
SGD = ("sgd", {"learning_rate": 1e-3, "momentum": 0.9, "wd": 1e-4})
ADAM = ("adam", {"learning_rate": 1e-5})

WORDS, LENGTH, CLASSES = 10000, 35, 10
TOKENS, TOKEN_LENGTH = 30522, 128


def make_task(case: Union[str, Case], batch_size: int = 0, seed: int = 0) -> Task:
    """Return a task whose values depend on the seed alone.

    Args:
        case: A case, or a key of `CASES` or `MORE`.
        batch_size: Examples of a step; 0 for the usual number.
        seed: For weights, inputs and labels.
    """
    case = {**CASES, **MORE}[case] if isinstance(case, str) else case
    mx.random.seed(seed)
    task = case.make(batch_size or case.batch_size, np.random.RandomState(seed))
    task.net(*task.inputs)  # completes the shapes, and with them the initialization
    return task


def _classify(make: Callable[[], gluon.HybridBlock], size: int) -> Callable[[int, np.random.RandomState], Task]:
    """Return what makes the task of a network for images of a size."""

    def task(batch_size: int, rng: np.random.RandomState) -> Task:
        net = make()
        net.initialize(mx.init.Xavier())
        images = mx.nd.array(rng.normal(size=(batch_size, 3, size, size)))
        return Task(net, [images], mx.nd.array(rng.randint(0, CLASSES, batch_size)), SGD)

    return task


def classifiers() -> List[str]:
    """Return the names of GluonCV's classifiers of images, those of Gluon's model zoo among them."""
    from gluoncv.model_zoo import get_model_list

    return [name for name in get_model_list() if not re.search(_OTHERS, name)]


def classifier(name: str) -> Case:
    """Return the case of one of `classifiers`, with images of the size and the classes that it was made for."""
    from gluoncv.model_zoo import get_model

    of_cifar = name.startswith("cifar")
    size = 32 if of_cifar else _SIZES.get(name.split("_")[0], 224)
    make = _classify(lambda: get_model(name, pretrained=False), size)
    return Case(32 if of_cifar else 4, f"{name}, {size}x{size}", make)


def _resnet20() -> gluon.HybridBlock:
    from gluoncv.model_zoo import cifar_resnet20_v1  # GluonCV takes seconds to import

    return cifar_resnet20_v1(classes=CLASSES)


def _lstm(batch_size: int, rng: np.random.RandomState) -> Task:
    """Return the medium model of Zaremba et al., "Recurrent Neural Network Regularization", 2014."""
    given = Hyperparameters(LENGTH, hidden=650, layers=2, dropout=0.5, tied=False, clip=0.25, learning_rate=1e-3)
    net = LanguageModel(WORDS, given)
    net.initialize(INITIALIZER)
    words, following = (mx.nd.array(rng.randint(0, WORDS, (batch_size, LENGTH))) for _ in range(2))
    states = [mx.nd.zeros((given.layers, batch_size, given.hidden)) for _ in range(2)]
    return Task(net, [words, *states], following, SGD)


def _bert(batch_size: int, rng: np.random.RandomState, name: str = "bert_small") -> Task:
    """Return a BERT with its classifier."""
    head = symbols.get_symbol(name, num_classes=CLASSES)
    inputs = {
        "data": rng.randint(0, TOKENS, (batch_size, TOKEN_LENGTH)),
        "token_types": rng.randint(0, 2, (batch_size, TOKEN_LENGTH)),
        "valid_length": rng.randint(TOKEN_LENGTH // 2, TOKEN_LENGTH + 1, batch_size),
    }
    logits = head.get_children()[0]  # what the loss head reads
    with undecided_inputs():
        net = gluon.SymbolBlock(logits, [mx.sym.var(name) for name in inputs])
    net.initialize(mx.init.Normal(0.02))
    labels = mx.nd.array(rng.randint(0, CLASSES, batch_size))
    return Task(net, [mx.nd.array(value) for value in inputs.values()], labels, ADAM)


_OTHERS = (
    "ssd|rcnn|yolo|fcn|psp|deeplab|icnet|fastscnn|danet|pose|center_net|int8|kinetics|ucf|hmdb|sthsth|custom|siam|"
    "depth|_voc|_coco|_citys|_ade|hrnet_.*_s$"
)
"""What the names of GluonCV's other networks hold: detectors, segmentation, poses, videos, INT8."""

_SIZES = {"inceptionv3": 299, "xception": 299, "xception71": 299, "nasnet": 331}
"""Height and width of the images of classifiers that were not made for 224, by how their names begin."""

CASES = {
    "resnet20": Case(128, "ResNet-20, 32x32", _classify(_resnet20, 32)),
    "resnet18_v1": Case(
        32, "ResNet-18, 32x32", _classify(lambda: vision.get_resnet(1, 18, thumbnail=True, classes=CLASSES), 32)
    ),
    "resnet50_v1": Case(8, "ResNet-50, 224x224", _classify(lambda: vision.resnet50_v1(classes=CLASSES), 224)),
    "mobilenet1.0": Case(16, "MobileNet, 128x128", _classify(lambda: vision.mobilenet1_0(classes=CLASSES), 128)),
    "lstm": Case(32, "LSTM, 35 words", _lstm),
    "bert": Case(8, "BERT small, 128 tokens", _bert),
}

MORE = {
    "mobilenetv2_1.0": Case(
        16, "MobileNet v2, 128x128", _classify(lambda: vision.mobilenet_v2_1_0(classes=CLASSES), 128)
    ),
    "bert_mini": Case(8, "BERT mini, 128 tokens", functools.partial(_bert, name="bert_mini")),
}
"""Tasks that the training benchmark leaves out."""
