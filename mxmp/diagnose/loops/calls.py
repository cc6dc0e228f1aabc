"""The calls of the nets from one step of a loop to the next: hooks on the nets, and what is wrong with a call."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, NamedTuple, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ...mxnet_private import is_fresh, parameters
from ...train.recorded import node_name
from .findings import LoopFindings
from .state import arrays_in, names_of


class Call(NamedTuple):
    """A call of a net: the sizes of its inputs by axis; whether it was recorded, in training mode; and where."""

    sizes: Tuple[Tuple[int, ...], ...]
    recorded: bool
    training: bool
    context: str

    @property
    def rows(self) -> int:
        """The size of the first axis of the first input; 0 if it has none."""
        return self.sizes[0][0] if self.sizes and self.sizes[0] else 0


class NetCalls:
    """Notes the calls of nets, and adds what is wrong with them to the findings.

    Attributes:
        nets: The nets.
        rows: The sizes of the batches that the nets were called with.
        outputs: The sizes of what the nets returned, by the names that autograd has for their nodes.
        is_over: Whether a step has used the calls, so that the next one begins a new iteration.
    """

    def __init__(self, nets: Sequence[gluon.Block], found: LoopFindings) -> None:
        self.rows: List[int] = []
        self.outputs: Dict[str, int] = {}
        self.is_over = False
        self.nets, self._found = nets, found
        self._calls: List[Call] = []  # since the last step
        self._called: Set[int] = set()  # nets that were called, or whose gradients were written
        self._divisors: Dict[int, Dict[float, List[int]]] = {}  # of steps by trainer, with batches that do not fit
        self._handles: List[Any] = []

    def attach(self) -> None:
        """Put hooks on the nets."""
        for net in self.nets:
            self._handles += [net.register_forward_pre_hook(self._note), net.register_forward_hook(self._note_outputs)]

    def detach(self) -> None:
        """Take them away."""
        for handle in self._handles:
            handle.detach()
        self._handles = []

    def _note(self, block: gluon.Block, inputs: Tuple[Any, ...]) -> None:
        arrays = [each for each in inputs if isinstance(each, mx.nd.NDArray)]
        if self.is_over:
            self._calls, self.is_over = [], False
        self._called.add(id(block))
        sizes, context = tuple(each.shape for each in arrays), str(arrays[0].ctx) if arrays else ""
        self._calls.append(Call(sizes, autograd.is_recording(), autograd.is_training(), context))
        self.rows += [array.shape[0] for array in arrays[:1] if array.shape]
        for array in arrays:
            if np.dtype(array.dtype) == np.float64:
                self._found.add(
                    "float64_data",
                    f"block '{block.name}' is called with float64 data, as numpy makes it; give it "
                    f"x.astype('float32').",
                )

    def _note_outputs(self, block: gluon.Block, inputs: Any, outputs: Any) -> None:
        for array in arrays_in(outputs):
            name = node_name(array)
            if name is not None:
                self.outputs[name] = array.size

    def check_called(self) -> None:
        """Find nets that nothing was done with, but for those that no trainer has."""
        never = [net.name for net in self.nets if id(net) not in self._called]
        if never and "wrong_trainer" not in self._found.kinds:
            self._found.add(
                "never_called",
                f"the loop did not call {names_of(never)}: does it work on another net, or on a copy? Give the net "
                f"that it calls.",
            )

    def check_written(self) -> None:
        """Note nets whose gradients were written: parts of these were called, if not they themselves."""
        for net in self.nets:
            params = [p for p in net.collect_params().values() if p.grad_req != "null" and parameters.is_initialized(p)]
            if any(is_fresh(data) for param in params for data in param.list_data()):
                self._called.add(id(net))

    def check_recorded(self) -> List[Call]:
        """Check how the nets were called since the last step, and return the calls that were recorded."""
        recorded = [call for call in self._calls if call.recorded]
        if self._calls and not recorded:
            self._found.add(
                "not_recorded",
                "the net was called outside of autograd.record(), so that backward does not reach it; call net and "
                "loss within it.",
            )
        elif recorded and not any(call.training for call in recorded):
            self._found.add(
                "not_training",
                "the net is called in autograd.record(train_mode=False): dropout and BatchNorm run as in inference. "
                "Leave train_mode out, if that is not meant.",
                "warning",
            )
        return recorded

    def check_size(self, trainer: Any, batch_size: Any, recorded: Sequence[Call], others: Collection[int]) -> None:
        """Note what a step of a trainer divides by: the size of a batch, another number that may be meant, or none."""
        if recorded and isinstance(batch_size, (int, float)):
            is_meant = batch_size in others or fits(batch_size, recorded)
            rows = [] if is_meant else [call.rows for call in recorded if call.rows]
            found = self._divisors.setdefault(id(trainer), {})
            found[batch_size] = rows or found.get(batch_size, [])

    def check_sizes(self) -> None:
        """Find a wrong number that steps divide by; not one that changes from step to step: it may count tokens."""
        for batch_size, rows in (pair for each in self._divisors.values() if len(each) == 1 for pair in each.items()):
            if rows:
                self._found.add(
                    "batch_size",
                    f"step divides the gradients by {batch_size:g}, but the net was called with batches of "
                    f"{', '.join(map(str, rows))}; give the number of examples (data.shape[0]; of all contexts "
                    f"together), or 1 if the loss is a mean.",
                    "warning",
                )


def _together(calls: Sequence[Call]) -> List[Call]:
    """Return calls, those that are parts of one batch, on several contexts, as one."""
    by_context: Dict[str, List[Call]] = {}
    for call in calls:
        by_context.setdefault(call.context, []).append(call)
    if len(by_context) == 1 or len({*map(len, by_context.values())}) > 1:
        return list(calls)
    found = []
    for parts in zip(*by_context.values()):
        sizes = [tuple(map(sum, zip(*shapes))) for shapes in zip(*[part.sizes for part in parts])]
        found.append(parts[0]._replace(sizes=tuple(sizes)))
    return found


def fits(batch_size: float, calls: Sequence[Call]) -> bool:
    """Return whether a batch size is that of calls, of one or of all of them, on any axis, or 1 for a mean loss."""
    calls = _together(calls)
    sizes = [{size for shape in call.sizes for size in shape} for call in calls]
    if not all(sizes):
        return True  # nothing is known
    single = set().union(*sizes)
    sums = {sum(call.sizes[0][axis] for call in calls) for axis in range(min(len(call.sizes[0]) for call in calls))}
    return batch_size in {1, *single, *sums, *(size * len(calls) for size in single)}
