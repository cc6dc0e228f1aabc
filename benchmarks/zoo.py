"""The networks that are timed: Gluon's model zoo, GluonCV's classifiers, a language model, those of `symbols`."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

import symbols

_RESNETS = ("resnet18_v1", "resnet50_v1", "resnet50_v2")
_OTHERS = ("mobilenet1.0", "mobilenetv2_1.0", "densenet121", "squeezenet1.1")
IMAGE_SIZES = {**dict.fromkeys((*_RESNETS, *_OTHERS), 224), "inceptionv3": 299}
"""The networks whose inference is timed, and the height and width of the images that each was made for."""

TASKS = {
    **{"cifar_resnet20_v1": (128, 32), "resnet18_v1": (32, 32), "resnet50_v1": (8, 224), "mobilenet1.0": (8, 224)},
    **{"mobilenetv2_1.0": (8, 224), "alexnet": (16, 224)},
    **{"lstm": (32, 35), "bert_small": (8, 128), "bert_mini": (8, 128)},
}
"""The networks that are trained, with the usual batch and the size of images, or the words of a sentence."""

CLASSES, WORDS, TOKENS, HIDDEN, LAYERS = 10, 10000, 30522, 650, 2

# The labels are noise: small learning rates keep the losses finite for as long as it runs.
SGD = ("sgd", {"learning_rate": 1e-3, "momentum": 0.9, "wd": 1e-4})
ADAM = ("adam", {"learning_rate": 1e-5})


def is_network(name: str) -> bool:
    """Return whether there is a network of a name: a task, or a classifier of Gluon's or GluonCV's model zoo."""
    from gluoncv.model_zoo import get_model_list  # GluonCV takes seconds to import

    return name in TASKS or name in get_model_list()


def make_net(name: str, **options: Any) -> gluon.HybridBlock:
    """Return a classifier, not initialized."""
    try:
        return vision.get_model(name, **options)
    except ValueError:
        from gluoncv.model_zoo import get_model

        return get_model(name, pretrained=False, **options)


class Model(NamedTuple):
    """A classifier with values, from which nets and symbols are made, and images."""

    name: str  # in the model zoo
    net: gluon.HybridBlock  # float32, not hybridized
    images: mx.nd.NDArray  # (N, 3, H, W), float32
    symbol: Any  # with one input, data

    def params(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return arguments and auxiliary states: copies, since contrib.amp cannot cast all layouts of oneDNN's."""
        arrays = {param.name: mx.nd.array(param.data().asnumpy()) for param in self.net.collect_params().values()}
        aux = set(self.symbol.list_auxiliary_states())
        args = {name: array for name, array in arrays.items() if name not in aux}
        return args, {name: array for name, array in arrays.items() if name in aux}

    def copy(self) -> gluon.HybridBlock:
        """Return a net of its own with the same values."""
        net = make_net(self.name)
        for param, given in zip(net.collect_params().values(), self.net.collect_params().values()):
            param.shape = given.shape
            param.initialize(mx.init.Constant(given.data()))
        return net


