"""How a module and its buckets take a step: reduce, check, unscale, update or skip."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.casts import is_low_precision, to_float32
from ..arrays.finite import first_non_finite
from ..arrays.norms import clip_coefficient, scale_in_place
from ..distributed import KVStore
from ..masters.copies import follow
from ..masters.optimizer import MasterState
from ..optimizer import MultiPrecision, all_finite
from ..scaling.scaler import Scaler, Stage, non_finite_loss
from ..training import states
from ..training.running_stats import Named, Statistics


class Weight(NamedTuple):
    """One trained parameter.

    Attributes:
        name: Its name.
        arrays: Its value on each context.
        grads: Its gradient on each context; a list of the executor group's own, where `unscale`
            puts float32 copies of low precision gradients.
    """

    name: str
    arrays: List[mx.nd.NDArray]
    grads: List[mx.nd.NDArray]


class _Param(NamedTuple):
    """What saved states say of a parameter."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any


class Training:
    """An optimizer at work on the weights of a module, or of all buckets of one.

    Attributes:
        scaler: The loss scale and the present window.
        optimizer: The optimizer, with masters for low precision weights.
        statistics: The running statistics as they last were finite.
        updaters: One per context; with a kvstore one alone, whose weights the other contexts copy:
            optimizers that draw noise, or count their calls, would let them drift apart.

    Args:
        scaler: As above.
        optimizer: As above.
        kvstore: Sums gradients over the contexts; None leaves every context its own.
        contexts: The contexts.
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
        self.scaler = scaler
        self.optimizer = optimizer
        self._kvstore = kvstore
        self._contexts = list(contexts if kvstore is None else contexts[:1])
        self.updaters = [mx.optimizer.get_updater(optimizer) for _ in self._contexts]
        self._params = [_Param(w.name, w.arrays[0].shape, w.arrays[0].dtype) for w in weights]
        self._indices = {weight.name: index for index, weight in enumerate(weights)}
        self.statistics = Statistics()
        # Lists of gradients that show float32 copies, with what they held.
        self._shown: List[Tuple[List[mx.nd.NDArray], List[mx.nd.NDArray]]] = []
        for weight in weights if kvstore is not None else ():
            if self._workers:
                value = values[weight.name]
                first = value.as_in_context(weight.arrays[0].ctx)
                self._workers.broadcast(weight.name, first, [value, *weight.arrays])
            else:
                kvstore.init(weight.name, weight.arrays[0])

    @property
    def _workers(self) -> Optional[KVStore]:
        """The kvstore if it sums over workers, which must all decide alike."""
        return self._kvstore if isinstance(self._kvstore, KVStore) else None

    # ------------------------------------------------------------------ masters

    def master(self, name: str, number: int) -> Optional[mx.nd.NDArray]:
        """Return the float32 master of a parameter on a context, None if it has none."""
        state = self.updaters[number].states.get(self._indices.get(name))
        return state.master if isinstance(state, MasterState) else None

    def set_master(self, weight: Weight, value: mx.nd.NDArray) -> None:
        """Give a low precision parameter its exact float32 value, which its arrays are rounded from.

        Args:
            weight: The parameter.
            value: Float32, its shape, on any context.
        """
        index = self._indices[weight.name]
        for number, array in enumerate(weight.arrays[: len(self.updaters)]):
            master = self.master(weight.name, number)
            if master is not None:
                value.copyto(master)
                follow(master, array)
            elif self.optimizer.masters and index not in self.updaters[number].states:
                master = value.copyto(array.ctx)
                follow(master, array)
                inner = self.optimizer.inner.create_state_multi_precision(index, master)
                self.updaters[number].states[index] = MasterState(master, inner)
                self.updaters[number].states_synced[index] = True
        self._copy([weight])

    # ------------------------------------------------------------------ one window

    def unscale(self, weights: Sequence[Weight]) -> None:
        """Make the gradients true ones, in float32, reduced over the contexts."""
        window = self.scaler.window
        self._reduce(weights)
        if weights and self.scaler.checks:
            window.grad_flag = all_finite(_gradients(weights))
        self._widen(weights)
        scale_in_place(_gradients(weights), 1.0 / window.scale)
        window.stage = Stage.UNSCALED

    def clip_global_norm(self, weights: Sequence[Weight], max_norm: float, running: Named) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before."""
        if self.scaler.window.stage is not Stage.UNSCALED:
            self.unscale(weights)
        if not weights:
            return 0.0
        if self.scaler.checks:
            self.scaler.window.statistics_flag = self.statistics.check(running)
        norm = self.scaler.read_norm([[weight.grads[k] for weight in weights] for k in range(len(self._contexts))])
        if self.scaler.window.finite is not False:
            scale_in_place(_gradients(weights), clip_coefficient(norm, max_norm))
        return norm

    def step(self, weights: Sequence[Weight], losses: Sequence[mx.nd.NDArray], running: Named) -> bool:
        """Reduce the gradients, check them, and update the weights or skip; end the window.

        Args:
            weights: Those whose gradients backward has written.
            losses: What the loss heads gave; looked at, with a second host read, only where
                gradients are not finite.
            running: The running statistics by name, on every context.

        Returns:
            Whether the weights were updated.

        Raises:
            NonFiniteLossError: If the gradients are not finite because the losses are not.
            LossScaleError: If the loss scale gave up; nothing is updated.
        """
        scaler, window = self.scaler, self.scaler.window
        self._reduce(weights)
        # Gradients of a scale below 1 may overflow when they are unscaled, so that comes first.
        unscale_first = window.scale < 1.0 or self.optimizer.needs_unscaled_gradients
        if window.stage is Stage.SCALED and window.scale != 1.0 and unscale_first:
            self.unscale(weights)
        factor = 1.0 if window.stage is Stage.UNSCALED else 1.0 / window.scale
        try:
            unread = weights and scaler.checks and window.finite is None
            if unread:
                window.statistics_flag = self.statistics.check(running)
            finite = scaler.judge(all_finite(_gradients(weights)) if unread else None)
            if not finite and losses and not self._finite_everywhere(losses):
                raise non_finite_loss()
            number = self.optimizer.num_update + scaler.skipped_steps + 1
            if finite:
                self._apply(weights, factor)
            scaler.settle(finite, number, _first_bad(weights))
        finally:
            destroyed = window.destroyed
            self.end_window()
            if destroyed:
                self.statistics.mend(running)
        return finite

    def end_window(self) -> None:
        """Show the gradients' own arrays again and forget the window."""
        for shown, original in self._shown:
            shown[:] = original
        self._shown.clear()
        self.scaler.close_window()

    def _reduce(self, weights: Sequence[Weight]) -> None:
        if self._kvstore is None or self.scaler.window.reduced:
            return
        if self._workers:
            self._widen(weights)  # sums over workers may exceed float16
        for weight in weights:
            priority = -self._indices[weight.name]
            if weight.grads[0].stype == weight.arrays[0].stype == "default":
                self._kvstore.pushpull(weight.name, weight.grads, priority=priority)
            else:
                self._kvstore.push(weight.name, weight.grads, priority=priority)
                self._kvstore.pull(weight.name, out=weight.grads, priority=priority, ignore_sparse=False)
        self.scaler.window.reduced = True

    def _widen(self, weights: Sequence[Weight]) -> None:
        """Show float32 copies of low precision gradients up to the end of the window."""
        for weight in weights:
            if is_low_precision(weight.grads[0]):
                self._shown.append((weight.grads, list(weight.grads)))
                weight.grads[:] = [to_float32(grad) for grad in weight.grads]

    def _finite_everywhere(self, losses: Sequence[mx.nd.NDArray]) -> bool:
        """Return whether losses are finite, on all workers; one host read."""
        flag = all_finite(losses)
        if self._workers:
            flag = self._workers.agree(flag)
        return bool(flag.asscalar() == 1)

    def _apply(self, weights: Sequence[Weight], factor: float) -> None:
        """Update the weights; ``rescale_grad`` takes the loss scale out, in float32."""
        if not weights:
            return
        indices = [self._indices[weight.name] for weight in weights]
        for number, updater in enumerate(self.updaters):
            found = [(i, w.arrays[number], updater.states.get(i)) for i, w in zip(indices, weights)]
            self.optimizer.check_states(found)
        rescale = self.optimizer.rescale_grad
        self.optimizer.rescale_grad = rescale * factor
        try:
            for number, updater in enumerate(self.updaters):
                updater(indices, [w.grads[number] for w in weights], [w.arrays[number] for w in weights])
        finally:
            self.optimizer.rescale_grad = rescale
        self._copy(weights)

    def _copy(self, weights: Iterable[Weight]) -> None:
        """Give contexts without an updater the weights of those that have one."""
        for weight in weights:
            for array in weight.arrays[len(self.updaters) :]:
                weight.arrays[0].copyto(array)

    # ------------------------------------------------------------------ states

    def save(self, fname: str) -> None:
        """Save optimizer states, masters, counters, scheduler and loss scale to one file."""
        self.scaler.require_ready("save_optimizer_states")
        states.save(fname, self._target(), self.scaler.to_dict())

    def load(self, fname: str) -> None:
        """Load what `save` saved.

        Raises:
            StateError: If the file is damaged or does not fit; then nothing is changed.
        """
        self.scaler.require_ready("load_optimizer_states")
        states.restore(fname, self._target(), self.scaler)

    def _target(self) -> states.Target:
        return states.Target(self.optimizer, self.updaters, self._contexts, self._params)


def _gradients(weights: Iterable[Weight]) -> List[mx.nd.NDArray]:
    return [grad for weight in weights for grad in weight.grads]


def _first_bad(weights: Sequence[Weight]) -> Callable[[], Optional[str]]:
    return lambda: first_non_finite((weight.name, grad) for weight in weights for grad in weight.grads)
