"""What the passes refuse, and how they say it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.errors import GraphError, MxmpError, PassError, PolicyError
from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, InsertCasts, Pass, ScaleLoss
from mxmp.symbol import to_graph
from tests import messages
from tests.graph.text import from_text
from tests.passes.graphs import converted


@dataclass(frozen=True)
class Break(Pass):
    """A pass that gives a graph whose output is not there."""

    name: ClassVar[str] = "break"

    def run(self, graph):
        return replace(graph, heads=(Entry(99),))


def insert(text, policy="O1", **names):
    return lambda: InsertCasts(Policy.parse(policy, names=names))(from_text(f"x = null()\n{text}\nreturn c"))


def scale(text, facts=None, custom=()):
    return lambda: ScaleLoss(facts, custom=frozenset(custom))(from_text(f"x = null()\n{text}"))


def insert_twice():
    once = InsertCasts(Policy.parse("O1"))(from_text("x = null()\nc = dot(x, x)\nreturn c")).graph
    InsertCasts(Policy.parse("O1"))(once)


def scale_a_loop():
    head, state = mx.sym.contrib.foreach(
        lambda x, s: (mx.sym.make_loss(x, name="inner"), s), mx.sym.var("x"), mx.sym.var("s")
    )
    ScaleLoss()(to_graph(head))


def gemm_of_four_dimensions():
    product = mx.sym.linalg.gemm2(mx.sym.var("q"), mx.sym.var("k"), transpose_b=True, name="scores")
    converted(product, {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4)}, "O1,op:_linalg_gemm2=float16")


MESSAGES = {
    "a graph that is malformed": (
        lambda: Break()(Graph((Node("relu", "r", inputs=(Entry(5),)),), (Entry(0),))), GraphError,
        "node 'r' (relu): input 0 refers to node 5, but the graph has 1 nodes. The file is truncated or was "
        "edited by hand."),
    "a pass that breaks its graph": (lambda: Break()(from_text("x = null()\nreturn x")), PassError,
        "pass break: output 0 of the graph refers to node 99, but the graph has 1 nodes. The file is "
        "truncated or was edited by hand."),
    "casts that are there": (insert_twice, PassError,
        "pass insert-casts: node 'x_cast_float16' (Cast) is a cast of mxmp; erase the casts first."),
    "an operator without a rule": (insert("c = Custom(x)", c="float16"), PolicyError,
        "name override 'c' asks for float16 at node 'c' (Custom), but mxmp has no rule for operator "
        "'Custom', so it does not know which of its inputs may be cast. Leave it in float32."),
    "an operator without a kernel": (insert("c = InstanceNorm(x, x, x)", c="float16"), PolicyError,
        "name override 'c' asks for float16 at node 'c' (InstanceNorm), but MXNet 1.9.1 has no sound float16 "
        "kernel for InstanceNorm. Leave it in float32."),
    "a product without a stand-in": (gemm_of_four_dimensions, PolicyError,
        "op override '_linalg_gemm2' asks for float16 at node 'scores' (_linalg_gemm2), but MXNet 1.9.1 has "
        "no sound float16 kernel for _linalg_gemm2. Leave it in float32."),
    "a region in another dtype": (insert("c = dot(x, x) {__mxmp_precision__: bfloat16}"), PolicyError,
        "precision 'bfloat16' (region) asks for bfloat16 at node 'c' (dot), but the policy's "
        "compute_dtype is float16; use float16 or float32."),
    "a name that is taken": (scale("loss_scale = null()\ny = make_loss(loss_scale)\nreturn y"), PassError,
        "pass scale-loss: the graph has a node 'loss_scale' already; rename it, or erase the loss scale."),
    "a custom operator": (scale("c = Custom(x) {op_type: mine}\nreturn c"), PassError,
        "pass scale-loss: output 'c' (Custom) is an operator of yours, of which mxmp cannot know whether it "
        "is a loss head. If it ignores the gradient of its output (need_top_grad=False), name it in "
        "loss_heads; else put an identity behind it."),
    "a custom operator that is not there": (
        scale("c = Custom(x) {op_type: mine}\nreturn c", custom="d"), PassError,
        "pass scale-loss: the graph has no Custom operator 'd'; check the names in loss_heads."),
    "a penalty": (scale("k = IdentityAttachKLSparseReg(x)\ny = make_loss(k)\nreturn y"), PassError,
        "pass scale-loss: node 'k' (IdentityAttachKLSparseReg) adds a penalty to the gradient that cannot be "
        "scaled; write the penalty as a loss under make_loss."),
    "a loss in float64": (scale("y = make_loss(x)\nreturn y", Facts({(0, 0): "float64"})), PassError,
        "pass scale-loss: node 'y' (make_loss) reads float64, whose gradient cannot be scaled; cast it to "
        "float32."),
    "a loss in a loop": (scale_a_loop, PassError,
        "pass scale-loss: node 'inner' (make_loss) is a loss head inside of a control flow operator; move it "
        "out."),
}  # fmt: skip


@pytest.mark.behaviour("refused by name")
@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    assert issubclass(error, MxmpError)
    messages.check(call, error, text, tmp_path)
