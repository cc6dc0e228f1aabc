"""The frame around every pass; what passes leave alone; erasing is the inverse of inserting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from mxmp import Policy
from mxmp.passes import DropDropout, EraseCasts, InsertCasts, Pass, ScaleLoss
from mxmp.passes.fold import find_dropouts
from tests.graph.text import from_text, to_text

GRAPH = from_text("x = null()\nd = dot(x, x)\nreturn d")


@dataclass(frozen=True)
class Rename(Pass):
    to: str = "d"

    def run(self, graph):
        return replace(graph, nodes=(*graph.nodes[:-1], graph.nodes[-1]._replace(name=self.to)))


def test_modified_tells_whether_the_graph_changed():
    assert Rename("y")(GRAPH).modified
    same = Rename("d")(GRAPH)
    assert not same.modified and same.graph is GRAPH


CONV = "x = null()\nw = null()\nc = Convolution(x, w) {kernel: (3,3); no_bias: True; num_filter: 8}\n"
UNCHANGED = {
    "inserting without an allow operator": (
        InsertCasts(Policy.parse("O1")), "x = null()\na = relu(x)\nb = elemwise_add(a, x)\nreturn b"),
    "inserting under a float32 policy": (InsertCasts(Policy()), CONV + "r = relu(c)\nreturn r"),
    "erasing the network's own cast": (EraseCasts(), "x = null()\nc = Cast(x) {dtype: float16}\nreturn c"),
    "scaling without a loss head": (ScaleLoss(), "x = null()\ny = exp(x)\nreturn y"),
    "a Dropout that always drops": (DropDropout(), "x = null()\nd = Dropout(x) {mode: always} x2\na = relu(d)\nreturn a"),
    "a Dropout whose mask is read": (DropDropout(), "x = null()\nd = Dropout(x) x2\na = dot(d, d#1)\nreturn a"),
    "a Dropout whose mask is an output": (DropDropout(), "x = null()\nd = Dropout(x) x2\na = relu(d)\nreturn a, d#1"),
    "no Dropout": (DropDropout(), "x = null()\na = relu(x)\nreturn a"),
}  # fmt: skip


@pytest.mark.parametrize("transform, text", UNCHANGED.values(), ids=UNCHANGED)
def test_what_a_pass_is_not_for_is_left_alone(transform, text):
    graph = from_text(text)
    result = transform(graph)
    assert not result.modified and result.graph is graph and not find_dropouts(graph)


DROPPED = {
    "two in a row": (
        "d = Dropout(a) {p: 0.5} x2\nagain = Dropout(d) {axes: (1,); mode: training; p: 0.2} x2\n"
        "b = dot(again, a)\nreturn b",
        "b = dot(a, a)\nreturn b"),
    "an output, which keeps its name": (
        "d = Dropout(a) {__ctx_group__: dev1} x2\nb = exp(d)\nreturn d, b, d",
        "b = exp(a)\nd = BlockGrad(a) {__ctx_group__: dev1}\nreturn d, b, d"),
}  # fmt: skip


@pytest.mark.parametrize("text, after", DROPPED.values(), ids=DROPPED)
def test_the_readers_of_a_dropout_read_what_it_read(text, after):
    begin = "x = null()\na = relu(x)\n"
    assert to_text(DropDropout()(from_text(begin + text)).graph) == begin + after
