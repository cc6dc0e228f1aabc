"""What the passes refuse, and how they say it."""

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.errors import PassError, PolicyError
from mxmp.passes import Facts, InsertCasts, ScaleLoss
from mxmp.symbol import to_graph
from tests import messages
from tests.graph.text import from_text


def insert(text, policy="O1", **names):
    return lambda: InsertCasts(Policy.parse(policy, names=names))(from_text(f"x = null()\n{text}\nreturn c"))


def scale(text, facts=None, custom=()):
    return lambda: ScaleLoss(facts, custom=frozenset(custom))(from_text(f"x = null()\n{text}"))


def scale_a_loop():
    head, state = mx.sym.contrib.foreach(
        lambda x, s: (mx.sym.make_loss(x, name="inner"), s), mx.sym.var("x"), mx.sym.var("s")
    )
    ScaleLoss()(to_graph(head))


MESSAGES = {
    "an operator without a rule": (insert("c = Custom(x)", c="float16"), PolicyError,
        "name override 'c' asks for float16 at node 'c' (Custom), but mxmp has no rule for operator "
        "'Custom', so it does not know which of its inputs may be cast. Leave it in float32."),
    "an operator without a kernel": (insert("c = InstanceNorm(x, x, x)", c="float16"), PolicyError,
        "name override 'c' asks for float16 at node 'c' (InstanceNorm), but MXNet 1.9.1 has no sound float16 "
        "kernel for InstanceNorm. Leave it in float32."),
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
    messages.check(call, error, text, tmp_path)
