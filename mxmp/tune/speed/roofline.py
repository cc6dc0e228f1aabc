"""How long operators and casts should take by a roofline: what they move or what they multiply, whichever is longer.

Absolute times are of no use before a network has been measured: the estimates are scaled by its time. What counts is
how operators compare with each other, and with casts.

References:
    Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", 2009, https://doi.org/10.1145/1498765.1498785
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from ...graph import Entry, Graph
from ...passes.decide import Verdict
from ...passes.facts import Facts
from ...rules.core import value_of

TRAINING_PASSES = 3
"""A training step computes what inference does, the gradients by data, and those by weights or what they take."""

_CONVOLUTIONS = ("Convolution", "Deconvolution")
_LOW_SHARE = 0.5  # of float32's bytes


class Speeds(NamedTuple):
    """What a machine does in a second, and how many times as much in low precision."""

    bytes: float = 8e9
    products: float = 25e9  # of float32, with the sum that each goes into; a core with AVX2 or AVX-512
    convolution_gain: float = 1.5
    product_gain: float = 1.5
    overhead: float = 5e-6  # seconds of an operator or cast, however small


GPU = Speeds(bytes=4e11, products=5e12, convolution_gain=4.0, product_gain=4.0)
"""Of no card in particular: the ratios are those of cards with tensor cores."""


class Seconds(NamedTuple):
    """How long an operator takes in each precision."""

    float32: float
    low: float


def node_seconds(graph: Graph, position: int, facts: Facts, verdict: Verdict, speeds: Speeds, passes: int) -> Seconds:
    """Return how long an operator should take in float32 and in low precision; unknown sizes count as nothing."""
    node = graph.nodes[position]
    full = low = 0.0
    for port, entry in enumerate(node.inputs):
        moved = _bytes(facts, entry)
        full += moved
        low += moved * (_LOW_SHARE if verdict.input_in_precision(port) else 1)
    for index in range(node.num_outputs):
        moved = _bytes(facts, Entry(position, index))
        full += moved
        low += moved * (_LOW_SHARE if verdict.output_in_precision(index) else 1)
    products = multiply_adds(graph, position, facts) / speeds.products
    gain = speeds.convolution_gain if node.op in _CONVOLUTIONS else speeds.product_gain
    return Seconds(
        passes * (speeds.overhead + max(full / speeds.bytes, products)),
        passes * (speeds.overhead + max(low / speeds.bytes, products / gain)),
    )


def cast_seconds(size: Optional[int], speeds: Speeds) -> float:
    """Return how long the cast of so many elements takes in one direction: it reads four bytes of each, writes two."""
    return speeds.overhead + 6 * (size or 0) / speeds.bytes


def multiply_adds(graph: Graph, position: int, facts: Facts) -> float:
    """Return the multiplications of a convolution, a layer or a matrix product forward; 0 for all others."""
    node = graph.nodes[position]
    shapes = [facts.shape(entry) for entry in node.inputs[:2]]
    output = facts.shape(Entry(position))
    if output is None or not shapes or None in shapes:
        return 0.0
    data, other = shapes[0] or (), shapes[-1] or ()
    if node.op in ("Convolution", "FullyConnected"):
        return float(math.prod(output) * math.prod(other[1:]))
    if node.op == "Deconvolution":
        return float(math.prod(data) * math.prod(other[1:]))
    if node.op == "RNN":
        return float(math.prod(data[:2]) * math.prod(other))
    if "interleaved_matmul" in node.op:  # of attention, by its weights or for them
        heads = value_of(dict(node.attrs), "heads") or 1
        inner = other[-1] if "valatt" in node.op else data[-1] / heads / (3 if "selfatt" in node.op else 1)
        return float(math.prod(output) * inner)
    if any(word in node.op for word in ("dot", "gemm", "matmul")) and all(output):
        # (B, M, K) times (B, K, N) is (B, M, N), whichever of them are transposed
        inner = math.sqrt(math.prod(data) * math.prod(other) / math.prod(output) / math.prod(output[:-2]))
        return math.prod(output) * inner
    return 0.0


def _bytes(facts: Facts, entry: Entry) -> int:
    return 4 * (facts.size(entry) or 0)
