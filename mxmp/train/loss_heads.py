"""Losses times the loss scale; and loss heads within nets, which ignore the gradient of their output.

A loss is multiplied by the scale. The scale is a variable of autograd, whose gradient tells whether a backward came
through. A loss head gets an input for the scale, or is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import weakref
from typing import Any, Callable, Container, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..arrays import is_low_precision
from ..errors import NoBackwardError, TrainerError, UnscaledLossError, a_type_of
from ..graph import Entry, Graph, Node
from ..graph.core import VARIABLE, make_attrs
from ..mxnet_private import ignores_output_gradient
from ..passes.base import CUSTOM
from ..passes.scale_loss import is_loss_head
from .window import LOCK

# ------------------------------------------------------------------ recorded operators

# The text of a variable, and that of an operator, as nnvm::Symbol::Print writes them.
_NODE = re.compile(
    r"^(?:Variable:(?P<variable>.*)"
    r"|Op:(?P<op>.*), Name=(?P<name>.*)\nInputs:\n(?P<inputs>(?:\targ.*\n)*)(?:Attrs:\n(?P<attrs>(?:\t.*\n)*))?)",
    re.MULTILINE,
)
_INPUT = re.compile(r"\targ\[\d+\]=(.*)\((\d+)\)")
_NODE_ATTRIBUTE = re.compile(r"\t(.*?)=(.*)")


def is_recorded(array: mx.nd.NDArray) -> bool:
    """Return whether autograd has a node for an array; False again after a backward that freed its graph."""
    try:
        array._fresh_grad = array._fresh_grad  # MXNet refuses it if there is no node that has the flag.
    except mx.MXNetError:
        return False
    return True


def recorded_nodes(array: mx.nd.NDArray) -> Sequence[Node]:
    """Return the operators and variables that autograd has recorded of an array, in the order in which they run.

    There are none if nothing was recorded. Entries have no versions. A cached graph is one operator here.
    """
    # In MXNet 1.9.1 ``tojson`` leaks half a kilobyte of memory for each operator.
    text = str(autograd.get_symbol(array).debug_str()) if is_recorded(array) else ""
    nodes: List[Node] = []
    positions: Dict[str, int] = {}
    for match in _NODE.finditer(text):
        if match["op"] is None:
            node = Node(VARIABLE, match["variable"])
        else:
            inputs = tuple(Entry(positions[name], int(index)) for name, index in _INPUT.findall(match["inputs"]))
            attrs = make_attrs(dict(_NODE_ATTRIBUTE.findall(match["attrs"] or "")))
            node = Node(match["op"], match["name"], attrs, inputs)
        positions[node.name] = len(nodes)
        nodes.append(node)
    return nodes


# ------------------------------------------------------------------ losses times the scale

_DO = (
    "Run backward on the loss that scale_loss yields, inside its block (or on the one that get_scaled_loss returns): "
    "`with trainer.scale_loss(loss) as scaled: scaled.backward()`; for a list autograd.backward(scaled). An "
    "autograd.grad with retain_graph=True is not seen; call backward(retain_graph=True) in its place."
)


class _Product(mx.nd.NDArray):
    """A loss times the scale, which tells its block, if that is there still, of each ``backward``."""

    __slots__ = ("block", "loss")

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients, as the ``backward`` of an array of this kind."""
        block = self.block()
        with contextlib.nullcontext() if block is None else block.backward_of(self.loss):
            super().backward(*args, **kwargs)


class _NumpyProduct(_Product, mx.np.ndarray):
    """The same of ``mx.np``."""

    __slots__ = ()


@dataclasses.dataclass
class ScaledLoss:
    """One loss, and the product of it and the scale.

    Attributes:
        path: The name of the loss in errors: 'loss', 'loss[1]'.
        loss: The user's loss.
        cast_loss: ``loss``, cast to float32 if it has low precision.
        scaled: ``cast_loss`` times the loss scale.
        factor: The loss scale as a variable of autograd, whose gradient every backward pass through
            ``scaled`` writes; None where autograd did not record the loss.
        is_announced: Whether ``scaled.backward()`` has told the block of a backward.
    """

    path: str
    loss: mx.nd.NDArray
    cast_loss: mx.nd.NDArray
    scaled: mx.nd.NDArray
    factor: Optional[mx.nd.NDArray]
    is_announced: bool = False

    @property
    def reached(self) -> bool:
        """Whether a backward pass came through; ``autograd.grad`` counts where it frees the graph."""
        # The flag of the product's own node is set when it is made and goes with the node.
        return self.factor is not None and bool(self.factor._fresh_grad or not self.scaled._fresh_grad)


