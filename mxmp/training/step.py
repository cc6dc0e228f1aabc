"""The training step of every front: reduce, check, unscale, update or skip, move the loss scale.

`Weights` is what it needs to know of the weights that a trainer, a module or an optimizer trains.
"""

from __future__ import annotations

import abc
import contextlib
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx

from ..arrays.casts import is_low_precision, round_into
from ..arrays.casts_together import copies_in_float32
from ..arrays.finite import all_finite, first_non_finite
from ..arrays.norms import clip_coefficient, clip_in_place, scale_in_place
from ..distributed import KVStore
from ..errors import NonFiniteLossError
from ..masters.optimizer import MultiPrecision
from ..masters.update import Update, all_masters_follow, update
from ..scaling.scaler import Scaler
from .observer import Observer, StepEnd
from .running_stats import Named, RunningStats


class Weights(abc.ABC):
    """The weights of one step with their gradients, on one or several contexts.

    Attributes:
        updaters: One per context; or one alone, whose weights the other contexts copy: optimizers that draw
            noise (SGLD) or count their calls (Nadam) would let them drift apart.
        kvstore: What sums the gradients; None leaves every context its own.
    """

    optimizer: MultiPrecision
    updaters: Sequence[mx.optimizer.Updater]
    kvstore: Any = None
    seen: Any = None  # by the first observer of a skipped step, for those after it; up to the end of the step
    flags_losses = True  # whether the window has a flag of the losses, which scale_loss makes

    @property
    def workers(self) -> Optional[KVStore]:
        """The kvstore if it sums over several workers, which must all decide alike."""
        return self.kvstore if isinstance(self.kvstore, KVStore) else None

    @abc.abstractmethod
    def groups(self) -> List[List[Update]]:
        """Return for each context the weights whose gradients are to be used."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a weight, for messages."""

    @abc.abstractmethod
    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradients of a weight that the user sees, one per context."""

    @abc.abstractmethod
    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the user see other arrays as gradients, by the index of their weight; `groups` has them from now on."""

    def shows(self, index: int, grads: List[mx.nd.NDArray]) -> bool:
        """Return whether the user still sees what `set_grads` was given, so that it is to be taken back."""
        return True

    def accumulates(self, index: int) -> bool:
        """Return whether backward passes add to the gradient of a weight (``grad_req='add'``)."""
        return False

    def prepare_reduce(self) -> None:  # noqa: B027 (most have nothing to do)
        """Make all contexts' gradients fit to be summed."""

    def reduce(self) -> None:  # noqa: B027
        """Sum the gradients over contexts and workers, in place."""

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:  # noqa: B027
        """Give the contexts that have no updater the weights of the first."""

    def release(self) -> None:  # noqa: B027
        """Forget the gradients: the step is over."""

    def running_stats(self) -> Named:
        """Return BatchNorm's running statistics and their like, on every context."""
        return ()

    def losses(self) -> Sequence[mx.nd.NDArray]:
        """Return losses that nothing has checked yet; they are looked at only where gradients are not finite."""
        return ()

    def first_non_finite(self) -> Optional[str]:
        """Return the name of the first weight whose gradient is not finite; slow."""
        return first_non_finite((self.name(index), grad) for group in self.groups() for index, grad, _ in group)


class _Shown(NamedTuple):
    """Low precision gradients by the index of their weight, and the float32 copies that are shown in their place."""

    weights: Weights
    originals: Mapping[int, List[mx.nd.NDArray]]
    copies: Mapping[int, List[mx.nd.NDArray]]


