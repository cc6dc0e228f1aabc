"""The networks of `symbols` that are recorded: names, arguments, and the shapes of small batches."""

from __future__ import annotations

from typing import Any, Dict, Tuple

Shapes = Dict[str, Tuple[int, ...]]

STEPPED = ("resnet50_v1b", "ssd300_vgg16", "bert_mini", "lstm_lm_small")
"""Those whose steps are recorded in every mode."""

FILES = {
    "resnet50_v1b": "resnet", "resnet50_v2": "resnet", "resnext50_32x4d": "resnext",
    "cifar_resnet20_v2": "cifar_resnet", "bert_mini": "transformer",
    "lstm_lm_small": "lstm_lm", "ssd300_vgg16": "ssd", "ssd96_resnet8": "ssd",
    "mlp": "mlp", "lenet": "lenet", "alexnet_2012": "alexnet", "vgg11_bn": "vgg",
    "googlenet": "googlenet", "inception_bn": "inception_bn",
    "inception_v3": "inception_v3", "mobilenet0.25": "mobilenet", "mobilenet_v2_0.35": "mobilenet_v2",
}  # fmt: skip
"""All that are recorded, and the file of each: one per structure. More layers of the same kinds ask nothing else."""

OTHERS = tuple(name for name in FILES if name not in STEPPED)

ARGUMENTS: Dict[str, Dict[str, Any]] = {
    "bert_mini": {"num_classes": 2, "vocab_size": 1000},
    "lstm_lm_small": {"num_classes": 1000},
    "ssd300_vgg16": {"num_classes": 3},
    "ssd96_resnet8": {"num_classes": 3},
}
"""Arguments of `symbols.get_symbol`; other networks have 10 classes."""

DATA: Dict[str, Shapes] = {
    "resnet50_v1b": {"data": (4, 3, 64, 64)},
    "bert_mini": {"data": (8, 64), "token_types": (8, 64), "valid_length": (8,)},
    "lstm_lm_small": {"data": (8, 35)},
    "ssd300_vgg16": {"data": (2, 3, 300, 300)},
    "ssd96_resnet8": {"data": (2, 3, 96, 96)},
    "mlp": {"data": (4, 1, 28, 28)},
    "lenet": {"data": (4, 1, 28, 28)},
    "inception_v3": {"data": (2, 3, 299, 299)},
}
"""Shapes of the inputs; other networks have images of 32 or 224 pixels."""

LABELS: Dict[str, Shapes] = {
    "lstm_lm_small": {"softmax_label": (8, 35)},
    "ssd300_vgg16": {"label": (2, 4, 5)},
    "ssd96_resnet8": {"label": (2, 4, 5)},
}
"""Shapes of the labels; other networks have a class per image."""


def image_shape(name: str) -> Tuple[int, ...]:
    """Return the shape of a batch of images for a network that has no shape of its own here."""
    size = 32 if name.startswith("cifar") else 224
    return (2, 3, size, size)