class Factors:
    """Loss scales as variables of autograd, made once and used again while the scale stays the same."""

    def __init__(self) -> None:
        self._scale: Optional[float] = None
        self._made: Dict[Tuple[Any, ...], List[mx.nd.NDArray]] = {}
        self._used: Dict[Tuple[Any, ...], int] = {}

    def multiply(self, path: str, loss: mx.nd.NDArray, scale: float, block: Any = None) -> ScaledLoss:
        """Return a loss times the scale, recorded if the loss is. One operator forward, one backward.

        If there is a block, the product tells it of each ``backward``.
        """
        cast_loss = _cast_up(loss)
        if is_recorded(cast_loss):
            factor = self._next(cast_loss, scale)
            # Recorded outside of record() too, where the forward pass has ended already.
            with autograd.record():
                scaled = cast_loss * factor
            factor._fresh_grad = False
            scaled._fresh_grad = True
        else:
            factor, scaled = None, cast_loss * scale
        result = ScaledLoss(path, loss, cast_loss, scaled, factor)
        if block is not None:
            kind: Any = _NumpyProduct if isinstance(scaled, mx.np.ndarray) else _Product
            handle, scaled.handle = scaled.handle, None  # One array at any time owns the handle, and frees it.
            result.scaled = kind(handle)
            result.scaled.block, result.scaled.loss = weakref.ref(block), result
        return result

    def release(self) -> None:
        """Let the variables be used again: at the end of a step, whose graphs are freed."""
        self._used.clear()

    def _next(self, like: mx.nd.NDArray, scale: float) -> mx.nd.NDArray:
        if scale != self._scale:
            self._scale, self._made, self._used = scale, {}, {}
        shape = (1,) if like.ndim else ()
        key = like.ctx, np.dtype(like.dtype).name, shape, type(like)
        made, used = self._made.setdefault(key, []), self._used.get(key, 0)
        if used == len(made):
            with autograd.pause():
                factor = mx.nd.full(shape, scale, ctx=like.ctx, dtype=like.dtype)
                grad = mx.nd.empty(shape, like.ctx, like.dtype)
            if isinstance(like, mx.np.ndarray):
                factor, grad = factor.as_np_ndarray(), grad.as_np_ndarray()
            autograd.mark_variables([factor], [grad])
            made.append(factor)
        self._used[key] = used + 1
        return made[used]


def map_losses(loss: Any, function: Callable[[str, mx.nd.NDArray], mx.nd.NDArray], path: str = "loss") -> Any:
    """Return a loss, or nested lists and tuples of losses, with every array mapped; the containers are kept.

    Raises TrainerError if there is anything but floating point arrays.
    """
    if isinstance(loss, (list, tuple)):
        items = [map_losses(item, function, f"{path}[{i}]") for i, item in enumerate(loss)]
        return type(loss)(*items) if hasattr(loss, "_fields") else type(loss)(items)
    if not isinstance(loss, mx.nd.NDArray):
        raise TrainerError(
            f"scale_loss: {path} is {a_type_of(loss)}; expected an NDArray, or lists and tuples of them."
        )
    if not is_low_precision(loss) and loss.dtype not in (np.float32, np.float64):
        raise TrainerError(f"scale_loss: {path} has dtype {np.dtype(loss.dtype)}; expected a float.")
    if isinstance(loss, _Product) and getattr(loss.block(), "windows", None):
        raise TrainerError(
            f"scale_loss: {path} is scaled by another trainer already. To scale one loss for several "
            "trainers call first.scale_loss(loss, second)."
        )
    return function(path, loss)


