"""The training step of every front: reduce, check, unscale, update or skip, move the loss scale.

A `Step` has the weights and gradients of a front. An `Observer` is told of each step, and of the calls of converted
nets that a trainer trains.
"""

from __future__ import annotations

import abc
import contextlib
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, TypeVar

import mxnet as mx

from ..arrays import (
    all_finite,
    all_to_float32,
    clip_coefficient,
    clip_in_place,
    first_non_finite,
    flat,
    is_low_precision,
    scale_in_place,
)
from ..distributed import KVStore
from ..errors import NonFiniteLossError, TrainerError, a_type_of
from ..explainer import explainer
from ..loss_scale import LossScale
from .kernels import Exact, Update, update
from .masters import Masters, first_overwritten_weight, masters_flag, weight_was_overwritten
from .running_stats import NamedArrays, RunningStats
from .scaler import Scaler, ScalerStatus
from .window import Shown, Window

AnyObserver = TypeVar("AnyObserver", bound="Observer")

COMPARED_STEPS = 10
"""The first steps of a trainer, in which low precision weights are compared with their masters."""


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

    It may read the gradients of `Step.groups`, but not write them; and it must not call that once the step is over.
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

    def on_reduced(self, step: Step, scale: float) -> None:
        """Handle the sums of gradients over contexts and workers, times ``scale``; in float32 if there is a kvstore.

        If somebody has read a gradient before the step, all are unscaled, in float32, and ``scale`` is 1.
        """

    def on_skip(self, step: Step) -> None:
        """Handle a step that will be skipped because some gradients are not finite."""

    def on_end(self, end: StepEnd) -> None:
        """Handle the end of a step: taken, skipped, or ended by an error, which is raised after this."""


