"""The calls of converted nets that a trainer's next step rests on, so that a step that fails can be run again.

A call that is recorded is noted with its inputs, detached from what was recorded before it, until the step is over;
where no step follows, until the same net is called again. Only where the next step will be told about if it is skipped,
or where a `mxmp.diagnose.Watch` asks for it, all calls are kept, up to `MOST_CALLS`, and zeros are added to the net's
outputs, whose gradients are those of the outputs. Else a net's last call on each context is kept. Where others were
made, nothing is said of what they may have given: neither that an input is bad data nor that all outputs are finite.

A loss may come through nets that the trainer does not train: a frozen one, or another trainer's. Their calls are noted
too, where a trainer of mxmp is alive; `NetCalls.reach` takes those over that were recorded of a loss.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..arrays import leaves
from ..loss_scale import NoOpLossScale
from ..mxnet_private import parameters
from ..train.recorded import node_name, recorded_names
from ..train.scaler import Scaler
from .blocks import blocks_in, conversions_of
from .cache import ConvertedGraph

ATTRIBUTE = "_calls"  # where a trainer has them
MOST_CALLS = 256  # that are kept of one step of a trainer

_NUMBERS = itertools.count()


@dataclass(eq=False)
class NetCall:
    """A recorded call of a converted net.

    Attributes:
        net: The net.
        graph: What ran.
        inputs: Its inputs, as a flat list; they share memory with what was given, but not its graph.
        context: Where it ran.
        training: Whether in training mode.
        outputs: What the net returned, if gradients are kept.
        zeros: What was added to its outputs, with the gradients of these; empty if they are not kept.
        follows_lost: Whether calls before it are not kept, which may have given its inputs.
        number: Its place among all calls.
        node: The name that autograd has for the operator that gave its first output; None if that is not needed.
        linked: Whether it is recorded how it came into the loss; not so of a frozen net that is called with data.
    """

    net: gluon.Block
    graph: ConvertedGraph
    inputs: Sequence[Any]
    context: Any
    training: bool
    outputs: Any = None
    zeros: Sequence[Any] = ()
    follows_lost: bool = False
    number: int = 0
    node: Optional[str] = None
    linked: bool = True


class NetCalls:
    """The recorded calls of the nets that a trainer trains, since its last step; or of a net that none trains.

    Attributes:
        scaler: The trainer's.
        watches: How many ask for the gradients of outputs at each step.
        most: How many calls are kept of one step; None for all.
        lost: How many calls of the present step are not kept, since others took their place.
    """

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler
        self.watches = 0
        self.most: Optional[int] = MOST_CALLS
        self.lost = 0
        self._noted = 0  # calls of the present step
        self._calls: Dict[Tuple[int, Any, int], NetCall] = {}
        self._reached: List[NetCall] = []  # of nets that the trainer does not train
        self._is_untrained = False  # whether no trainer trains the net

    @classmethod
    def of(cls, trainer: Any, scaler: Scaler) -> NetCalls:
        """Return those of a trainer, which has a scaler from now on."""
        found: NetCalls = vars(trainer).get(ATTRIBUTE) or cls(scaler)
        found.scaler = scaler
        _OF_TRAINERS.add(found)
        return found

    @classmethod
    def of_untrained(cls) -> Optional[NetCalls]:
        """Return what notes the calls of a net that no trainer trains; None if no trainer of mxmp can ask for them."""
        if not _OF_TRAINERS:
            return None
        found = cls(Scaler(NoOpLossScale()))
        found._is_untrained = True
        _OF_OTHERS.add(found)
        return found

    @classmethod
    def watching(cls, net: gluon.Block) -> NetCalls:
        """Return what notes all calls of the converted blocks in a net from now on, and its outputs' gradients."""
        found = cls(Scaler(NoOpLossScale()))
        found.watches, found.most = 1, None
        for conversion in conversions_of(blocks_in(net)):
            conversion.calls = found
        return found

    @property
    def noted(self) -> List[NetCall]:
        """The calls since the last step in their order, the last ones where there were many."""
        return sorted([*self._calls.values(), *self._reached], key=lambda call: call.number)

    def reach(self, loss: Any) -> None:
        """Take over the calls of other nets that were recorded of a loss, or of nested lists and tuples of losses."""
        if len(_OF_TRAINERS) < 2 and not _OF_OTHERS:
            return
        calls = [call for each in (*_OF_TRAINERS, *_OF_OTHERS) if each is not self for call in each.own]
        if calls:
            names = recorded_names(each for each in leaves(loss) if isinstance(each, mx.nd.NDArray))
            known = {call.number for call in self._reached}
            linked = (call for call in calls if call.node in names or not call.linked)
            self._reached += [call for call in linked if call.number not in known]

    @property
    def own(self) -> List[NetCall]:
        """The calls of nets that the trainer trains, in their order."""
        return list(self._calls.values())

    def note(self, net: gluon.Block, graph: ConvertedGraph, inputs: Sequence[Any], outputs: Any) -> Any:
        """Note a call, and return its outputs, with zeros added if gradients are kept."""
        context = next((each.ctx for each in inputs if isinstance(each, mx.nd.NDArray)), mx.context.current_context())
        inputs = [each.detach() if isinstance(each, mx.nd.NDArray) else each for each in inputs]
        call = NetCall(net, graph, inputs, context, autograd.is_training(), number=next(_NUMBERS))
        self._noted += 1
        key = 0
        asking = _OF_TRAINERS if self._is_untrained else (self,)
        if any(each.watches or each.scaler.next_skip_is_told for each in asking):
            call.zeros, key = [], self._noted
            outputs = call.outputs = _with_zeros(outputs, call.zeros)
        if self._is_untrained or len(_OF_TRAINERS) > 1:
            first = next(leaves(outputs), None)
            call.node = None if first is None else node_name(first)
            call.linked = not self._is_untrained or call.node is not None
        self._keep((id(net), context, key), call)
        return outputs

    def _keep(self, key: Tuple[int, Any, int], call: NetCall) -> None:
        """Keep a call, the last one; those that are too many, or that it replaces, are lost."""
        self.lost += self._calls.pop(key, None) is not None
        self._calls[key] = call
        if self.most is not None and len(self._calls) > self.most:
            del self._calls[next(iter(self._calls))]
            self.lost += 1
        for each in self._calls.values() if self.lost else ():
            each.follows_lost = True

    def forget(self) -> None:
        """Forget the calls: the step is over."""
        self._calls.clear()
        self.lost = self._noted = 0
        self._reached = []
        if _OF_OTHERS and not self._is_untrained:  # those have no step of their own
            for each in _OF_OTHERS:
                each.forget()


_OF_TRAINERS: weakref.WeakSet[NetCalls] = weakref.WeakSet()  # that are alive
_OF_OTHERS: weakref.WeakSet[NetCalls] = weakref.WeakSet()  # of nets that no trainer trains


def calls_of(params: Iterable[gluon.Parameter]) -> Optional[NetCalls]:
    """Return what notes the calls of a net with these parameters; None if no trainer of mxmp has them."""
    trainer = next(filter(None, map(parameters.trainer_of, params)), None)
    found: Optional[NetCalls] = None if trainer is None else vars(trainer).get(ATTRIBUTE)
    return found


def _with_zeros(outputs: Any, zeros: List[Any]) -> Any:
    """Return outputs, perhaps nested, each with a zero added that has a gradient."""
    if isinstance(outputs, (list, tuple)):
        items = [_with_zeros(each, zeros) for each in outputs]
        return type(outputs)(*items) if hasattr(outputs, "_fields") else type(outputs)(items)
    if not isinstance(outputs, mx.nd.NDArray):
        return outputs
    with autograd.pause():
        zero = (mx.np if isinstance(outputs, mx.np.ndarray) else mx.nd).zeros_like(outputs)
        zero.attach_grad("add")
    zeros.append(zero)
    return outputs + zero
