"""The training step of every front: reduce, check, unscale, update or skip, move the loss scale.

`Weights` is what it needs to know of the weights that a trainer, a module or an optimizer trains; an `Observer` is told
of each step.
"""

from __future__ import annotations

import abc
import contextlib
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TypeVar,
)

import mxnet as mx

from ..arrays import (
    all_finite,
    clip_coefficient,
    clip_in_place,
    copies_in_float32,
    first_non_finite,
    flat,
    is_low_precision,
    round_into,
    scale_in_place,
)
from ..distributed import KVStore
from ..errors import NonFiniteLossError, TrainerError
from ..loss_scale import LossScale
from .kernels import Update, update
from .masters import Masters, first_written_past, masters_flag, written_past
from .running_stats import Named, RunningStats
from .scaler import Scaler, ScalerStatus, Stage

Watching = TypeVar("Watching", bound="Observer")

COMPARED_STEPS = 10
"""The first steps of a trainer, in which low precision weights are compared with their masters."""


class Weights(abc.ABC):
    """The weights of one step with their gradients, on one or several contexts.

    Attributes:
        optimizer: The user's optimizer.
        updaters: One per context; or one alone, whose weights the other contexts copy: optimizers that draw
            noise (SGLD) or count their calls (Nadam) would let them drift apart.
        masters: Those of each updater.
        kvstore: What sums the gradients; None leaves every context its own.
    """

    optimizer: mx.optimizer.Optimizer
    updaters: Sequence[mx.optimizer.Updater]
    masters: Sequence[Masters]
    kvstore: Any = None
    seen: Any = None  # by the first observer of a skipped step, for those after it; up to the end of the step
    flags_losses = True  # whether the state has a flag of the losses, which scale_loss makes

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

    def waiting(self, others: Optional[set[int]] = None) -> Mapping[int, List[mx.nd.NDArray]]:
        """Return the gradients of weights that backward has reached, by index, on all contexts; nothing is taken.

        Those that ``others`` has are left out, and the rest is added to it.
        """
        return {}

    def fresh_grads(self) -> List[mx.nd.NDArray]:
        """Return those of them that backward has written."""
        return []

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


class StepEnd(NamedTuple):
    """How a step ended.

    Attributes:
        number: Its number among all steps, taken and skipped, from 1 on.
        taken: Whether the weights were updated.
        skipped: Whether it was skipped for its gradients, even if the loss scale gave up; not so if a loss was not
            finite, which ends a step by an error or, with ``nonfinite_loss='skip'``, leaves all three False and None.
        scale: What the losses were multiplied by.
        loss_scale: The loss scale of the next step.
        error: What the step raised, None if nothing.
    """

    number: int
    taken: bool
    skipped: bool
    scale: float
    loss_scale: LossScale
    error: Optional[BaseException] = None


class Observer:
    """Is told of each step of a trainer, module or optimizer. Each method does nothing unless it is overridden.

    It may read the gradients of `Weights.groups`, but not write them; and it must not call that once the step is over.
    Steps that a kvstore takes by itself are not told.
    """

    _owner: Any = None
    _observers: Dict[int, Observer]  # of the owner, while there is one

    def attach(self: Watching, owner: Any) -> Watching:
        """Look at each step of ``owner`` from now on, and return this; within ``with`` up to the end of the block.

        Args:
            owner: A ``mxmp.gluon.Trainer``, a Module or BucketingModule of mxmp, before or after it is bound, or a
                LossScaleOptimizer. A second call with the same one does nothing.

        Raises:
            TrainerError: If ``owner`` is none of them, or this is attached to another.
        """
        if self._owner is not None and self._owner is not owner:
            raise TrainerError(
                f"attach: this {type(self).__name__} is attached to another {type(self._owner).__name__}; detach it "
                f"first, or make one for each."
            )
        if self._owner is None:
            self._observers, self._owner = scaler_of(owner).observers, owner
            self._observers[id(self)] = self
        return self

    def detach(self) -> None:
        """Look at no further steps; a second call does nothing."""
        if self._owner is not None:
            self._observers.pop(id(self), None)
            del self._observers
        self._owner = None

    def __enter__(self: Watching) -> Watching:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    def on_losses(self, losses: Sequence[mx.nd.NDArray], begins: bool) -> None:
        """These losses, as they were before scaling, went backward; not all fronts know theirs.

        ``begins`` says whether no others did since the last step, or since gradients were discarded.
        """

    def on_batch(self) -> None:
        """A batch is over whose step comes with a later one: gradients are added up."""

    def on_gradients(self, weights: Weights, scale: float) -> None:
        """The gradients are those of backward, one per context: times ``scale``, in their own dtype.

        Where somebody has read them before the step they are true ones (``scale`` is 1), in float32, changes included.
        """

    def on_reduced(self, weights: Weights, scale: float) -> None:
        """The gradients are summed over contexts and workers, in float32 if there may be several; times ``scale``."""

    def on_update(self, weights: Weights) -> None:
        """The step will be taken; weights and masters are as they were."""

    def on_updated(self, weights: Weights) -> None:
        """The weights were updated."""

    def on_skip(self, weights: Weights) -> None:
        """The step will be skipped: some gradients are not finite; unscaled, if there was reason to."""

    def on_end(self, end: StepEnd) -> None:
        """The step is over: taken, skipped, or ended by an error, which is raised after this."""


