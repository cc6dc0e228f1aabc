"""The choices that a search begins with: of different kinds, since toggling groups one by one does not lead there.

Layouts couple neighbours: in ResNet-20 the activations in float32 take BatchNorm's backward pass from 1,713 to 40 ms
without touching a BatchNorm. What helped in one network or another is tried in each.
"""

from __future__ import annotations

from typing import AbstractSet, Callable, Dict, List, Tuple

from ...passes.decide import FLOAT32
from .choices import Choice, Choices, Group

UNTUNED, ALL_FLOAT32 = "untuned", "float32"

_SUMS = ("elemwise_add", "broadcast_add", "_plus", "add_n", "_npi_add")
_NORMS = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm", "LayerNorm", "InstanceNorm", "GroupNorm")
_ACTIVATIONS = ("Activation", "relu", "LeakyReLU", "clip", "sigmoid", "tanh")
_POOLS = ("Pooling", "_contrib_AdaptiveAvgPooling2D")
_CONVOLUTIONS = ("Convolution", "Deconvolution")


Shape = Tuple[int, ...]
Picks = Callable[[Group, AbstractSet[Shape]], bool]
"""Whether a start has a group in float32, given the shapes that depthwise convolutions write."""


def find_starts(choices: Choices) -> List[Tuple[str, Choice]]:
    """Return choices to begin with, each with its name; the untuned one and float32 first, none twice."""
    found: Dict[Choice, str] = {choices.untuned: UNTUNED, choices.float32: ALL_FLOAT32}
    depthwise = {group.shape for group in choices.groups if group.depthwise}
    for name, picks in _STARTS:
        choice = tuple(FLOAT32 if picks(group, depthwise) else None for group in choices.groups)
        found.setdefault(choice, name)
    return [(name, choice) for choice, name in found.items()]


def _is_around_depthwise(group: Group, depthwise: AbstractSet[Shape]) -> bool:
    return group.depthwise or (group.op in (*_NORMS, *_ACTIVATIONS) and group.shape in depthwise)


_STARTS: Tuple[Tuple[str, Picks], ...] = (
    ("only convolutions and products in low precision", lambda group, _: not group.gains),
    ("activations in float32", lambda group, _: group.op in _ACTIVATIONS),
    ("normalisations in float32", lambda group, _: group.op in _NORMS),
    ("sums in float32", lambda group, _: group.op in _SUMS),
    ("depthwise convolutions in float32", lambda group, _: group.depthwise),
    ("depthwise convolutions and what follows them in float32", _is_around_depthwise),
    ("only convolutions in low precision", lambda group, _: group.op not in _CONVOLUTIONS or group.depthwise),
    ("only products in low precision", lambda group, _: not group.gains or group.op in _CONVOLUTIONS),
    ("pooling in float32", lambda group, _: group.op in _POOLS),
)
