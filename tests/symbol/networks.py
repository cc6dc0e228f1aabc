"""Networks to convert: all of ``symbols/``, Gluon's model zoo, and some where placement matters."""

from __future__ import annotations

import functools

import mxnet as mx
from mxnet.gluon.model_zoo import vision

import symbols

BATCH = 2


def _attention(**kwargs):
    return symbols.transformer.get_symbol(vocab_size=100, **kwargs), _inputs("transformer")


def _conv_norm_relu(data, name, channels, kernel=3, stride=1):
    data = mx.sym.Convolution(
        data, kernel=(kernel, kernel), num_filter=channels, stride=(stride,) * 2, pad=(kernel // 2,) * 2, name=name
    )
    return mx.sym.relu(mx.sym.InstanceNorm(data, name=f"{name}_norm"), name=f"{name}_relu")


def style_transfer():
    """Johnson et al., "Perceptual Losses", 2016, with instance normalization; two of its five residual blocks."""
    data = _conv_norm_relu(mx.sym.var("data"), "conv1", 32, kernel=9)
    data = _conv_norm_relu(_conv_norm_relu(data, "conv2", 64, stride=2), "conv3", 128, stride=2)
    for block in range(2):
        body = _conv_norm_relu(data, f"block{block}_conv1", 128)
        body = mx.sym.Convolution(body, kernel=(3, 3), num_filter=128, pad=(1, 1), name=f"block{block}_conv2")
        data = mx.sym.elemwise_add(data, mx.sym.InstanceNorm(body, name=f"block{block}_norm2"), name=f"block{block}")
    for number, channels in enumerate((64, 32)):
        data = mx.sym.UpSampling(data, scale=2, sample_type="nearest", name=f"up{number}")
        data = _conv_norm_relu(data, f"up{number}_conv", channels)
    data = mx.sym.Convolution(data, kernel=(9, 9), num_filter=3, pad=(4, 4), name="image")
    return mx.sym.tanh(data, name="out"), {"data": (BATCH, 3, 64, 64)}


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
    "instance_norm_style_transfer": style_transfer,
    "instance_norm_unet": unet,
}
"""The attention and InstanceNorm networks, where the place of a cast matters."""

ZOO = "resnet18_v1 resnet18_v2 vgg11_bn alexnet densenet121 squeezenet1.0 inceptionv3 mobilenet0.25 mobilenetv2_0.25"
SYMBOLS = "mlp lenet googlenet lstm_lm_small ssd300_vgg16 cifar_resnet20_v1 resnext50_32x4d mobilenet_v2_0.35"
NAMES = (*PLACEMENT, *(f"symbols/{name}" for name in SYMBOLS.split()), *(f"zoo/{name}" for name in ZOO.split()))
"""One of each family."""



@functools.lru_cache(maxsize=2)
def load(name):
    """Return a network and the shapes of its inputs, without its label's, which MXNet infers; both stay as they are."""
    if name in PLACEMENT:
        return PLACEMENT[name]()
    source, _, model = name.partition("/")
    if source == "zoo":
        size = 299 if "inception" in model else 224
        return vision.get_model(model, classes=10)(mx.sym.var("data")), {"data": (BATCH, 3, size, size)}
    symbol = symbols.get_symbol(model)
    return symbol, _inputs(symbols.NETWORKS[model].module.__name__.rpartition(".")[2], model)


def _inputs(file, model=""):
    """Return the shapes of the inputs of a network of ``symbols/``."""
    if file == "transformer":
        return {"data": (BATCH, 32), "token_types": (BATCH, 32), "valid_length": (BATCH,)}
    if file == "lstm_lm":
        return {"data": (BATCH, 35), "softmax_label": (BATCH, 35)}
    if file == "ssd":
        size = 512 if "512" in model else 300
        return {"data": (BATCH, 3, size, size), "label": (BATCH, 4, 5)}
    if file in ("mlp", "lenet"):
        return {"data": (BATCH, 1, 28, 28)}
    size = {"cifar_resnet": 32, "inception_v3": 299}.get(file, 224)
    return {"data": (BATCH, 3, size, size)}
