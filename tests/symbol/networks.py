"""Networks to convert: all of ``symbols/``, Gluon's model zoo, and some where placement matters."""

import functools

import mxnet as mx
from mxnet.gluon.model_zoo import vision

import symbols

BATCH = 2


def _attention(**kwargs):
    return symbols.transformer.get_symbol(vocab_size=100, **kwargs), _inputs("transformer")


def _conv_norm_relu(data, name, channels):
    data = mx.sym.Convolution(data, kernel=(3, 3), num_filter=channels, pad=(1, 1), name=name)
    return mx.sym.relu(mx.sym.InstanceNorm(data, name=f"{name}_norm"), name=f"{name}_relu")


def unet():
    """Ronneberger et al., "U-Net", 2015, with instance normalization as in nnU-Net; three levels."""
    data, skips = mx.sym.var("data"), []
    for level in range(3):
        data = _conv_norm_relu(_conv_norm_relu(data, f"down{level}_1", 16 << level), f"down{level}_2", 16 << level)
        skips.append(data)
        data = mx.sym.Pooling(data, kernel=(2, 2), stride=(2, 2), pool_type="max", name=f"pool{level}")
    for level in reversed(range(3)):
        data = mx.sym.UpSampling(data, scale=2, sample_type="nearest", name=f"up{level}")
        data = mx.sym.Concat(data, skips[level], dim=1, name=f"skip{level}")
        data = _conv_norm_relu(_conv_norm_relu(data, f"up{level}_1", 16 << level), f"up{level}_2", 16 << level)
    return mx.sym.Convolution(data, kernel=(1, 1), num_filter=2, name="mask"), {"data": (BATCH, 3, 64, 64)}


PLACEMENT = {
    "attention_post": functools.partial(_attention, num_layers=2, num_hidden=64),
    "attention_pre": functools.partial(_attention, num_layers=2, num_hidden=64, norm="pre"),
    "attention_interleaved": functools.partial(_attention, num_layers=2, num_hidden=64, attention="interleaved"),
    "instance_norm_unet": unet,
}
"""The attention and InstanceNorm networks, where the place of a cast matters."""

ZOO = "resnet18_v2 vgg11_bn densenet squeezenet1.0 mobilenet0.25"
SYMBOLS = "mlp googlenet lstm_lm_small ssd300_vgg16 cifar_resnet20_v1 mobilenet_v2_0.35"
NAMES = (*PLACEMENT, *(f"symbols/{name}" for name in SYMBOLS.split()), *(f"zoo/{name}" for name in ZOO.split()))
"""One of each family, of DenseNet a short one."""


@functools.lru_cache(maxsize=2)
def load(name):
    """Return a network and the shapes of its inputs, without its label's, which MXNet infers; both stay as they are."""
    if name in PLACEMENT:
        return PLACEMENT[name]()
    source, _, model = name.partition("/")
    if source == "zoo":
        net = vision.DenseNet(16, 8, (2, 2)) if model == "densenet" else vision.get_model(model, classes=10)
        return net(mx.sym.var("data")), {"data": (BATCH, 3, 224, 224)}
    symbol = symbols.get_symbol(model)
    return symbol, _inputs(symbols.NETWORKS[model].module.__name__.rpartition(".")[2], model)


def _inputs(file, model=""):
    """Return the shapes of the inputs of a network of ``symbols/``."""
    size = {"cifar_resnet": 32, "ssd": 512 if "512" in model else 300}.get(file, 224)
    return {
        "transformer": {"data": (BATCH, 32), "token_types": (BATCH, 32), "valid_length": (BATCH,)},
        "lstm_lm": {"data": (BATCH, 35), "softmax_label": (BATCH, 35)},
        "ssd": {"data": (BATCH, 3, size, size), "label": (BATCH, 4, 5)},
        "mlp": {"data": (BATCH, 1, 28, 28)},
    }.get(file, {"data": (BATCH, 3, size, size)})