def make_model(name: str, batch_size: int, image_size: int = 0, seed: int = 0) -> Model:
    """Return a network with random weights, and BatchNorm's statistics as after training; size 0 is its own."""
    mx.random.seed(seed)
    rng = np.random.RandomState(seed)
    size = image_size or IMAGE_SIZES.get(name, 32 if name.startswith("cifar") else 224)
    net = make_net(name)
    net.initialize(mx.init.MSRAPrelu())
    images = mx.nd.array(rng.normal(size=(batch_size, 3, size, size)))
    # So many images that the last layers, 32 times smaller, have 64 positions or more.
    seen = max(2, -(-64 * 32**2 // size**2))
    _train_norms(net, mx.nd.array(rng.normal(size=(seen, 3, size, size))), rng)
    return Model(name, net, images, net(mx.sym.var("data")))


def _train_norms(net: gluon.HybridBlock, images: mx.nd.NDArray, rng: np.random.RandomState) -> None:
    """Give each BatchNorm random scales and shifts, and statistics near those of its input: else it does nothing."""
    norms: List[nn.BatchNorm] = []
    net.apply(lambda block: norms.append(block) if isinstance(block, nn.BatchNorm) else None)

    def observe(norm: nn.BatchNorm, inputs: Any) -> None:
        found = inputs[0]
        mean = found.mean(axis=(0, 2, 3))
        variance = (found - mean.reshape((1, -1, 1, 1))).square().mean(axis=(0, 2, 3)).asnumpy()
        mean, channels = mean.asnumpy(), mean.shape
        values = [rng.uniform(0.5, 1.5, channels), rng.normal(scale=0.2, size=channels)]
        values.append(mean + 0.1 * np.sqrt(variance) * rng.normal(size=channels))
        values.append(variance * rng.uniform(0.8, 1.25, channels))
        for param, value in zip((norm.gamma, norm.beta, norm.running_mean, norm.running_var), values):
            param.shape = channels
            param.set_data(mx.nd.array(value))

    hooks = [norm.register_forward_pre_hook(observe) for norm in norms]
    # In inference each BatchNorm takes its new statistics, and the next one sees what follows from them.
    net(images).wait_to_read()
    for hook in hooks:
        hook.detach()


class Task(NamedTuple):
    """A network to train, initialized, with one batch."""

    net: gluon.HybridBlock  # gives logits first, if it gives several outputs
    inputs: List[mx.nd.NDArray]
    labels: mx.nd.NDArray  # for softmax cross-entropy on the last axis of the logits
    optimizer: Tuple[str, Dict[str, Any]]


def make_task(name: str, batch_size: int = 0, size: int = 0, seed: int = 0) -> Task:
    """Return a task, hybridized, whose values depend on the seed alone; 0 stands for the usual batch and size."""
    mx.random.seed(seed)
    rng = np.random.RandomState(seed)
    usual = TASKS.get(name, (32, 32) if name.startswith("cifar") else (4, IMAGE_SIZES.get(name, 224)))
    batch, size = batch_size or usual[0], size or usual[1]
    make = {"lstm": _lstm, "bert_small": _bert, "bert_mini": _bert}.get(name, _classifier)
    with mx.name.NameManager():  # counts names from 0 on
        task = make(name, batch, size, rng)
    task.net.hybridize(static_alloc=True, static_shape=True)
    task.net(*task.inputs)  # completes the shapes, and with them the initialization
    return task


def _classifier(name: str, batch: int, size: int, rng: np.random.RandomState) -> Task:
    small = {"thumbnail": True} if name == "resnet18_v1" else {}
    net = make_net(name, classes=CLASSES, **small)
    net.initialize(mx.init.Xavier())
    images = mx.nd.array(rng.normal(size=(batch, 3, size, size)))
    return Task(net, [images], mx.nd.array(rng.randint(0, CLASSES, batch)), SGD)


class _LanguageModel(gluon.HybridBlock):
    """The medium model of Zaremba et al., "Recurrent Neural Network Regularization", 2014."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.embed = nn.Embedding(WORDS, HIDDEN)
            self.dropout = nn.Dropout(0.5)
            self.lstm = gluon.rnn.LSTM(HIDDEN, LAYERS, dropout=0.5)
            self.decode = nn.Dense(WORDS, flatten=False)

    def hybrid_forward(self, F: Any, words: Any, state: Any, cell: Any) -> Any:
        embedded = self.dropout(self.embed(F.transpose(words)))
        output, states = self.lstm(embedded, [state, cell])
        return F.swapaxes(self.decode(self.dropout(output)), 0, 1), *states


def _lstm(name: str, batch: int, length: int, rng: np.random.RandomState) -> Task:
    net = _LanguageModel()
    net.initialize(mx.init.Uniform(0.05))
    words, following = (mx.nd.array(rng.randint(0, WORDS, (batch, length))) for _ in range(2))
    states = [mx.nd.zeros((LAYERS, batch, HIDDEN)) for _ in range(2)]
    return Task(net, [words, *states], following, SGD)


def _bert(name: str, batch: int, length: int, rng: np.random.RandomState) -> Task:
    inputs = {name: rng.randint(0, most, (batch, length)) for name, most in (("data", TOKENS), ("token_types", 2))}
    inputs["valid_length"] = rng.randint(length // 2, length + 1, batch)
    logits = symbols.get_symbol(name, num_classes=CLASSES).get_children()[0]  # the input of the loss head
    with undecided_inputs():
        net = gluon.SymbolBlock(logits, [mx.sym.var(each) for each in inputs])
    net.initialize(mx.init.Normal(0.02))
    labels = mx.nd.array(rng.randint(0, CLASSES, batch))
    return Task(net, [mx.nd.array(value) for value in inputs.values()], labels, ADAM)


@contextlib.contextmanager
def undecided_inputs() -> Iterator[None]:
    """Silence MXNet where it makes a block of a symbol: nothing decides the dtype of an input by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot decide type", UserWarning)
        yield
