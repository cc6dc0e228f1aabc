"""The optimizer of a module, or of all buckets of one, and its weights as those of a training step."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx

from ..arrays import to_float32
from ..distributed import KVStore
from ..train import states
from ..train.masters import MasterState, MultiPrecision, Update, copy_to_other_contexts
from ..train.running_stats import Named
from ..train.scaler import Scaler
from ..train.states import Described, Target
from ..train.step import Step, Weights


class Weight(NamedTuple):
    """One trained parameter: its value and gradient on each context; ``grads`` is the executor group's own list."""

    name: str
    arrays: List[mx.nd.NDArray]
    grads: List[mx.nd.NDArray]
    accumulates: bool


class Training:
    """An optimizer at work on the weights of a module, or of all buckets of one.

    Args:
        scaler: The loss scale.
        optimizer: The optimizer, with masters for low precision weights.
        kvstore: Sums gradients over the contexts; None leaves every context its own.
        contexts: The contexts. There is an updater for each, but with a kvstore for the first alone: see `Weights`.
        weights: All parameters in the order of the optimizer's indices.
        values: What they are rounded from: float32 arrays by name. With a kvstore over several workers
            these and the weights become worker 0's.
    """

    def __init__(
        self,
        scaler: Scaler,
        optimizer: MultiPrecision,
        kvstore: Any,
        contexts: Sequence[mx.Context],
        weights: Sequence[Weight],
        values: Mapping[str, mx.nd.NDArray],
    ) -> None:
        self.step = Step(scaler)
        self.optimizer = optimizer
        self.kvstore = kvstore
        self._contexts = list(contexts if kvstore is None else contexts[:1])
        self.updaters = [mx.optimizer.get_updater(optimizer) for _ in self._contexts]
        self._params = [Described(w.name, w.arrays[0].shape, w.arrays[0].dtype) for w in weights]
        self.indices = {weight.name: index for index, weight in enumerate(weights)}
        for weight in weights if kvstore is not None else ():
            if isinstance(kvstore, KVStore):
                value = values[weight.name]
                first = value.as_in_context(weight.arrays[0].ctx)
                kvstore.broadcast(weight.name, first, [value, *weight.arrays])
            else:
                kvstore.init(weight.name, to_float32(weight.arrays[0]))  # it sums in the dtype that it is given first

    # ------------------------------------------------------------------ masters

    def master(self, name: str, number: int) -> Optional[mx.nd.NDArray]:
        """Return the float32 master of a parameter on a context, None if it has none."""
        state = self.updaters[number].states.get(self.indices.get(name))
        return state.master if isinstance(state, MasterState) else None

    def set_master(self, weight: Weight, value: mx.nd.NDArray) -> None:
        """Give a low precision parameter its exact float32 value, which its arrays are rounded from."""
        index = self.indices[weight.name]
        for number, array in enumerate(weight.arrays[: len(self.updaters)]):
            master = self.master(weight.name, number)
            if master is not None:
                value.copyto(master)
            elif self.optimizer.masters and index not in self.updaters[number].states:
                master = value.copyto(array.ctx)
                self.updaters[number].states[index] = self.optimizer.create_state_of_master(index, master)
                self.updaters[number].states_synced[index] = True
        if len(self.updaters) < len(weight.arrays):
            copy_to_other_contexts(weight.arrays)

    # ------------------------------------------------------------------ states

    def save(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file."""
        self.step.scaler.require_ready("save_optimizer_states")
        states.save(fname, self._target(), self.step.scaler.to_dict())

    def load(self, fname: str) -> None:
        """Load what `save` saved; a StateError changes nothing."""
        self.step.scaler.require_ready("load_optimizer_states")
        states.restore(fname, self._target(), self.step.scaler)

    def _target(self) -> Target:
        return Target(self.optimizer, self.updaters, self._contexts, self._params)


class BoundWeights(Weights):
    """The weights of one module that backward wrote gradients of, with what its loss heads gave (``losses``)."""

    flags_losses = False

    def __init__(
        self, training: Training, weights: Sequence[Weight], losses: Sequence[mx.nd.NDArray], running_stats: Named
    ) -> None:
        self.optimizer, self.updaters, self.kvstore = training.optimizer, training.updaters, training.kvstore
        self._weights = {training.indices[weight.name]: weight for weight in weights}
        self._contexts = len(weights[0].arrays) if weights else 0
        self._losses, self._running_stats = losses, running_stats

    def groups(self) -> List[List[Update]]:
        """Return all weights, for each context."""
        return [
            [Update(index, weight.grads[k], weight.arrays[k]) for index, weight in self._weights.items()]
            for k in range(self._contexts)
        ]

    def name(self, index: int) -> str:
        """Return the name of a weight."""
        return self._weights[index].name

    def accumulates(self, index: int) -> bool:
        """Return whether a weight was bound with ``grad_req='add'``."""
        return self._weights[index].accumulates

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradients of a weight on all contexts."""
        return list(self._weights[index].grads)

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the executor group's ``grad_arrays`` hold other arrays."""
        for index, arrays in grads.items():
            self._weights[index].grads[:] = arrays

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers."""
        for index, weight in self._weights.items() if self.kvstore is not None else ():
            if weight.grads[0].stype == weight.arrays[0].stype == "default":
                self.kvstore.pushpull(weight.name, weight.grads, priority=-index)
            else:
                self.kvstore.push(weight.name, weight.grads, priority=-index)
                self.kvstore.pull(weight.name, out=weight.grads, priority=-index, ignore_sparse=False)

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Give contexts without an updater the weights of those that have one."""
        for index in indices if len(self.updaters) < self._contexts else ():
            copy_to_other_contexts(self._weights[index].arrays)

    def losses(self) -> Sequence[mx.nd.NDArray]:
        """Return what the loss heads gave, which says whether the loss itself is finite."""
        return self._losses

    def running_stats(self) -> Named:
        """Return the running statistics on every context."""
        return self._running_stats
