"""One call of an operator, and the values that its inputs may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from mxmp.rules import RULES, Rule

MAP = (2, 4, 4, 4)
"""A small batch of feature maps (N, C, H, W)."""


@dataclass(frozen=True)
class Example:
    """One call of an operator.

    Attributes:
        op: The operator's name in graphs.
        shapes: Shape of each input.
        attrs: The call's attributes.
        kinds: What an input that is no plain data holds: a key of ``KINDS``.
        outputs: How many outputs a graph sees.
        differentiable: Whether MXNet has a gradient for it on CPU.
        runs: Whether MXNet runs it on CPU at all.
    """

    op: str
    shapes: Tuple[Tuple[int, ...], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)
    outputs: int = 1
    differentiable: bool = True
    runs: bool = True

    def __str__(self) -> str:
        attrs = ",".join(f"{key}={value}" for key, value in self.attrs.items()).replace(" ", "")
        return f"{self.op}({attrs})"

    @property
    def text_attrs(self) -> Dict[str, str]:
        """The attributes as a graph has them."""
        return {key: str(value) for key, value in self.attrs.items()}

    @property
    def rule(self) -> Rule:
        """The rule for this call."""
        found = RULES.find(self.op, self.text_attrs)
        assert found is not None, f"{self} has no rule"
        return found

    @property
    def dtypes(self) -> List[str]:
        """The dtype of each input in a float32 network."""
        kinds = (self.kinds.get(port) for port in range(len(self.shapes)))
        return [kind if kind in OTHER_DTYPES else "float32" for kind in kinds]

    @property
    def data_ports(self) -> List[int]:
        """The inputs that the rule casts."""
        return [port for port in range(len(self.shapes)) if self.rule.is_data(port)]

    def arrays(self, seed: int = 0) -> List[np.ndarray]:
        """Return inputs; those in float32 have values that float16 and bfloat16 both have."""
        rng = np.random.default_rng(seed)
        return [KINDS[self.kinds.get(port, "data")](rng, shape) for port, shape in enumerate(self.shapes)]


def _data(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    return (rng.integers(16, 128, shape) * rng.choice((-1, 1), shape) / 64).astype(np.float32)


def _distinct(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return values without ties, so that it is defined which one a maximum takes."""
    count = int(np.prod(shape))
    assert count <= 256
    return ((rng.permutation(count).reshape(shape) - count // 2) / 64).astype(np.float32)


def _boxes(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return rows (x, y, x + w, y + h) within the unit square."""
    corner, size = rng.integers(0, 16, (2, *shape[:-1], 2))
    return (np.concatenate([corner, corner + size + 1], axis=-1) / 32).astype(np.float32)


def _rois(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    return np.concatenate([np.zeros((*shape[:-1], 1), np.float32), _boxes(rng, (*shape[:-1], 4)) * 4], axis=-1)


def _scored(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return rows (class, score, box)."""
    scores = np.stack([np.zeros(shape[:-1]), rng.integers(1, 32, shape[:-1]) / 32], axis=-1)
    return np.concatenate([scores, _boxes(rng, (*shape[:-1], 4))], axis=-1).astype(np.float32)


def _integers(dtype: str) -> Callable[[np.random.Generator, Tuple[int, ...]], np.ndarray]:
    return lambda rng, shape: rng.integers(0, 2 if dtype == "bool" else 4, shape).astype(dtype)


def _matrices(rng: np.random.Generator, shape: Tuple[int, ...]) -> np.ndarray:
    """Return symmetric matrices with a large diagonal, which can be inverted and decomposed."""
    half = _data(rng, shape)
    return half + np.swapaxes(half, -1, -2) + 16 * np.eye(shape[-1], dtype=np.float32)


OTHER_DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16")

KINDS = {
    **{dtype: _integers(dtype) for dtype in OTHER_DTYPES},
    "data": _data,
    "distinct": _distinct,
    "positive": lambda rng, shape: np.abs(_data(rng, shape)),
    "above one": lambda rng, shape: 1 + np.abs(_data(rng, shape)),
    "index": lambda rng, shape: rng.integers(0, 3, shape).astype(np.float32),
    "distinct index": lambda rng, shape: rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32),
    "length": lambda rng, shape: rng.integers(1, shape[0] + 1, shape).astype(np.float32),
    "probability": lambda rng, shape: (rng.integers(1, 32, shape) / 32).astype(np.float32),
    "matrix": _matrices,
    "zero": lambda rng, shape: np.zeros(shape, np.float32),
    "boxes": _boxes,
    "rois": _rois,
    "scored": _scored,
    "labels": lambda rng, shape: np.insert(_boxes(rng, (*shape[:-1], 4)), 0, 0, axis=-1),
}

ALL_DATA: Mapping[int, str] = {}
POSITIVE = {0: "positive"}
DISTINCT = {0: "distinct"}


def same(
    ops: str,
    *shapes: Tuple[int, ...],
    kinds: Mapping[int, str] = ALL_DATA,
    outputs: int = 1,
    differentiable: bool = True,
    runs: bool = True,
    **attrs: Any,
) -> List[Example]:
    """Return one example for each of the operators that ``ops`` names."""
    return [Example(op, shapes, attrs, kinds, outputs, differentiable, runs) for op in ops.split()]