def scaler_of(owner: Any) -> Scaler:
    """Return the scaler of a trainer, a module or an optimizer of mxmp; a TrainerError if it is none of them."""
    if not isinstance(owner, ScalerStatus):
        raise TrainerError(
            f"expected a trainer, a module or a LossScaleOptimizer of mxmp, found {a_type_of(owner)} of "
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
    return [*trainer._scaler.observers.values(), explainer().calls_of(trainer)]


class Step(abc.ABC):
    """Takes the steps of a trainer, a module or an optimizer in a loop; the fronts say which weights and gradients.

    The state of one step is in the scaler's window.

    Attributes:
        scaler: The loss scale, and the window of the present step.
        optimizer: The user's optimizer.
        updaters: One for each context. With a kvstore only one, whose weights the other contexts copy. An optimizer
            that draws noise (SGLD) or counts its calls (Nadam) would let the contexts drift apart.
        masters: The masters of each updater.
        kvstore: The kvstore that sums the gradients. None if each context uses its own gradients.
        last_stats: The last finite running statistics, which fronts keep before each backward pass.
    """

    scaler: Scaler
    optimizer: mx.optimizer.Optimizer
    updaters: Sequence[mx.optimizer.Updater]
    masters: Sequence[Masters]
    kvstore: Any = None
    last_stats: RunningStats
    seen: Any = None  # A result of the first observer of a skipped step, for the observers after it.
    flags_losses = True  # Whether scale_loss makes a flag of the losses.

    # ------------------------------------------------------------------ what a front says

    @abc.abstractmethod
    def groups(self) -> List[List[Update]]:
        """Return for each context the weights whose gradients are to be used; all contexts' fit to be summed."""

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """Return the name of a weight, for messages."""

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradients of a weight that the user sees, one per context; only of fronts that unscale them."""
        raise NotImplementedError

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let the user see other arrays as gradients, by the index of their weight; `groups` has them from now on."""
        raise NotImplementedError

    def waiting(self) -> Mapping[int, List[mx.nd.NDArray]]:
        """Return the gradients of weights that a scaled backward has reached, by index, on all contexts."""
        return {index: self.grads(index) for index in self._indices()}

    def accumulates(self, index: int) -> bool:
        """Return whether backward passes add to the gradient of a weight (``grad_req='add'``)."""
        return False

    def sum_grads(self) -> None:  # noqa: B027
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

    # ------------------------------------------------------------------ the weights

    @property
    def workers(self) -> Optional[KVStore]:
        """The kvstore if it sums over several workers, which must all decide alike."""
        return self.kvstore if isinstance(self.kvstore, KVStore) else None

    def gradients(self) -> List[mx.nd.NDArray]:
        """Return all gradients of all contexts."""
        return [update.grad for group in self.groups() for update in group]

    def _indices(self) -> List[int]:
        """Return the indices of the weights whose gradients are to be used."""
        return list(dict.fromkeys(update.index for group in self.groups() for update in group))

    def first_non_finite(self) -> Optional[str]:
        """Return the name of the first weight whose gradient is not finite; slow."""
        return first_non_finite((self.name(index), grad) for group in self.groups() for index, grad, _ in group)

    def overwritten_weight(self) -> TrainerError:
        """Return the error that names the first weight that differs from its rounded master; slow."""
        index = first_overwritten_weight(zip(self.masters, self.groups()))
        return weight_was_overwritten("a weight" if index is None else f"parameter '{self.name(index)}'")

    # ------------------------------------------------------------------ true gradients

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers, still scaled; once a step."""
        window, workers = self.scaler.ensure_window(), self.workers
        if window.is_summed:
            return
        if workers is not None and window.is_true:  # The gradients of another worker may be scaled.
            self._scale_for_other_workers(window)
        if self.kvstore is not None:
            self._show_float32(self.waiting())  # Sums over contexts and workers may exceed float16.
        if workers is not None and self.scaler.checks and self.flags_losses:  # One worker's loss decides for all.
            window.flags["losses"] = workers.all_workers(window.flags.get("losses"))
        with window.changing():
            self.sum_grads()
            window.is_summed = True
        self._tell(lambda observer: observer.on_reduced(self, 1.0 if window.is_true else window.scale))

    def unscale(self) -> None:
        """Reduce and unscale the gradients, in float32. No host read; on a CPU `all_finite` waits for some of them.

        Gradients of low precision weights are shown as float32 copies up to the end of the step. Their own dtype would
        flush small ones to zero.
        """
        self.reduce()
        window = self.scaler.ensure_window()
        if not window.is_true:
            self._flag_gradients(window, self.gradients())
            self._show_float32(self.waiting())
            with window.changing():
                scale_in_place(self.gradients(), 1.0 / window.scale)
                window.is_true = True

    def unscale_for_reader(self, done: Set[int]) -> None:
        """Unscale gradients for somebody who reads one before the step. They are not summed, and not read on the host.

        Args:
            done: The ids of parameters that other trainers have unscaled. Those of this trainer are added.
        """
        window, arrays = self.scaler.ensure_window(), self.waiting_for_reader(done)
        self._flag_gradients(window, self.written_grads())
        self._show_float32(arrays)
        with window.changing():
            window.seen = [grad for index in arrays for grad in self.grads(index)]
            scale_in_place(window.seen, 1.0 / window.scale)
            window.is_true = True

    def waiting_for_reader(self, done: Set[int]) -> Mapping[int, List[mx.nd.NDArray]]:
        """Return the gradients that a reader makes true, by index: `waiting`, except for parameters in ``done``."""
        return self.waiting()

    def written_grads(self) -> List[mx.nd.NDArray]:
        """Return the gradients that a scaled backward has written."""
        return self.gradients()

    def _flag_gradients(self, window: Window, grads: List[mx.nd.NDArray]) -> None:
        """Flag gradients before they are unscaled, which could make infinite ones finite."""
        if grads and self.scaler.checks:
            window.flag("gradients", all_finite(grads))

    def _scale_for_other_workers(self, window: Window) -> None:
        """Multiply gradients that were unscaled for a reader by the scale; one becomes NaN if any was not finite."""
        grads = [grad for arrays in self.waiting().values() for grad in arrays]
        flag = window.flags.get("gradients")
        with window.changing():
            scale_in_place(grads, window.scale)
            if grads and flag is not None:
                with mx.autograd.pause():
                    first = flat(grads[0])
                    first[:1] += 1 / flag.as_in_context(first.ctx) - 1  # Adds 0, or inf.
            window.seen, window.is_true = (), False
            window.flags.pop("gradients", None)

    def _show_float32(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Show float32 copies of low precision gradients. Autograd still writes to the original arrays."""
        originals = {index: arrays for index, arrays in grads.items() if is_low_precision(arrays[0])}
        if originals:
            widened = iter(all_to_float32([grad for arrays in originals.values() for grad in arrays]))
            copies = {index: [next(widened) for _ in arrays] for index, arrays in originals.items()}
            # Before the change, so that it is undone if it is interrupted.
            self.scaler.ensure_window().shown.append(Shown(self, originals, copies))
            self.set_grads(copies)

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, max_norm: float, rescale: float = 1.0) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before.

        Both norms are those of the gradients times ``rescale``.
        """
        self.unscale()
        window, groups = self.scaler.ensure_window(), [group for group in self.groups() if group]
        if not groups:
            return 0.0
        self._add_flags(window.flags.get("gradients"))
        norms_of = groups[:1] if self.kvstore else groups
        try:
            norm = self.scaler.read_norm([[update.grad for update in group] for group in norms_of]) * rescale
        except NonFiniteLossError:
            with self._ending():
                raise
        if window.finite is not False:
            with window.changing():
                scale_in_place(self.gradients(), clip_coefficient(norm, max_norm))
        return norm

    def clip_value(self, max_value: float) -> None:
        """Unscale, then bring every element of the gradients into [-max_value, max_value]; no host read."""
        self.unscale()
        with self.scaler.ensure_window().changing():
            clip_in_place(self.gradients(), max_value)

    # ------------------------------------------------------------------ the update

    def run(self, rescale: float) -> bool:
        """Reduce the gradients, check them, update the weights or skip, and move the loss scale.

        Args:
            rescale: The factor by which the optimizer multiplies unscaled gradients.

        Returns:
            Whether the step was taken.

        Raises:
            NonFiniteLossError: If the loss itself was not finite. Nothing is updated, as with the other errors.
            LossScaleError: If the loss scale gave up.
            TrainerError: If a weight was overwritten past its master.
        """
        scaler, window = self.scaler, self.scaler.ensure_window()
        self.reduce()
        if not window.is_true and needs_unscaled_gradients(self.optimizer, window.scale):
            self.unscale()
        with self._ending() as number:
            finite = self._is_finite(window)
            if finite:
                self._update(rescale, window)
            elif "losses" not in window.failed:
                self._tell(lambda observer: observer.on_skip(self))
            scaler.update_scale(finite, number, self.first_non_finite)
        return finite

    @contextlib.contextmanager
    def _ending(self) -> Iterator[int]:
        """Yield the number of a step, which is taken or skipped within this context; end the step in any case.

        Its gradients are used then, and running statistics that were lost are restored.
        """
        scaler, before, window = self.scaler, self.scaler.skipped_steps, self.scaler.ensure_window()
        number = self.optimizer.num_update + before + 1
        error: Optional[BaseException] = None
        updated = False
        try:
            try:
                yield number
                updated = scaler.skipped_steps == before
            finally:
                self.seen = None
                self.discard()
                if "statistics" in window.failed:
                    self.last_stats.restore(self.running_stats())
        except BaseException as e:
            error = e
            raise
        finally:
            skipped = scaler.skipped_steps > before and "losses" not in window.failed
            end = StepEnd(number, updated, skipped, window.scale, scaler.loss_scale, error)
            self._tell(lambda observer: observer.on_end(end))

    def discard(self) -> None:
        """Forget the step: its gradients are used, or given up."""
        if self.scaler.window is not None:
            self.scaler.window.hide_float32()
        self.release()
        self.scaler.end_step()
        self.scaler.calls = None

    def _tell(self, event: Callable[[Observer], None]) -> None:
        """Tell all observers of an event."""
        for observer in list(self.scaler.observers.values()):
            event(observer)

    def _is_finite(self, window: Window) -> bool:
        """Return whether all gradients are finite, by one host read; NonFiniteLossError if the losses are not."""
        scaler, grads = self.scaler, self.gradients()
        if grads and window.finite is None:
            flag = all_finite(grads) if scaler.checks else None
            self._add_flags(flag)
            if flag is not None:
                (finite,) = scaler.read([flag])
                if window.finite is None:
                    window.finite = finite == 1.0
            elif "masters" in window.flags:
                scaler.read()
        if "masters" in window.failed:
            self.masters[0].compared_steps = 0
            raise self.overwritten_weight()
        self.masters[0].compared_steps += 1
        taken = window.finite is not False
        losses = () if taken else self.losses()
        if losses:
            flag = all_finite(losses)
            flag = flag if self.workers is None else self.workers.all_workers(flag)
            if flag.asscalar() != 1.0:
                scaler.handle_nonfinite_loss()
        return taken

    def _add_flags(self, grads_finite: Optional[mx.nd.NDArray]) -> None:
        """Add flags to the one host read of a step: of running statistics, and in the first steps of masters.

        ``grads_finite`` is the flag of the gradients; None if they are not checked.
        """
        window, workers = self.scaler.ensure_window(), self.workers
        if self.masters[0].compared_steps < COMPARED_STEPS:
            flag = masters_flag(zip(self.masters, self.groups()))
            if flag is not None:
                window.flags["masters"] = flag if workers is None else workers.all_workers(flag)
        if grads_finite is not None and window.finite is None:
            flag = self.last_stats.check(self.running_stats(), grads_finite)
            if flag is not None:
                window.flags["statistics"] = flag

    def _update(self, rescale: float, window: Window) -> None:
        """Update the weights; ``rescale_grad`` takes the scale of the gradients out, in float32.

        With a scale MXNet reads it exactly, so that gradients that are true already move weights by the same bits.
        Without one it reads it as for its own trainers.
        """
        groups = self.groups()[: len(self.updaters)]
        factor = rescale if window.is_true else rescale * (1.0 / window.scale)
        try:
            self.optimizer.rescale_grad = factor if window.scale == 1.0 else Exact(factor)
            for updater, masters, group in zip(self.updaters, self.masters, groups):
                update(updater, masters, group)
        finally:
            self.optimizer.rescale_grad = rescale
        self.copy_to_other_contexts([update.index for group in groups for update in group])


def needs_unscaled_gradients(optimizer: mx.optimizer.Optimizer, scale: float) -> bool:
    """Return whether gradients have to be unscaled before they are checked and updated with.

    With a scale below 1 they may overflow when they are unscaled. LBSGD looks at gradients before it applies
    ``rescale_grad``: it adds those of several steps up, whose scales may differ, and takes norms of them.
    """
    return scale < 1.0 or (scale != 1.0 and isinstance(optimizer, mx.optimizer.LBSGD))
