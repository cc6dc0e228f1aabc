"""The training step of every front: reduce, check, unscale, update or skip, move the loss scale.

`Weights` are the weights of one step, of a trainer, a module or an optimizer. An `Observer` is told of each step, and
of the calls of converted nets that a trainer trains.
"""

from __future__ import annotations

import abc
import contextlib
from typing import (
    Any,
    Callable,
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
from ..explainer import explainer
from ..loss_scale import LossScale
from .kernels import Update, update
from .masters import Masters, first_overwritten_weight, masters_flag, weight_was_overwritten
from .running_stats import NamedArrays, RunningStats
from .scaler import Scaler, ScalerStatus
from .window import Stage, Window

AnyObserver = TypeVar("AnyObserver", bound="Observer")

COMPARED_STEPS = 10
"""The first steps of a trainer, in which low precision weights are compared with their masters."""


class Weights(abc.ABC):
    """The weights of one step with their gradients, on one or several contexts.

    Attributes:
        optimizer: The user's optimizer.
        updaters: One for each context. With a kvstore only one, whose weights the other contexts copy. An optimizer
            that draws noise (SGLD) or counts its calls (Nadam) would let the contexts drift apart.
        masters: The masters of each updater.
        kvstore: The kvstore that sums the gradients. None if each context uses its own gradients.
    """

    optimizer: mx.optimizer.Optimizer
    updaters: Sequence[mx.optimizer.Updater]
    masters: Sequence[Masters]
    kvstore: Any = None
    seen: Any = None  # A result of the first observer of a skipped step, for the observers after it.
    flags_losses = True  # Whether scale_loss makes a flag of the losses.

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

    def waiting(self) -> Mapping[int, List[mx.nd.NDArray]]:
        """Return the gradients of weights that a scaled backward has reached, by index, on all contexts."""
        return {index: self.grads(index) for index in _indices(self)}

    def written_grads(self) -> List[mx.nd.NDArray]:
        """Return the gradients that a scaled backward has written."""
        return _gradients(self.groups())

    @abc.abstractmethod
    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the user see other arrays as gradients, by the index of their weight; `groups` has them from now on."""

    def accumulates(self, index: int) -> bool:
        """Return whether backward passes add to the gradient of a weight (``grad_req='add'``)."""
        return False

    def prepare_reduce(self) -> None:  # noqa: B027
        """Make all contexts' gradients fit to be summed."""

    def reduce(self) -> None:  # noqa: B027
        """Sum the gradients over contexts and workers, in place."""

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:  # noqa: B027
        """Give the contexts that have no updater the weights of the first."""

    def release(self) -> None:  # noqa: B027
        """Forget the gradients: the step is over."""

    def running_stats(self) -> NamedArrays:
        """Return BatchNorm's running statistics and their like, on every context."""
        return ()

    def losses(self) -> Sequence[mx.nd.NDArray]:
        """Return losses that are not checked yet. A step checks them only if gradients are not finite."""
        return ()

    def first_non_finite(self) -> Optional[str]:
        """Return the name of the first weight whose gradient is not finite; slow."""
        return first_non_finite((self.name(index), grad) for group in self.groups() for index, grad, _ in group)


class StepEnd(NamedTuple):
    """How a step ended.

    Attributes:
        number: Its number among all steps, taken and skipped, from 1 on.
        taken: Whether the weights were updated.
        skipped: Whether it was skipped because of its gradients, even if the loss scale gave up. If a loss was not
            finite, ``skipped`` is False: there is an ``error``, or none with ``nonfinite_loss='skip'``.
        scale: The factor of the losses.
        loss_scale: The loss scale of the next step.
        error: The exception of the step; None if it raised none.
    """

    number: int
    taken: bool
    skipped: bool
    scale: float
    loss_scale: LossScale
    error: Optional[BaseException] = None


class NetCall(NamedTuple):
    """A recorded call of a converted net.

    Attributes:
        net: The id of the net.
        name: The name of the net.
        graph: The graph that ran: a `mxmp.gluon.cache.ConvertedGraph`.
        inputs: Its inputs, as a flat list; they share memory with the user's arrays, but not their autograd graph.
        outputs: Its outputs, nested as the caller gets them.
        context: Where it ran.
        training: Whether in training mode.
    """

    net: int
    name: str
    graph: Any
    inputs: Sequence[Any]
    outputs: Any
    context: mx.Context
    training: bool


class Observer:
    """Is told of each step of a trainer, module or optimizer. Each method does nothing unless it is overridden.

    It may read the gradients of `Weights.groups`, but not write them; and it must not call that once the step is over.
    Steps that a kvstore takes by itself are not told.
    """

    _owner: Any = None

    def attach(self: AnyObserver, owner: Any) -> AnyObserver:
        """Observe each step of ``owner`` from now on, and return this; in a ``with`` statement, up to its end.

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
        observers = scaler_of(owner).observers
        self._owner = owner
        observers[id(self)] = self
        return self

    def detach(self) -> None:
        """Observe no further steps; a second call does nothing."""
        if self._owner is not None:
            scaler_of(self._owner).observers.pop(id(self), None)
        self._owner = None

    def __enter__(self: AnyObserver) -> AnyObserver:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    def on_call(self, call: NetCall) -> Any:
        """Handle a call of a converted net under ``autograd.record()``; return the outputs that the caller gets.

        These are ``call.outputs``, perhaps with zeros added, so that the gradients of the zeros can be read.
        """
        return call.outputs

    def on_losses(self, losses: Sequence[mx.nd.NDArray], begins: bool) -> None:
        """Handle losses, before scaling, whose backward has run. Modules do not tell of theirs.

        ``begins`` says whether these losses are the first of their step.
        """

    def on_batch(self) -> None:
        """Handle the end of a batch without a step, because gradients are added up over several batches."""

    def on_gradients(self, weights: Weights, scale: float) -> None:
        """Handle the gradients of backward, on each context, times ``scale``, in their own dtype.

        If somebody has read a gradient before the step, all are unscaled, in float32, and ``scale`` is 1.
        """

    def on_reduced(self, weights: Weights, scale: float) -> None:
        """Handle the sums of gradients over contexts and workers, times ``scale``; in float32 if there is a kvstore."""

    def on_update(self, weights: Weights) -> None:
        """Handle a step that will be taken; weights and masters are still those before it."""

    def on_updated(self, weights: Weights) -> None:
        """Handle the updated weights."""

    def on_skip(self, weights: Weights) -> None:
        """Handle a step that will be skipped because some gradients are not finite."""

    def on_close(self) -> None:
        """Forget the calls of a step: its gradients are used, right before `on_end`, or were discarded."""

    def on_end(self, end: StepEnd) -> None:
        """Handle the end of a step: taken, skipped, or ended by an error, which is raised after this."""


def scaler_of(owner: Any) -> Scaler:
    """Return the scaler of a trainer, a module or an optimizer of mxmp; a TrainerError if it is none of them."""
    if not isinstance(owner, ScalerStatus):
        raise TrainerError(
            f"expected a trainer, a module or a LossScaleOptimizer of mxmp, found a {type(owner).__name__} of "
            f"{type(owner).__module__}; mxmp.gluon.Trainer.adopt makes a trainer of MXNet one of mxmp."
        )
    return owner._scaler


def hand_on_observers(owner: Any, before: Scaler) -> None:
    """Move the observers of a module from the scaler that it had before to its present one."""
    for key, observer in list(before.observers.items()):
        if observer._owner is owner:
            owner._scaler.observers[key] = observer
            before.observers.pop(key, None)


def observers_of_calls(trainer: Any) -> List[Observer]:
    """Return the observers of a trainer, among them the one that keeps calls to explain a step that fails.

    `mxmp.diagnose.watch` makes that one.
    """
    explainer().calls_of(trainer)
    return list(trainer._scaler.observers.values())


class _Shown(NamedTuple):
    """Low precision gradients by the index of their weight, and the float32 copies that are shown in their place."""

    weights: Weights
    originals: Mapping[int, List[mx.nd.NDArray]]
    copies: Mapping[int, List[mx.nd.NDArray]]


class Step:
    """Takes the steps of a trainer, a module with its buckets, or an optimizer in a loop.

    Each method is given the weights, which may be others at each step. The state of a step is in the scaler's window.

    Attributes:
        scaler: The loss scale, and the window of the present step.
        running_stats: The last finite running statistics, which fronts keep before each backward pass.
    """

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler
        self.running_stats = RunningStats()
        self._compared = 0  # steps in which weights were compared with their masters

    def compare_again(self) -> None:
        """Compare weights with their masters in the next ten steps, as in the first."""
        self._compared = 0

    # ------------------------------------------------------------------ true gradients

    def reduce(self, weights: Weights) -> None:
        """Sum the gradients over contexts and workers, still scaled; once a step."""
        window, workers = self.scaler.ensure_window(), weights.workers
        if window.is_summed:
            return
        if workers is not None and window.is_true:  # The gradients of another worker may be scaled.
            self._scale_for_other_workers(weights)
        weights.prepare_reduce()
        self._tell(lambda each: each.on_gradients(weights, 1.0 if window.is_true else window.scale))
        if weights.kvstore is not None:
            self._show_float32(weights, _indices(weights))  # Sums over contexts and workers may exceed float16.
        if workers is not None and self.scaler.checks and weights.flags_losses:  # One worker's loss decides for all.
            window.flags["losses"] = workers.all_workers(window.flags.get("losses"))
        with window.changing():
            weights.reduce()
            window.stage = Stage.TRUE if window.is_true else Stage.SUMMED
        scale = 1.0 if window.is_true else window.scale
        self._tell(lambda observer: observer.on_reduced(weights, scale))

    def unscale(self, weights: Weights) -> None:
        """Reduce and unscale the gradients, in float32. No host read; on a CPU `all_finite` waits for some of them.

        Gradients of low precision weights are shown as float32 copies up to the end of the step. Their own dtype would
        flush small ones to zero.
        """
        self.reduce(weights)
        window = self.scaler.ensure_window()
        if window.is_true:
            return
        grads = _gradients(weights.groups())
        if grads and self.scaler.checks:
            window.flag("gradients", all_finite(grads))
        self._show_float32(weights, _indices(weights))
        with window.changing():
            scale_in_place(_gradients(weights.groups()), 1.0 / window.scale)
            window.stage = Stage.TRUE

    def unscale_for_reader(self, weights: Weights, arrays: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Unscale gradients, by the index of their weight, for somebody who reads one before the step.

        They are not summed, and not read on the host.
        """
        window = self.scaler.ensure_window()
        written = weights.written_grads()
        if written and self.scaler.checks:
            window.flag("gradients", all_finite(written))
        self._show_float32(weights, arrays)
        with window.changing():
            window.seen = [grad for index in arrays for grad in weights.grads(index)]
            scale_in_place(window.seen, 1.0 / window.scale)
            window.stage = Stage.SEEN

    def scale_again(self) -> None:
        """Multiply gradients that were unscaled for a reader by the scale, because more will be added to them."""
        window = self.scaler.window
        if window is not None and window.stage is Stage.SEEN:
            with window.changing():
                scale_in_place(window.seen, window.scale)
                self._hide_float32(window, keep=True)
                window.seen, window.stage = (), Stage.SCALED

    def _scale_for_other_workers(self, weights: Weights) -> None:
        """Multiply gradients that were unscaled for a reader by the scale; one becomes NaN if any was not finite."""
        window = self.scaler.ensure_window()
        grads = [grad for arrays in weights.waiting().values() for grad in arrays]
        flag = window.flags.get("gradients")
        with window.changing():
            scale_in_place(grads, window.scale)
            if grads and flag is not None:
                with mx.autograd.pause():
                    first = flat(grads[0])
                    first[:1] += 1 / flag.as_in_context(first.ctx) - 1  # Adds 0, or inf.
            window.seen, window.stage = (), Stage.SCALED
            window.flags.pop("gradients", None)

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, weights: Weights, max_norm: float, rescale: float = 1.0) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before.

        Both norms are those of the gradients times ``rescale``.
        """
        self.unscale(weights)
        window, groups = self.scaler.ensure_window(), [group for group in weights.groups() if group]
        if not groups:
            return 0.0
        self._add_flags(weights, window.flags.get("gradients"))
        norms_of = groups[:1] if weights.kvstore else groups
        try:
            norm = self.scaler.read_norm([[update.grad for update in group] for group in norms_of]) * rescale
        except NonFiniteLossError:
            with self._ending(weights):
                raise
        if window.finite is not False:
            with window.changing():
                scale_in_place(_gradients(groups), clip_coefficient(norm, max_norm))
        return norm

    def clip_value(self, weights: Weights, max_value: float) -> None:
        """Unscale, then bring every element of the gradients into [-max_value, max_value]; no host read."""
        self.unscale(weights)
        with self.scaler.ensure_window().changing():
            clip_in_place(_gradients(weights.groups()), max_value)

    # ------------------------------------------------------------------ the update

    def run(self, weights: Weights, rescale: float) -> bool:
        """Reduce the gradients, check them, update the weights or skip, and move the loss scale.

        Args:
            weights: The weights.
            rescale: The factor by which the optimizer multiplies unscaled gradients.

        Returns:
            Whether the step was taken.

        Raises:
            NonFiniteLossError: If the loss itself was not finite. Nothing is updated, as with the other errors.
            LossScaleError: If the loss scale gave up.
            TrainerError: If a weight was overwritten past its master.
        """
        scaler, window = self.scaler, self.scaler.ensure_window()
        self.reduce(weights)
        if not window.is_true and needs_unscaled_gradients(weights.optimizer, window.scale):
            self.unscale(weights)
        with self._ending(weights) as number:
            finite = self._should_step(weights)
            if finite:
                self._update(weights, rescale)
            elif "losses" not in window.failed:
                self._tell(lambda observer: observer.on_skip(weights))
            scaler.update_scale(finite, number, weights.first_non_finite)
        return finite

    @contextlib.contextmanager
    def _ending(self, weights: Weights) -> Iterator[int]:
        """Yield the number of a step, which is taken or skipped within this context; end the step in any case."""
        scaler, before, window = self.scaler, self.scaler.skipped_steps, self.scaler.ensure_window()
        number = weights.optimizer.num_update + before + 1
        error: Optional[BaseException] = None
        updated = False
        try:
            try:
                yield number
                updated = scaler.skipped_steps == before
            finally:
                self.end(weights)
        except BaseException as e:
            error = e
            raise
        finally:
            skipped = scaler.skipped_steps > before and "losses" not in window.failed
            end = StepEnd(number, updated, skipped, window.scale, scaler.loss_scale, error)
            self._tell(lambda observer: observer.on_end(end))

    def _tell(self, event: Callable[[Observer], None]) -> None:
        """Tell all observers of an event."""
        for observer in list(self.scaler.observers.values()):
            event(observer)

    def end(self, weights: Weights) -> None:
        """End the step: its gradients are used, and running statistics that were lost are restored."""
        window = self.scaler.window
        weights.seen = None
        self.discard(weights)
        if window is not None and "statistics" in window.failed:
            self.running_stats.restore(weights.running_stats())

    def discard(self, weights: Optional[Weights] = None) -> None:
        """Show the gradients' own arrays again, then forget the step."""
        if self.scaler.window is not None and self.scaler.window.shown:
            self._hide_float32(self.scaler.window)
        if weights is not None:
            weights.release()
        self.scaler.end_step()
        self._tell(lambda observer: observer.on_close())

    def _should_step(self, weights: Weights) -> bool:
        """Return whether all gradients are finite, by one host read; NonFiniteLossError if the losses are not."""
        scaler, window, grads = self.scaler, self.scaler.ensure_window(), _gradients(weights.groups())
        if grads and window.finite is None:
            flag = all_finite(grads) if scaler.checks else None
            self._add_flags(weights, flag)
            if flag is not None:
                (finite,) = scaler.read([flag])
                scaler.set_finite(finite == 1.0)
            elif "masters" in window.flags:
                scaler.read()
        if "masters" in window.failed:
            self._compared = 0
            index = first_overwritten_weight(zip(weights.masters, weights.groups()))
            raise weight_was_overwritten("a weight" if index is None else f"parameter '{weights.name(index)}'")
        self._compared += 1
        taken = window.finite is not False
        losses = () if taken else weights.losses()
        if losses:
            flag = all_finite(losses)
            flag = flag if weights.workers is None else weights.workers.all_workers(flag)
            if flag.asscalar() != 1.0:
                scaler.handle_nonfinite_loss()
        return taken

    def _add_flags(self, weights: Weights, grads_finite: Optional[mx.nd.NDArray]) -> None:
        """Add flags to the one host read of a step: of running statistics, and in the first steps of masters.

        Args:
            weights: The weights.
            grads_finite: The flag of the gradients; None if they are not checked.
        """
        window, workers = self.scaler.ensure_window(), weights.workers
        if self._compared < COMPARED_STEPS:
            flag = masters_flag(zip(weights.masters, weights.groups()))
            if flag is not None:
                window.flags["masters"] = flag if workers is None else workers.all_workers(flag)
        if grads_finite is not None and window.finite is None:
            flag = self.running_stats.check(weights.running_stats(), grads_finite)
            if flag is not None:
                window.flags["statistics"] = flag

    def _update(self, weights: Weights, rescale: float) -> None:
        """Update the weights; ``rescale_grad`` takes the loss scale out, in float32."""
        optimizer, updaters, window = weights.optimizer, weights.updaters, self.scaler.ensure_window()
        factor = 1.0 if window.is_true else 1.0 / window.scale
        self._tell(lambda observer: observer.on_update(weights))
        groups = weights.groups()[: len(updaters)]
        for masters, group in zip(weights.masters, groups):
            masters.check((index, weight) for index, _, weight in group)
        try:
            optimizer.rescale_grad = rescale * factor
            for updater, masters, group in zip(updaters, weights.masters, groups):
                update(updater, masters, group)
        finally:
            optimizer.rescale_grad = rescale
        weights.copy_to_other_contexts([update.index for group in groups for update in group])
        self._tell(lambda observer: observer.on_updated(weights))

    # ------------------------------------------------------------------ float32 copies

    def _show_float32(self, weights: Weights, indices: Iterable[int]) -> None:
        """Show float32 copies of low precision gradients. Autograd still writes to the original arrays."""
        grads = {index: weights.grads(index) for index in indices}
        originals = {index: arrays for index, arrays in grads.items() if is_low_precision(arrays[0])}
        if originals:
            widened = iter(copies_in_float32([grad for arrays in originals.values() for grad in arrays]))
            copies = {index: [next(widened) for _ in arrays] for index, arrays in originals.items()}
            # Before the change, so that it is undone if it is interrupted.
            self.scaler.ensure_window().shown.append(_Shown(weights, originals, copies))
            weights.set_grads(copies)

    def _hide_float32(self, window: Window, keep: bool = False) -> None:
        """Show the gradients' own arrays again.

        Gradients that accumulate get the values of their copies, because a user may have zeroed these. With ``keep``
        all gradients get them.
        """
        for weights, originals, copies in window.shown:
            weights.set_grads(originals)
            for index in (index for index in copies if keep or weights.accumulates(index)):
                for copy, grad in zip(copies[index], originals[index]):
                    round_into(copy.as_nd_ndarray(), grad.as_nd_ndarray())
        window.shown = []


def needs_unscaled_gradients(optimizer: mx.optimizer.Optimizer, scale: float) -> bool:
    """Return whether gradients have to be unscaled before they are checked and updated with.

    With a scale below 1 they may overflow when they are unscaled. LBSGD looks at gradients before it applies
    ``rescale_grad``: it adds those of several steps up, whose scales may differ, and takes norms of them.
    """
    return scale < 1.0 or (scale != 1.0 and isinstance(optimizer, mx.optimizer.LBSGD))


def _indices(weights: Weights) -> List[int]:
    """Return the indices of the weights whose gradients are to be used."""
    return list(dict.fromkeys(update.index for group in weights.groups() for update in group))


def _gradients(groups: Sequence[Sequence[Update]]) -> List[mx.nd.NDArray]:
    """Return all gradients of all contexts."""
    return [update.grad for group in groups for update in group]
