"""The frame around every pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from mxmp.passes import (
    EraseCasts,
    GuardAmpCasts,
    GuardGradientSums,
    GuardLayouts,
    InsertCasts,
    Pass,
    ScaleLoss,
    Sequential,
)
from mxmp.policy import Policy
from tests.graph.text import from_text

GRAPH = from_text("x = null()\nd = dot(x, x)\nreturn d")


@dataclass(frozen=True)
class Rename(Pass):
    name: ClassVar[str] = "rename"
    to: str = "d"

    def run(self, graph):
        return replace(graph, nodes=(*graph.nodes[:-1], graph.nodes[-1]._replace(name=self.to)))


def test_modified_tells_whether_the_graph_changed():
    assert Rename("y")(GRAPH).modified
    same = Rename("d")(GRAPH)
    assert not same.modified and same.graph is GRAPH


def test_sequential_runs_in_order_and_calls_back():
    seen = []
    passes = (InsertCasts(Policy.parse("O1")), EraseCasts())
    result = Sequential(passes, lambda p, r: seen.append((p.name, r.modified)))(GRAPH)
    assert not result.modified
    assert seen == [("insert-casts", True), ("erase-casts", True)]


CONV = "x = null()\nw = null()\nc = Convolution(x, w) {kernel: (3,3); no_bias: True; num_filter: 8}\n"
UNCHANGED = {
    "inserting without an allow operator": (
        InsertCasts(Policy.parse("O1")), "x = null()\na = relu(x)\nb = elemwise_add(a, x)\nreturn b"),
    "inserting under a float32 policy": (InsertCasts(Policy()), CONV + "r = relu(c)\nreturn r"),
    "erasing the network's own cast": (EraseCasts(), "x = null()\nc = Cast(x) {dtype: float16}\nreturn c"),
    "scaling without a loss head": (ScaleLoss(), "x = null()\ny = exp(x)\nreturn y"),
    "guarding a float16 cast": (GuardAmpCasts(), "x = null()\na = Cast(x) {dtype: float16}\nreturn a"),
    "guarding sums of float32": (
        GuardGradientSums(), f"a = null()\ny = add_n({', '.join('a' * 50)}) {{num_args: 50}}\nreturn y"),
    "guarding a reshape whose gradient a cast gives": (
        GuardLayouts(), CONV + "r = Reshape(c) {shape: (0,-1)}\na = amp_cast(r) {dtype: float32}\nreturn a"),
    "guarding Flatten behind a classifier": (
        GuardLayouts(), CONV + "f = Flatten(c)\ny = FullyConnected(f, w) {num_hidden: 3; no_bias: True}\nreturn y"),
    "guarding Flatten behind relu": (GuardLayouts(), CONV + "f = Flatten(c)\ny = relu(f)\nreturn y"),
    "guarding layouts without convolutions": (
        GuardLayouts(), "x = null()\nr = Reshape(x) {shape: (0,-1)}\ny = relu(r)\nreturn y"),
}  # fmt: skip


@pytest.mark.parametrize("transform, text", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_what_a_pass_is_not_for_is_left_alone(transform, text):
    graph = from_text(text)
    result = transform(graph)
    assert not result.modified and result.graph is graph