def scaler_of(owner: Any) -> Scaler:
    """Return the scaler of a trainer, a module or an optimizer of mxmp; a TrainerError if it is none of them."""
    if not isinstance(owner, ScalerStatus):
        raise TrainerError(
            f"expected a trainer, a module or a LossScaleOptimizer of mxmp, found a {type(owner).__name__} of "
            f"{type(owner).__module__}; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."
        )
    return owner._scaler


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
        self._compared = 0  # steps in which weights were compared with their masters

    def compare_again(self) -> None:
        """Compare weights with their masters in the next ten steps, as in the first."""
        self._compared = 0

    def keep_running_stats(self, stats: Named) -> None:
        """Copy the running statistics, to restore them if a forward pass overflows; before backward."""
        self._running_stats.keep(stats)

    def reduce(self, weights: Weights) -> None:
        """Sum the gradients over contexts and workers, still scaled; once a step."""
        state, workers = self.scaler.state, weights.workers
        if state.reduced:
            return
        if workers is not None and state.is_unscaled:  # another worker's may be scaled
            self._scale_again(weights)
        weights.prepare_reduce()
        scale = 1.0 if state.is_unscaled else state.scale
        self._tell(lambda each: each.on_gradients(weights, scale))
        if weights.kvstore is not None:
            self._show_float32(weights, _indices(weights))  # sums over contexts and workers may exceed float16
        if workers is not None and self.scaler.checks and weights.flags_losses:  # a worker's loss decides for all
            state.loss_flag = workers.agree(state.loss_flag)
        weights.reduce()
        state.reduced = True
        self._tell(lambda observer: observer.on_reduced(weights, scale))

    def unscale(self, weights: Weights) -> None:
        """Make the gradients true ones, in float32, reduced; no host read, nor wait but for some on CPU (`all_finite`).

        Those of low precision weights are shown as float32 copies up to the end of the step, because
        their own dtype would flush them to zero.
        """
        self.reduce(weights)
        if self.scaler.state.is_unscaled:  # somebody has looked at them
            weights.groups()  # which a backward from now on would write to unnoticed
            return
        grads = _gradients(weights.groups())
        grad_flag = all_finite(grads) if grads and self.scaler.checks else None
        self._show_float32(weights, _indices(weights))
        scale_in_place(_gradients(weights.groups()), 1.0 / self.scaler.state.scale)
        self.scaler.unscaled(grad_flag)

    def look(self, weights: Weights, others: set[int]) -> None:
        """Make the gradients true ones for somebody who reads them before the step; nothing is summed, nothing read.

        ``others`` are those that steps of other owners have made true already, see `Weights.waiting`.
        """
        if not self.scaler.state.is_scaled:
            return
        grads = weights.waiting(others)
        written = weights.fresh_grads()
        grad_flag = all_finite(written) if written and self.scaler.checks else None
        self._show_float32(weights, grads)
        scale_in_place([grad for index in grads for grad in weights.grads(index)], 1.0 / self.scaler.state.scale)
        self.scaler.unscaled(grad_flag)

    def look_away(self, weights: Weights, others: set[int]) -> None:
        """Multiply gradients that somebody has looked at back to the scale: more are to be added to them."""
        state = self.scaler.state
        if state.is_unscaled and not state.reduced:
            grads = weights.waiting(others)
            scale_in_place([grad for index in grads for grad in weights.grads(index)], state.scale)
            self._hide_float32(grads)
            state.stage = Stage.SCALED

    def _scale_again(self, weights: Weights) -> None:
        """Multiply gradients that somebody has looked at back to the scale, NaN among them if any was not finite."""
        state = self.scaler.state
        grads = [grad for arrays in weights.waiting().values() for grad in arrays]
        scale_in_place(grads, state.scale)
        if grads and state.grad_flag is not None:
            with mx.autograd.pause():
                first = flat(grads[0])
                first[:1] += 1 / state.grad_flag.as_in_context(first.ctx) - 1  # 0, or inf
        state.stage, state.grad_flag = Stage.SCALED, None

    def clip_global_norm(self, weights: Weights, max_norm: float, rescale: float = 1.0) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before.

        Both norms are those of the gradients times ``rescale``.
        """
        groups = [group for group in self._unscaled(weights) if group]
        if not groups:
            return 0.0
        self._check_running_stats(weights, self.scaler.state.grad_flag)
        self._flag_masters(weights)
        norms_of = groups[:1] if weights.kvstore else groups
        try:
            norm = self.scaler.read_norm([[update.grad for update in group] for group in norms_of]) * rescale
        except NonFiniteLossError:
            with self._ending(weights):
                raise
        if self.scaler.state.finite is not False:
            scale_in_place(_gradients(groups), clip_coefficient(norm, max_norm))
        return norm

    def clip_value(self, weights: Weights, max_value: float) -> None:
        """Unscale, then bring every element of the gradients into [-max_value, max_value]; no host read."""
        clip_in_place(_gradients(self._unscaled(weights)), max_value)

    def run(self, weights: Weights, rescale: float) -> bool:
        """Reduce the gradients, check them, update the weights or skip, and move the loss scale.

        The optimizer multiplies true gradients by ``rescale``. Returns whether the step was taken. Nothing is updated
        if it raises: NonFiniteLossError if the loss itself was not finite, LossScaleError if the loss scale gave up,
        TrainerError if a weight was written to past its master.
        """
        scaler = self.scaler
        self.reduce(weights)
        if scaler.state.is_scaled and self._unscales_first(weights):
            self.unscale(weights)
        with self._ending(weights) as number:
            finite = self._should_step(weights)
            if finite:
                self._update(weights, rescale)
            elif scaler.state.loss_finite is not False:
                self._tell(lambda observer: observer.on_skip(weights))
            scaler.update_scale(finite, number, weights.first_non_finite)
        return finite

    @contextlib.contextmanager
    def _ending(self, weights: Weights) -> Iterator[int]:
        """Give the number of a step that is decided within this context, and end it, whatever is raised."""
        scaler, before = self.scaler, self.scaler.skipped_steps
        number, scale = weights.optimizer.num_update + before + 1, scaler.state.scale
        error: Optional[BaseException] = None
        try:
            yield number
        except BaseException as e:
            error = e
            raise
        finally:
            bad_loss = scaler.state.loss_finite is False
            self.end(weights)
            skipped = scaler.skipped_steps > before
            taken = error is None and not skipped
            end = StepEnd(number, taken, skipped and not bad_loss, scale, scaler.loss_scale, error)
            self._tell(lambda observer: observer.on_end(end))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        """Tell all observers of an event."""
        for observer in list(self.scaler.observers.values()):
            event(observer)

    def end(self, weights: Weights) -> None:
        """End the step: its gradients are used, and running statistics that were lost are restored."""
        stats_lost = self.scaler.state.stats_lost
        self.discard()
        weights.seen = None
        weights.release()
        if stats_lost:
            self._running_stats.restore(weights.running_stats())

    def discard(self) -> None:
        """Show the gradients' own arrays again and forget the step."""
        try:
            self._hide_float32()
        finally:
            self.scaler.end_step()

    def _unscaled(self, weights: Weights) -> List[List[Update]]:
        if not (self.scaler.state.is_unscaled and self.scaler.state.reduced):
            self.unscale(weights)
        return weights.groups()

    def _unscales_first(self, weights: Weights) -> bool:
        """Return whether gradients are unscaled before the check: those of a scale below 1 may overflow by it."""
        scale = self.scaler.state.scale
        return scale < 1.0 or (scale != 1.0 and needs_unscaled_gradients(weights.optimizer))

    def _should_step(self, weights: Weights) -> bool:
        """Return whether all gradients are finite, by one host read; NonFiniteLossError if the losses are not."""
        scaler, state, grads = self.scaler, self.scaler.state, _gradients(weights.groups())
        if grads and state.finite is None:
            self._flag_masters(weights)
            if scaler.checks:
                flag = all_finite(grads)
                self._check_running_stats(weights, flag)
                (finite,) = scaler.read([flag])
                scaler.decide(finite == 1.0)
            elif state.masters_flag is not None:
                scaler.read([])
        if state.masters_differ:
            self._compared = 0
            index = first_written_past(zip(weights.masters, weights.groups()))
            raise written_past("a weight" if index is None else f"parameter '{weights.name(index)}'")
        self._compared += 1
        taken = state.finite is not False
        losses = () if taken else weights.losses()
        if losses:
            flag = all_finite(losses)
            flag = flag if weights.workers is None else weights.workers.agree(flag)
            if flag.asscalar() != 1.0:
                scaler.meet_nonfinite_loss()
        return taken

    def _flag_masters(self, weights: Weights) -> None:
        """In the first steps, have it read with the rest whether a weight was written to past its master."""
        if self._compared < COMPARED_STEPS:
            flag, workers = masters_flag(zip(weights.masters, weights.groups())), weights.workers
            self.scaler.state.masters_flag = flag if flag is None or workers is None else workers.agree(flag)

    def _check_running_stats(self, weights: Weights, grad_flag: Optional[mx.nd.NDArray]) -> None:
        if grad_flag is not None and self.scaler.checks and self.scaler.state.finite is None:
            self.scaler.state.stats_flag = self._running_stats.check(weights.running_stats(), grad_flag)

    def _update(self, weights: Weights, rescale: float) -> None:
        """Update the weights; ``rescale_grad`` takes the loss scale out, in float32."""
        optimizer, updaters, state = weights.optimizer, weights.updaters, self.scaler.state
        factor = 1.0 if state.is_unscaled else 1.0 / state.scale
        self._tell(lambda observer: observer.on_update(weights))
        groups = weights.groups()[: len(updaters)]
        for masters, group in zip(weights.masters, groups):
            masters.check((index, weight) for index, _, weight in group)
        optimizer.rescale_grad = rescale * factor
        try:
            for updater, masters, group in zip(updaters, weights.masters, groups):
                update(updater, masters, group)
        finally:
            optimizer.rescale_grad = rescale
        weights.copy_to_other_contexts([update.index for group in groups for update in group])
        self._tell(lambda observer: observer.on_updated(weights))

    def _show_float32(self, weights: Weights, indices: Iterable[int]) -> None:
        """Show float32 copies of low precision gradients; autograd goes on writing to the arrays that it knows."""
        grads = {index: weights.grads(index) for index in indices}
        low = {index: arrays for index, arrays in grads.items() if is_low_precision(arrays[0])}
        if low:
            found = iter(copies_in_float32([grad for arrays in low.values() for grad in arrays]))
            copies = {index: [next(found) for _ in arrays] for index, arrays in low.items()}
            weights.set_grads(copies)
            self._shown.append(_Shown(weights, low, copies))

    def _hide_float32(self, kept: Collection[int] = ()) -> None:
        """Show the gradients' own arrays again.

        Those that accumulate take over what was shown, zeros above all, and so do those that are ``kept``.
        """
        shown, self._shown = self._shown, []
        for weights, originals, copies in shown:
            weights.set_grads({index: originals[index] for index in copies if weights.shows(index, copies[index])})
            for index in (index for index in copies if index in kept or weights.accumulates(index)):
                for copy, grad in zip(copies[index], originals[index]):
                    round_into(copy.as_nd_ndarray(), grad.as_nd_ndarray())


def needs_unscaled_gradients(optimizer: mx.optimizer.Optimizer) -> bool:
    """Return whether an optimizer looks at gradients before it applies ``rescale_grad``.

    LBSGD adds gradients up over several steps, whose scales may differ, and takes norms of them.
    """
    return isinstance(optimizer, mx.optimizer.LBSGD)


def _indices(weights: Weights) -> List[int]:
    """Return the indices of the weights whose gradients are to be used."""
    return list(dict.fromkeys(update.index for group in weights.groups() for update in group))


def _gradients(groups: Sequence[Sequence[Update]]) -> List[mx.nd.NDArray]:
    """Return all gradients of all contexts."""
    return [update.grad for group in groups for update in group]
