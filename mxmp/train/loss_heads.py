"""Loss heads within nets, which ignore the gradient of their output: scaled by an input of their own, or refused."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Container, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..errors import TrainerError
from ..graph import Graph, Node
from ..mxnet_private import ignores_output_gradient
from ..passes.attributes import CUSTOM
from ..passes.scale_loss import is_loss_head

_ATTRIBUTE = "_mxmp_loss_head"


class HeadScale(gluon.Parameter):  # type: ignore[misc]
    """The loss scale that the loss heads of all converted nets read: 1 outside of `scaled_by`.

    A net runs before its loss is scaled, so the scale is written between its forward and its backward pass: MXNet's
    engine keeps the order, and autograd holds the array itself. A copied net reads the same one.
    """

    def __init__(self) -> None:
        super().__init__("mxmp_loss_scale", grad_req="null", shape=(1,))
        self._values: Dict[mx.Context, mx.nd.NDArray] = {}
        self._turn = threading.RLock()
        self._local = threading.local()

    def __reduce__(self) -> str:
        return "HEAD_SCALE"

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the scale on a context, float32, shape (1,)."""
        ctx = ctx or mx.context.current_context()
        if ctx not in self._values:
            with autograd.pause():
                self._values[ctx] = mx.nd.full((1,), getattr(self._local, "scale", 1.0), ctx=ctx)
        return self._values[ctx]

    @property
    def turn(self) -> contextlib.AbstractContextManager[Any]:
        """Have threads take turns in a context, if there are loss heads; to be entered before other locks."""
        return self._turn if self._values else contextlib.nullcontext()

    @property
    def in_block(self) -> bool:
        """Whether this thread is within `scaled_by`."""
        return hasattr(self._local, "scale")

    @contextlib.contextmanager
    def scaled_by(self, scale: float) -> Iterator[None]:
        """Let backward passes within the block, of one thread's `turn`, multiply the gradients of loss heads."""
        before = getattr(self._local, "scale", None)
        self._local.scale = scale
        self._write(scale)
        try:
            yield
        finally:
            self._write(before or 1.0)
            if before is None:
                del self._local.scale
            else:
                self._local.scale = before

    def _write(self, scale: float) -> None:
        with autograd.pause():
            for value in list(self._values.values()):
                value[:] = scale


HEAD_SCALE = HeadScale()


def loss_heads(graph: Graph) -> Tuple[str, ...]:
    """Return the loss heads of a graph (SoftmaxOutput, make_loss, ...), each by its name and operator."""
    return tuple(str(node) for node in graph.operators() if is_loss_head(node))


# Operators whose inputs get no gradient from them, or zeros.
_WITHOUT_GRADIENT = frozenset({"BlockGrad", "_contrib_Proposal", "_contrib_MultiProposal", "argmax", "argsort", "topk"})


def own_gradients(nodes: Sequence[Node], params: Container[str]) -> Tuple[str, ...]:
    """Return the ``Custom`` operators that give parameters a gradient and ignore that of their output, by name.

    So they say (``need_top_grad=False``); behind a BlockGrad too, MXNet asks them for their gradient.
    """
    leads: List[bool] = []  # by position, whether a gradient goes on to a parameter
    found = []
    for node in nodes:
        inputs = any(leads[each.node] for each in node.inputs)
        if node.op == CUSTOM and inputs and ignores_output_gradient(dict(node.attrs)):
            found.append(node.name)
        on = node.name in params if node.is_variable else inputs and node.op not in _WITHOUT_GRADIENT
        leads.append(on)
    return tuple(found)


def mark(name: str, params: Sequence[Any], heads: Sequence[str], custom: Sequence[str] = ()) -> None:
    """Note on a net's trained parameters whether a loss head gave their gradient in its last recorded call.

    The net runs as a cached graph, which autograd does not look into; ``heads`` are the loss heads of it, and
    ``custom`` its `own_gradients`.
    """
    where = f"block '{name}': node"
    if heads or custom:
        error = refused(f"{where} {heads[0]}") if heads else custom_refused(f"{where} '{custom[0]}'")
        for param in params:
            if param.grad_req != "null":
                setattr(param, _ATTRIBUTE, str(error))
    elif any(_ATTRIBUTE in vars(param) for param in params):
        forget(params)


def forget(params: Iterable[Any]) -> None:
    """Forget what `mark` noted: at the end of a step, whose gradients are used."""
    for param in params:
        vars(param).pop(_ATTRIBUTE, None)


def refuse(params: Iterable[Any]) -> None:
    """Raise a TrainerError, which names block and operator, if `mark` noted a loss head of one of the parameters."""
    for param in params:
        why = vars(param).get(_ATTRIBUTE)
        if why is not None:
            raise TrainerError(why)


def refused(where: str) -> TrainerError:
    """Return the error for a loss head; ``where`` names it."""
    return TrainerError(
        f"{where} is a loss head: its gradient does not depend on that of its output, so no loss scale reaches it. "
        f"Take it off and use a loss of mx.gluon.loss, or hybridize and convert the block that it is in "
        f"(mxmp.gluon.convert), or train without a loss scale (loss_scale=None, with 'mixed_bfloat16')."
    )


def custom_refused(where: str) -> TrainerError:
    """Return the error for a ``Custom`` operator that ignores the gradient of its output; ``where`` names it."""
    return TrainerError(
        f"{where} (Custom) ignores the gradient of its output (need_top_grad=False), so no loss scale reaches its own. "
        f"Have it multiply by that gradient; or put BlockGrad in front of it if its own is zero; or train without a "
        f"loss scale (loss_scale=None, with 'mixed_bfloat16')."
    )