class Step:
    """Takes the steps of a trainer, a module with its buckets, or an optimizer in a loop.

    Each method is given the weights, which may be others at each step.
    """

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler
        self._running_stats = RunningStats()
        self._shown: List[_Shown] = []

    def keep_running_stats(self, stats: Named) -> None:
        """Copy the running statistics, to restore them if a forward pass overflows; before backward."""
        self._running_stats.keep(stats)

    def reduce(self, weights: Weights) -> None:
        """Sum the gradients over contexts and workers, still scaled; once a window."""
        scaler, workers = self.scaler, weights.workers
        if scaler.window.reduced:
            return
        weights.prepare_reduce()
        scale = 1.0 if scaler.window.is_unscaled else scaler.window.scale
        self._tell(lambda each: each.on_gradients(weights, scale))
        loss_flag = scaler.window.loss_flag
        if weights.kvstore is not None:
            self._show_float32(weights)  # sums over contexts and workers may exceed float16
        if workers is not None and scaler.checks and weights.flags_losses:  # a worker's loss decides for all
            loss_flag = workers.agree(loss_flag)
        weights.reduce()
        scaler.window = scaler.window.after_reduce(loss_flag)
        self._tell(lambda observer: observer.on_reduced(weights, scale))

    def unscale(self, weights: Weights) -> None:
        """Make the gradients true ones, in float32, reduced; no host read, nor wait but for some on CPU (`all_finite`).

        Those of low precision weights are shown as float32 copies up to the end of the step, because
        their own dtype would flush them to zero.
        """
        self.reduce(weights)
        grads = _gradients(weights.groups())
        grad_flag = all_finite(grads) if grads and self.scaler.checks else None
        self._show_float32(weights)
        scale_in_place(_gradients(weights.groups()), 1.0 / self.scaler.window.scale)
        self.scaler.window = self.scaler.window.unscaled(grad_flag)

    def clip_global_norm(self, weights: Weights, max_norm: float) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before."""
        groups = [group for group in self._unscaled(weights) if group]
        if not groups:
            return 0.0
        self._check_running_stats(weights, self.scaler.window.grad_flag)
        norms_of = groups[:1] if weights.kvstore else groups
        try:
            norm = self.scaler.read_norm([[update.grad for update in group] for group in norms_of])
        except NonFiniteLossError:
            with self._ending(weights):
                raise
        if self.scaler.window.finite is not False:
            scale_in_place(_gradients(groups), clip_coefficient(norm, max_norm))
        return norm

    def clip_value(self, weights: Weights, max_value: float) -> None:
        """Unscale, then bring every element of the gradients into [-max_value, max_value]; no host read."""
        clip_in_place(_gradients(self._unscaled(weights)), max_value)

    def run(self, weights: Weights, rescale: float) -> bool:
        """Reduce the gradients, check them, update the weights or skip, and move the loss scale.

        The optimizer multiplies true gradients by ``rescale``. Returns whether the step was taken. Nothing is updated
        if it raises: NonFiniteLossError if the loss itself was not finite, LossScaleError if the loss scale gave up.
        """
        scaler = self.scaler
        self.reduce(weights)
        if scaler.window.is_scaled and self._unscales_first(weights):
            self.unscale(weights)
        with self._ending(weights) as number:
            finite = self._should_step(weights)
            if finite:
                self._update(weights, rescale)
            elif scaler.window.loss_finite is not False:
                self._tell(lambda observer: observer.on_skip(weights))
            scaler.update_scale(finite, number, weights.first_non_finite)
        return finite

    @contextlib.contextmanager
    def _ending(self, weights: Weights) -> Iterator[int]:
        """Give the number of a step that is decided within this context, and end it, whatever is raised."""
        scaler, before = self.scaler, self.scaler.skips.skipped_steps
        number, scale = weights.optimizer.num_update + before + 1, scaler.window.scale
        error: Optional[BaseException] = None
        try:
            yield number
        except BaseException as e:
            error = e
            raise
        finally:
            bad_loss = scaler.window.loss_finite is False
            self.end(weights)
            skipped = scaler.skips.skipped_steps > before
            taken = error is None and not skipped
            end = StepEnd(number, taken, skipped and not bad_loss, scale, scaler.loss_scale, error)
            self._tell(lambda observer: observer.on_end(end))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        """Tell all observers of an event."""
        for observer in list(self.scaler.observers.values()):
            event(observer)

    def end(self, weights: Weights) -> None:
        """End the window: its gradients are used, and running statistics that were lost are restored."""
        stats_lost = self.scaler.window.stats_lost
        self.discard()
        weights.seen = None
        weights.release()
        if stats_lost:
            self._running_stats.restore(weights.running_stats())

    def discard(self) -> None:
        """Show the gradients' own arrays again and forget the window."""
        try:
            self._hide_float32()
        finally:
            self.scaler.close_window()

    def _unscaled(self, weights: Weights) -> List[List[Update]]:
        if not self.scaler.window.is_unscaled:
            self.unscale(weights)
        return weights.groups()

    def _unscales_first(self, weights: Weights) -> bool:
        """Return whether gradients are unscaled before the check: those of a scale below 1 may overflow by it."""
        scale = self.scaler.window.scale
        return scale < 1.0 or (scale != 1.0 and weights.optimizer.needs_unscaled_gradients)

    def _should_step(self, weights: Weights) -> bool:
        """Return whether all gradients are finite, by one host read; NonFiniteLossError if the losses are not."""
        grads = _gradients(weights.groups())
        if not grads or not self.scaler.checks or self.scaler.window.finite is not None:
            finite = self.scaler.should_step(None)
        else:
            flag = all_finite(grads)
            self._check_running_stats(weights, flag)
            masters_flag = all_masters_follow(zip(weights.updaters, weights.groups()))
            self.scaler.window = self.scaler.window.with_masters(masters_flag)
            finite = self.scaler.should_step(flag)
        losses = () if finite else weights.losses()
        if losses:
            flag = all_finite(losses)
            flag = flag if weights.workers is None else weights.workers.agree(flag)
            if flag.asscalar() != 1.0:
                self.scaler.meet_nonfinite_loss()
        return finite

    def _check_running_stats(self, weights: Weights, grad_flag: Optional[mx.nd.NDArray]) -> None:
        if grad_flag is not None and self.scaler.checks and self.scaler.window.finite is None:
            flag = self._running_stats.check(weights.running_stats(), grad_flag)
            self.scaler.window = self.scaler.window.with_stats(flag)

    def _update(self, weights: Weights, rescale: float) -> None:
        """Update the weights; ``rescale_grad`` takes the loss scale out, in float32."""
        optimizer, updaters, window = weights.optimizer, weights.updaters, self.scaler.window
        factor = 1.0 if window.is_unscaled else 1.0 / window.scale
        self._tell(lambda observer: observer.on_update(weights))
        groups = weights.groups()[: len(updaters)]
        for updater, group in zip(updaters, groups):
            optimizer.check_states((index, weight, updater.states.get(index)) for index, _, weight in group)
        optimizer.rescale_grad = rescale * factor
        try:
            for updater, group in zip(updaters, groups):
                update(updater, group, window.masters_follow, may_wait=window.finite is not None)
        finally:
            optimizer.rescale_grad = rescale
        weights.copy_to_other_contexts([update.index for group in groups for update in group])
        self._tell(lambda observer: observer.on_updated(weights))

    def _show_float32(self, weights: Weights) -> None:
        """Show float32 copies of low precision gradients; autograd goes on writing to the arrays that it knows."""
        indices = dict.fromkeys(update.index for group in weights.groups() for update in group)
        grads = {index: weights.grads(index) for index in indices}
        low = {index: arrays for index, arrays in grads.items() if is_low_precision(arrays[0])}
        if low:
            found = iter(copies_in_float32([grad for arrays in low.values() for grad in arrays]))
            copies = {index: [next(found) for _ in arrays] for index, arrays in low.items()}
            weights.set_grads(copies)
            self._shown.append(_Shown(weights, low, copies))

    def _hide_float32(self) -> None:
        """Show the gradients' own arrays again; those that accumulate take over what was shown, zeros above all."""
        shown, self._shown = self._shown, []
        for weights, originals, copies in shown:
            weights.set_grads({index: originals[index] for index in copies if weights.shows(index, copies[index])})
            for index in filter(weights.accumulates, copies):
                for copy, grad in zip(copies[index], originals[index]):
                    round_into(copy.as_nd_ndarray(), grad.as_nd_ndarray())


def _gradients(groups: Sequence[Sequence[Update]]) -> List[mx.nd.NDArray]:
    return [update.grad for group in groups for update in group]
