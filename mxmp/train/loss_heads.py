"""Loss heads within nets, which ignore the gradient of their output: scaled by an input of their own, or refused."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, Iterable, Iterator, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..errors import TrainerError
from ..graph import Graph
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


def mark(name: str, params: Sequence[Any], heads: Sequence[str]) -> None:
    """Note on a net's trained parameters whether a loss head gave their gradient in its last recorded call.

    The net runs as a cached graph, which autograd does not look into; ``heads`` are the loss heads of it.
    """
    if heads:
        for param in params:
            if param.grad_req != "null":
                setattr(param, _ATTRIBUTE, f"block '{name}': node {heads[0]}")
    elif any(_ATTRIBUTE in vars(param) for param in params):
        forget(params)


def forget(params: Iterable[Any]) -> None:
    """Forget what `mark` noted: at the end of a step, whose gradients are used."""
    for param in params:
        vars(param).pop(_ATTRIBUTE, None)


def refuse(params: Iterable[Any]) -> None:
    """Raise a TrainerError, which names block and operator, if `mark` noted a loss head of one of the parameters."""
    for param in params:
        where = vars(param).get(_ATTRIBUTE)
        if where is not None:
            raise refused(where)


def refused(where: str) -> TrainerError:
    """Return the error for a loss head; ``where`` names it."""
    return TrainerError(
        f"{where} is a loss head: its gradient does not depend on that of its output, so no loss scale reaches it. "
        f"Take it off and use a loss of mx.gluon.loss, or hybridize and convert the block that it is in "
        f"(mxmp.gluon.convert), or train without a loss scale (loss_scale=None, with 'mixed_bfloat16')."
    )