def _cast_up(loss: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a loss in float32, or float64; recorded outside of record() too."""
    if not is_low_precision(loss):
        return loss
    # The operator Cast. In MXNet 1.9.1 amp_cast (AMPCastExCPU) and astype (_copyto) lose gradients
    # that are added up, because their backward ignores kAddTo.
    cast = mx.npx.cast if isinstance(loss, mx.np.ndarray) else mx.nd.Cast
    with autograd.record():
        return cast(loss, dtype="float32")


def require_backward(losses: Iterable[ScaledLoss], written: Callable[[], Optional[str]] = lambda: None) -> bool:
    """Check that backward came through all losses of a step that are recorded; return whether there are any.

    A loss that is not recorded may be a constant among others; MXNet's own backward refuses it. ``written`` names a
    parameter that a backward wrote in the meantime. The error says which backward was called instead.
    """
    losses = list(losses)
    recorded = [each for each in losses if each.factor is not None]
    missed = [each for each in recorded or losses if not each.reached]
    if not missed:
        return bool(recorded)
    first = missed[0]
    if first.factor is not None and not is_recorded(first.loss):
        raise UnscaledLossError(
            f"backward was called on {first.path} itself, not on {first.path} times the loss scale, so that its "
            f"gradients are not scaled. {_DO}"
        )
    name = written() if len(missed) == len(recorded or losses) else None
    if name is not None:
        raise UnscaledLossError(
            f"no backward was called on {first.path} times the loss scale, but one of another loss, or of "
            f"{first.path} itself, wrote the gradient of parameter '{name}', which is not scaled. {_DO}"
        )
    if recorded:
        raise NoBackwardError(f"no backward was called on {first.path} times the loss scale. {_DO}")
    return False


def explain_unrecorded_loss(losses: Sequence[ScaledLoss], error: Optional[BaseException]) -> None:
    """Raise a TrainerError in the place of MXNet's if it is of a backward through a loss that is not recorded."""
    path = next((each.path for each in losses if each.factor is None), None)
    if path is not None and isinstance(error, mx.MXNetError) and "not in a computational graph" in str(error):
        raise TrainerError(
            f"scale_loss: {path} was not recorded, so that it has no gradients; compute it within autograd.record(), "
            "and of outputs that are not detached."
        ) from error


# ------------------------------------------------------------------ loss heads that read the scale

_ATTRIBUTE = "_mxmp_loss_head"
"""Attribute of a parameter: the message of the loss head that gave its gradient, and that no scale reaches."""

_MOST_HEADS = 1024  # Calls with loss heads that may wait for their backward.
_MOST_PASSED = 8  # Blocks of other trainers after which a call counts as one without a backward, as in evaluation.


class _HeadCall:
    """A recorded call of a net with loss heads: the scale that they read, and who will run its backward."""

    def __init__(self, scale: mx.nd.NDArray) -> None:
        self.scale, self.value, self.thread = scale, 1.0, threading.get_ident()
        self.passed = 0  # blocks of this thread by other trainers, without a backward
        self.trainers: Sequence["weakref.ref[Any]"] = ()

    def write(self, value: float) -> None:
        self.value = value
        self.scale[:] = value

    def is_of(self, trainers: Iterable[Any]) -> bool:
        return any(each() is trainer for each in self.trainers for trainer in trainers)


class HeadScale(gluon.Parameter):
    """The loss scale that loss heads of converted nets read, an array of its own for each call.

    A net runs before its loss is scaled, so the array is 1 at first. The block of `scale_loss` writes the scale into
    it. Autograd holds the array itself, and MXNet's engine keeps the order. A block writes to the calls of its own
    thread, and to those of nets that its trainers train.
    """

    def __init__(self) -> None:
        super().__init__("mxmp_loss_scale", grad_req="null", shape=(1,))
        self._calls: List[_HeadCall] = []
        self._full = 32  # calls, at which those that have ended are left out

    def __reduce__(self) -> str:
        return "HEAD_SCALE"

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the scale of one call on a context, float32, shape (1,): a new array."""
        with autograd.pause():
            scale = mx.nd.ones((1,), ctx=ctx or mx.context.current_context())
        if autograd.is_recording():
            call = _HeadCall(scale)
            with LOCK:
                if len(self._calls) >= self._full:  # calls of this thread end once a backward has freed their graph
                    waiting = [each for each in self._calls if each.thread != call.thread or is_recorded(each.scale)]
                    self._calls = waiting[1 - _MOST_HEADS :]
                    self._full = max(32, 2 * len(self._calls))
                self._calls.append(call)
        return scale

    def note_trainers(self, params: Iterable[Any]) -> None:
        """Note the trainers of a net whose recorded call in this thread was the last one with loss heads."""
        trainers = {id(each): each for each in (param._trainer for param in params) if each is not None}
        with LOCK:
            mine = [each for each in self._calls if each.thread == threading.get_ident()]
            if mine:
                mine[-1].trainers = [weakref.ref(each) for each in trainers.values()]

    def write(self, scale: float, trainers: Sequence[Any], changed: List[Tuple[_HeadCall, float]]) -> None:
        """Have the gradients of loss heads multiplied by a scale: in calls of this thread, and of the trainers' nets.

        Calls of other nets are noted in ``changed``, with their scales before, each before it changes: for `give_back`,
        also where this is interrupted.
        """
        with autograd.pause():
            for call in list(self._calls):
                is_of_trainers = call.is_of(trainers)
                is_near = call.thread == threading.get_ident() and call.passed < _MOST_PASSED
                if is_near and not is_of_trainers:
                    call.passed += 1
                    changed.append((call, call.value))
                if is_of_trainers or is_near:
                    call.write(scale)

    def forget(self, trainer: Any) -> None:
        """Forget the calls of nets that a trainer trains, and the notes of `mark`: its step is over."""
        for param in trainer._params:
            vars(param).pop(_ATTRIBUTE, None)
        if self._calls:
            with LOCK:
                self._calls = [each for each in self._calls if not each.is_of([trainer])]

    @staticmethod
    def give_back(changed: Iterable[Tuple[_HeadCall, float]]) -> None:
        """Give calls the scales that they had before."""
        with autograd.pause():
            for call, value in changed:
                call.write(value)


HEAD_SCALE = HeadScale()


def loss_heads(graph: Graph) -> Tuple[str, ...]:
    """Return the loss heads of a graph (SoftmaxOutput, make_loss, ...), each by its name and operator."""
    return tuple(str(node) for node in graph.operators() if is_loss_head(node))


# ------------------------------------------------------------------ loss heads that no scale reaches


# Operators whose inputs get no gradient from them, or zeros.
_WITHOUT_GRADIENT = frozenset({"BlockGrad", "_contrib_Proposal", "_contrib_MultiProposal", "argmax", "argsort", "topk"})


def own_gradients(nodes: Sequence[Node], params: Container[str]) -> Tuple[str, ...]:
    """Return the ``Custom`` operators that give parameters a gradient and ignore that of their output, by name.

    So they say (``need_top_grad=False``); behind a BlockGrad too, MXNet asks them for their gradient.
    """
    leads: List[bool] = []  # by position, whether a gradient goes on to a parameter
    names = []
    for node in nodes:
        inputs = any(leads[each.node] for each in node.inputs)
        if node.op == CUSTOM and inputs and ignores_output_gradient(dict(node.attrs)):
            names.append(node.name)
        on = node.name in params if node.is_variable else inputs and node.op not in _WITHOUT_GRADIENT
        leads.append(on)
    return tuple(names)


def mark(name: str, params: Sequence[Any], heads: Sequence[str], custom: Sequence[str] = ()) -> None:
    """Note on a net's trained parameters whether a loss head gave their gradient in its last recorded call.

    The net runs as a cached graph, which autograd does not look into; ``heads`` are the loss heads of it, and
    ``custom`` its `own_gradients`.
    """
    where = f"block '{name}': node"
    if heads or custom:
        error = _refused(f"{where} {heads[0]}") if heads else _custom_refused(f"{where} '{custom[0]}'")
        for param in params:
            if param.grad_req != "null":
                setattr(param, _ATTRIBUTE, str(error))
    else:
        for param in params:
            vars(param).pop(_ATTRIBUTE, None)


def refuse(params: Iterable[Any]) -> None:
    """Raise a TrainerError, which names block and operator, if `mark` noted a loss head of one of the parameters."""
    for param in params:
        why = vars(param).get(_ATTRIBUTE)
        if why is not None:
            raise TrainerError(why)


def refuse_recorded(losses: Iterable[ScaledLoss]) -> None:
    """Raise if a loss comes from an operator that ignores the gradient of its output, and ran outside of any graph."""
    for nodes in (recorded_nodes(each.cast_loss) for each in losses):
        for node in filter(is_loss_head, nodes):
            raise _refused(f"node {node}")
        # Arrays without gradients are null0, null1 (Imperative::RecordOp in src/imperative/imperative.cc at tag 1.9.1).
        variables = {node.name for node in nodes if node.is_variable and not node.name.startswith("null")}
        custom = own_gradients(nodes, variables)
        for node in nodes:
            if node.name in custom:
                raise _custom_refused(f"node '{node.get('op_type')}'")


def _refused(where: str) -> TrainerError:
    return TrainerError(
        f"{where} is a loss head: its gradient does not depend on that of its output, so no loss scale reaches it. "
        f"Take it off and use a loss of mx.gluon.loss, or hybridize and convert the block that it is in "
        f"(mxmp.gluon.convert), or train without a loss scale (loss_scale=None, with 'mixed_bfloat16')."
    )


def _custom_refused(where: str) -> TrainerError:
    """Return the error for a ``Custom`` operator that ignores the gradient of its output; ``where`` names it."""
    return TrainerError(
        f"{where} (Custom) ignores the gradient of its output (need_top_grad=False), so no loss scale reaches its own. "
        f"Have it multiply by that gradient; or put BlockGrad in front of it if its own is zero; or train without a "
        f"loss scale (loss_scale=None, with 'mixed_bfloat16')."
    )
