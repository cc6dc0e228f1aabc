"""The training step of every front: reduce, check, unscale, update or skip, move the loss scale.

`Weights` is what it needs to know of the weights that a trainer, a module or an optimizer trains; an `Observer` is told
of each step, and of the calls of converted nets that a trainer trains.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
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
from ..loss_scale import LossScale
from .kernels import Update, update
from .masters import Masters, first_written_past, masters_flag, written_past
from .running_stats import Named, RunningStats
from .scaler import Scaler, ScalerStatus
from .window import Stage, Window

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
        observers = scaler_of(owner).observers
        self._owner = owner
        observers[id(self)] = self
        return self

    def detach(self) -> None:
        """Look at no further steps; a second call does nothing."""
        if self._owner is not None:
            scaler_of(self._owner).observers.pop(id(self), None)
        self._owner = None

    def __enter__(self: Watching) -> Watching:
        return self

    def __exit__(self, *raised: object) -> None:
        self.detach()

    def on_call(self, call: NetCall) -> Any:
        """A converted net that the trainer trains was called under ``autograd.record()``; return its outputs.

        The caller gets these in the place of ``call.outputs``. They may have zeros added, whose gradients are wanted.
        """
        return call.outputs

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

    def on_close(self) -> None:
        """The gradients of the step are used, right before `on_end`, or were discarded. Forget its calls."""

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


def hand_on_observers(owner: Any, before: Scaler) -> None:
    """Tell the observers of an owner of the steps of its scaler, where it worked with another one before."""
    for key, observer in list(before.observers.items()):
        if observer._owner is owner:
            owner._scaler.observers[key] = observer
            before.observers.pop(key, None)


def observers_of_calls(trainer: Any) -> List[Observer]:
    """Return the observers of a trainer, and among them the one that keeps calls to explain a step that fails.

    `mxmp.diagnose.watch` makes it. That is imported by name, because it stands above this file.
    """
    importlib.import_module("mxmp.diagnose.watch").calls_of(trainer)
    return list(trainer._scaler.observers.values())


class _Shown(NamedTuple):
    """Low precision gradients by the index of their weight, and the float32 copies that are shown in their place."""

    weights: Weights
    originals: Mapping[int, List[mx.nd.NDArray]]
    copies: Mapping[int, List[mx.nd.NDArray]]


class Step:
    """Takes the steps of a trainer, a module with its buckets, or an optimizer in a loop.

    Each method is given the weights, which may be others at each step. What is known of a step is in the scaler's
    window.

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
        window, workers = self.scaler.begun(), weights.workers
        if window.is_summed:
            return
        if workers is not None and window.is_true:  # another worker's may be scaled
            self._scale_again(weights)
        weights.prepare_reduce()
        self._tell(lambda each: each.on_gradients(weights, 1.0 if window.is_true else window.scale))
        if weights.kvstore is not None:
            self._show_float32(weights, _indices(weights))  # sums over contexts and workers may exceed float16
        if workers is not None and self.scaler.checks and weights.flags_losses:  # a worker's loss decides for all
            window.flags["losses"] = workers.all_workers(window.flags.get("losses"))
        with window.changing():
            weights.reduce()
            window.stage = Stage.TRUE if window.is_true else Stage.SUMMED
        scale = 1.0 if window.is_true else window.scale
        self._tell(lambda observer: observer.on_reduced(weights, scale))

    def unscale(self, weights: Weights) -> None:
        """Make the gradients true ones, in float32, reduced; no host read, nor wait but for some on CPU (`all_finite`).

        Those of low precision weights are shown as float32 copies up to the end of the step, because
        their own dtype would flush them to zero.
        """
        self.reduce(weights)
        window = self.scaler.begun()
        if window.is_true:
            return
        grads = _gradients(weights.groups())
        if grads and self.scaler.checks:
            window.flag("gradients", all_finite(grads))
        self._show_float32(weights, _indices(weights))
        with window.changing():
            scale_in_place(_gradients(weights.groups()), 1.0 / window.scale)
            window.stage = Stage.TRUE

    def see(self, weights: Weights, arrays: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Make gradients, by the index of their weight, true ones for somebody who reads them before the step.

        Nothing is summed, and nothing read on the host.
        """
        window = self.scaler.begun()
        written = weights.written_grads()
        if written and self.scaler.checks:
            window.flag("gradients", all_finite(written))
        self._show_float32(weights, arrays)
        with window.changing():
            window.seen = [grad for index in arrays for grad in weights.grads(index)]
            scale_in_place(window.seen, 1.0 / window.scale)
            window.stage = Stage.SEEN

    def scale_again(self) -> None:
        """Multiply gradients that somebody has read back to the scale: more are to be added to them."""
        window = self.scaler.window
        if window is not None and window.stage is Stage.SEEN:
            with window.changing():
                scale_in_place(window.seen, window.scale)
                self._hide_float32(window, keep=True)
                window.seen, window.stage = (), Stage.SCALED

    def _scale_again(self, weights: Weights) -> None:
        """Multiply gradients that somebody has read back to the scale, NaN among them if any was not finite."""
        window = self.scaler.begun()
        grads = [grad for arrays in weights.waiting().values() for grad in arrays]
        flag = window.flags.get("gradients")
        with window.changing():
            scale_in_place(grads, window.scale)
            if grads and flag is not None:
                with mx.autograd.pause():
                    first = flat(grads[0])
                    first[:1] += 1 / flag.as_in_context(first.ctx) - 1  # 0, or inf
            window.seen, window.stage = (), Stage.SCALED
            window.flags.pop("gradients", None)

    # ------------------------------------------------------------------ clipping

    def clip_global_norm(self, weights: Weights, max_norm: float, rescale: float = 1.0) -> float:
        """Unscale, then scale the gradients down to a norm; one host read. Returns the norm before.

        Both norms are those of the gradients times ``rescale``.
        """
        self.unscale(weights)
        window, groups = self.scaler.begun(), [group for group in weights.groups() if group]
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
        with self.scaler.begun().changing():
            clip_in_place(_gradients(weights.groups()), max_value)

    # ------------------------------------------------------------------ the update

    def run(self, weights: Weights, rescale: float) -> bool:
        """Reduce the gradients, check them, update the weights or skip, and move the loss scale.

        The optimizer multiplies true gradients by ``rescale``. Returns whether the step was taken. Nothing is updated
        if it raises: NonFiniteLossError if the loss itself was not finite, LossScaleError if the loss scale gave up,
        TrainerError if a weight was overwritten past its master.
        """
        scaler, window = self.scaler, self.scaler.begun()
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
        """Give the number of a step that is decided within this context, and end it, whatever is raised."""
        scaler, before, window = self.scaler, self.scaler.skipped_steps, self.scaler.begun()
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
        scaler, window, grads = self.scaler, self.scaler.begun(), _gradients(weights.groups())
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
            index = first_written_past(zip(weights.masters, weights.groups()))
            raise written_past("a weight" if index is None else f"parameter '{weights.name(index)}'")
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
        """Have the one host read of a step tell whether statistics were lost, and in the first steps a master left.

        Args:
            weights: The weights.
            grads_finite: The flag of the gradients; None if they are not checked.
        """
        window, workers = self.scaler.begun(), weights.workers
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
        optimizer, updaters, window = weights.optimizer, weights.updaters, self.scaler.begun()
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
        """Show float32 copies of low precision gradients; autograd goes on writing to the arrays that it knows."""
        grads = {index: weights.grads(index) for index in indices}
        low = {index: arrays for index, arrays in grads.items() if is_low_precision(arrays[0])}
        if low:
            found = iter(copies_in_float32([grad for arrays in low.values() for grad in arrays]))
            copies = {index: [next(found) for _ in arrays] for index, arrays in low.items()}
            self.scaler.begun().shown.append(_Shown(weights, low, copies))  # before the change, so that it is undone
            weights.set_grads(copies)

    def _hide_float32(self, window: Window, keep: bool = False) -> None:
        """Show the gradients' own arrays again.

        Those that accumulate take over what was shown, zeros above all; ``keep`` has all do so.
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
