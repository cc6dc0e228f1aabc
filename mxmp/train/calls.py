"""The calls of converted nets that a step rests on, noted so that a step that fails can be run again.

A call that is recorded is noted with its inputs, detached from the operators before it, until the step is over; where
no step follows, until the same net is called again. Only where the next step will be told about if it is skipped, or
where a `mxmp.diagnose.Watch` asks for it, all calls are kept, up to `MOST_CALLS`, and zeros are added to the net's
outputs, whose gradients are those of the outputs. Else a net's last call on each context is kept. Where others were
made, nothing is said of the values that these may have given: neither that an input is bad data nor that all outputs
are finite.

A loss may come through nets that the trainer does not train: a frozen one, or another trainer's. Their calls are noted
too, where a trainer of mxmp is alive; a trainer takes those over that were recorded of its loss. No net is kept alive.

Training knows nothing else of diagnosis: `mxmp.diagnose.watch` runs the calls again, and is imported when a step fails.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon

from ..arrays import leaves, nested
from ..mxnet_private import parameters
from .alive import Alive
from .recorded import node_name, recorded_names
from .scaler import Scaler

MOST_CALLS = 256  # that are kept of one step of a trainer

_ATTRIBUTE = "_mxmp_calls"  # where a trainer has them
_NUMBERS = itertools.count()


@dataclass(eq=False)
class NetCall:
    """A recorded call of a converted net.

    Attributes:
        net: The id of the net.
        name: The name of the net.
        graph: The graph that ran: a `mxmp.gluon.cache.ConvertedGraph`.
        inputs: Its inputs, as a flat list; they share memory with the user's arrays, but not their graph.
        context: Where it ran.
        training: Whether in training mode.
        number: Its place among all calls.
        outputs: The outputs of the net, if gradients are kept.
        zeros: The zeros that were added to its outputs, with the gradients of these; empty if they are not kept.
        follows_lost: Whether calls before it are not kept, which may have given its inputs.
        node: The name that autograd has for the operator that gave its first output; None if that is not needed.
        linked: Whether it is recorded how it came into the loss; not so of a frozen net that is called with data.
    """

    net: int
    name: str
    graph: Any
    inputs: Sequence[Any]
    context: Any
    training: bool
    number: int
    outputs: Any = None
    zeros: Sequence[Any] = ()
    follows_lost: bool = False
    node: Optional[str] = None
    linked: bool = True


class Calls:
    """The recorded calls since the last step of a trainer, or of a net that none trains.

    Attributes:
        scaler: The trainer's; None of a net that no trainer trains.
        watches: How many ask for the gradients of outputs at each step.
        most: How many calls are kept of one step; None for all.
        lost: How many calls of the present step are not kept, since others took their place.
    """

    def __init__(self, scaler: Optional[Scaler] = None, watches: int = 0, most: Optional[int] = MOST_CALLS) -> None:
        self.scaler, self.watches, self.most = scaler, watches, most
        self.forget()

    def forget(self) -> None:
        """Forget the calls: the step is over."""
        self.own: Dict[Tuple[int, Any, int], NetCall] = {}
        self.reached: Dict[int, NetCall] = {}  # of nets that the trainer does not train
        self.lost = self._count = 0

    @property
    def noted(self) -> List[NetCall]:
        """The calls since the last step in their order, the last ones where there were many."""
        return sorted([*self.own.values(), *self.reached.values()], key=lambda call: call.number)

    @property
    def wants_gradients(self) -> bool:
        """Whether the gradients of outputs are to be kept in the present step."""
        return self.watches > 0 or (self.scaler is not None and self.scaler.next_skip_is_told)

    def keep(self, call: NetCall) -> None:
        """Keep a call; those that are too many, or that it replaces, are lost."""
        self._count += 1
        # Without gradients to keep, the last call of a net on a context takes the place of the one before.
        key = call.net, call.context, self._count if call.outputs is not None else 0
        self.lost += self.own.pop(key, None) is not None
        self.own[key] = call
        if self.most is not None and len(self.own) > self.most:
            del self.own[next(iter(self.own))]
            self.lost += 1
        for each in self.own.values() if self.lost else ():
            each.follows_lost = True


class CallRecorder:
    """Notes calls, for trainers and for recordings."""

    def __init__(self) -> None:
        self._trainers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_others: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()  # nets
        self._recordings: List[Tuple[Sequence[int], Calls]] = []

    def of(self, trainer: Any) -> Calls:
        """Return the calls of a trainer, which has them itself: a table would keep it alive, as they refer to it."""
        calls: Calls = vars(trainer)[_ATTRIBUTE]
        return calls

    @property
    def _of_trainers(self) -> List[Calls]:
        trainers = list(self._trainers)
        return [self.of(each) for each in trainers if _ATTRIBUTE in vars(each)]  # not where an adoption was cut

    def add(self, trainer: gluon.Trainer, scaler: Scaler) -> None:
        """Note the calls of a trainer's nets from now on."""
        vars(trainer).setdefault(_ATTRIBUTE, Calls()).scaler = scaler
        self._trainers.add(trainer)

    def note(self, net: Any, params: Sequence[Any], graph: Any, inputs: Sequence[Any], outputs: Any) -> Any:
        """Note a recorded call of a converted net, and return its outputs, with zeros added if gradients are kept."""
        if not (self._trainers or self._recordings):
            return outputs
        calls = next((each for ids, each in reversed(self._recordings) if id(net) in ids), None)
        trainer = next(filter(None, map(parameters.trainer_of, params)), None)
        calls = calls or vars(trainer or self).get(_ATTRIBUTE)
        if calls is None and self._trainers:
            calls = self._of_others.setdefault(net, Calls())
        if calls is None:
            return outputs
        # A net that no trainer trains is asked for gradients if the step of any trainer might be explained.
        untrained = calls.scaler is None and not calls.watches
        context = next((each.ctx for each in inputs if isinstance(each, mx.nd.NDArray)), mx.context.current_context())
        inputs = [each.detach() if isinstance(each, mx.nd.NDArray) else each for each in inputs]
        call = NetCall(id(net), str(net.name), graph, inputs, context, autograd.is_training(), next(_NUMBERS))
        if any(each.wants_gradients for each in (self._of_trainers if untrained else [calls])):
            zeros: List[Any] = []
            call.zeros = zeros
            outputs = call.outputs = nested(outputs, lambda output: _with_zero(output, zeros))
        if untrained or len(self._trainers) > 1:
            first = next(leaves(outputs), None)
            call.node = None if first is None else node_name(first)
            call.linked = not untrained or call.node is not None
        calls.keep(call)
        return outputs

    def take_over(self, trainer: Any, loss: Any) -> None:
        """Give a trainer the calls of other nets that were recorded of its loss, or of nested lists of losses."""
        if len(self._trainers) < 2 and not self._of_others:
            return
        mine = self.of(trainer)
        others = [each for each in (*self._of_trainers, *self._of_others.values()) if each is not mine]
        calls = [call for each in others for call in each.own.values()]
        if calls:
            names = recorded_names(each for each in leaves(loss) if isinstance(each, mx.nd.NDArray))
            mine.reached.update((call.number, call) for call in calls if call.node in names or not call.linked)

    def forget(self, trainer: Any) -> None:
        """Forget the calls of a trainer, and those of nets that none trains, which have no step of their own."""
        for calls in (self.of(trainer), *self._of_others.values()):
            calls.forget()

    @contextlib.contextmanager
    def recording(self, blocks: Iterable[gluon.Block]) -> Iterator[Calls]:
        """Note all recorded calls of converted blocks within this context, and the gradients of their outputs."""
        calls = Calls(watches=1, most=None)
        entry = [id(block) for block in blocks], calls
        self._recordings.append(entry)
        try:
            yield calls
        finally:
            self._recordings.remove(entry)


def _with_zero(output: Any, zeros: List[Any]) -> Any:
    """Return an output with a zero added that has a gradient."""
    if not isinstance(output, mx.nd.NDArray):
        return output
    with autograd.pause():
        zero = (mx.np if isinstance(output, mx.np.ndarray) else mx.nd).zeros_like(output)
        zero.attach_grad("add")
    zeros.append(zero)
    return output + zero


RECORDER = CallRecorder()
"""The one recorder: a net does not know who trains it."""


def explain_steps(scaler: Scaler, owner: Any) -> None:
    """Have the steps that a trainer or module makes with a scaler explained where they fail."""
    if isinstance(owner, gluon.Trainer):
        RECORDER.add(owner, scaler)
    scaler.explain, scaler.bad_input = (
        functools.partial(_ask, name, Alive([owner])) for name in ("explain_step", "bad_input")
    )


def _ask(name: str, owners: Alive) -> Optional[str]:  # of a module, as scalers are copied and pickled with trainers
    """Return what diagnosis says of the present step; it is imported by name, as it stands above this."""
    ask: Callable[[Any], Optional[str]] = getattr(importlib.import_module("mxmp.diagnose.watch"), name)
    return next(map(ask, owners), None)
