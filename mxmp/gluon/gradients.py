"""The step of a gluon trainer, with the gradients that wait for it, and `LossBlock`, the block of `scale_loss`.

MXNet sets a flag on a weight when a backward writes its gradient. A gradient whose flag is set is called fresh. At the
end of a block the flags are cleared, and the window of the step has the weights. If a flag is set again after that,
another backward has run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import mxnet as mx
from mxnet.base import _LIB, check_call

from ..arrays import all_finite, is_low_precision, scale_in_place
from ..errors import StaleGradientError, TrainerError, UnscaledLossError
from ..train.kernels import Update
from ..train.loss_heads import (
    HEAD_SCALE,
    ScaledLoss,
    explain_unrecorded_loss,
    map_losses,
    refuse_recorded,
    require_backward,
)
from ..train.masters import Masters, copy_to_other_contexts
from ..train.running_stats import NamedArrays, RunningStats
from ..train.scaler import Scaler
from ..train.step import Step
from ..train.window import BLOCKS, LOCK, Alive, TrueOnRead, Window, join, open_blocks, plain

_ALL_STEPS = Alive()
"""The steps of all trainers. A scaled backward may reach parameters of a trainer that was not named."""


class TrainerStep(Step):
    """The step of a trainer, and the gradients that backward wrote since the last one.

    Attributes:
        trainer: The trainer.
        has_averages: Whether the parameters have averages in the place of their values.
        thread: The number of the thread of the last step; before it, of the one that made the trainer.
    """

    def __init__(self, trainer: Any, scaler: Scaler) -> None:
        self.trainer, self.scaler, self.optimizer = trainer, scaler, trainer._optimizer
        self.masters = [Masters(each.optimizer, trainer.multi_precision) for each in trainer._updaters]
        self.last_stats = RunningStats()
        self._params: Sequence[mx.gluon.Parameter] = trainer._params  # `add_params` makes it longer.
        self._groups: Optional[List[List[Update]]] = None
        self.has_averages = False
        self._zeroed: List[mx.nd.NDArray] = []  # Weights whose gradient was stale when it was reduced.
        self.thread = threading.get_ident()
        _ALL_STEPS.add(self)

    # ------------------------------------------------------------------ preconditions

    def require(self, call: str, allow_missing: bool = False) -> bool:
        """Check that a call may use the gradients; return whether there are any.

        Args:
            call: The name of the call, for errors.
            allow_missing: Whether the call does something useful without gradients.

        Raises:
            TrainerError: If the gradients must not be used now, or (StaleGradientError) there are none.
        """
        if self.has_averages:
            raise TrainerError(
                f"{call} was called within `averaged.swapped_in()`, after which the net has its own values again, so "
                "that the step would be lost; end that context first."
            )
        self.require_no_others(call)
        window, fresh = self.scaler.window, next(self.fresh(), None)
        if window is not None and window.fault is not None:
            kind, text = window.fault
            raise kind(f"{call}: {text}")
        if fresh is not None and window is not None and (window.is_true or window.is_summed):
            raise TrainerError(
                f"{call}: backward wrote the gradient of parameter '{fresh[0].name}' after the gradients were "
                "unscaled. Run every backward before unscale; to start again call discard_grads."
            )
        if fresh is not None and window is not None and self.scaler.checks:
            raise _not_scaled(call, *fresh)
        is_missing = fresh is None and self._groups is None and next(self.named(self._waiting_ids), None) is None
        if is_missing and not allow_missing:
            self._require_same_arrays(call)
            raise StaleGradientError(
                f"{call}: backward was called on the scaled loss, but it depends on no parameter of this trainer; "
                "give the trainer the parameters of the net that made the loss, and scale the loss only for "
                "trainers of that net."
                if window is not None and window.reached
                else f"{call}: no parameter has a gradient from after the last step; run backward first, or leave "
                f"{call} out. Only a trainer with loss_scale=None steps without one, with ignore_stale_grad=True."
            )
        if window is None and self.scaler.active:
            raise UnscaledLossError(
                f"{call}: the loss of this step was not scaled, but the loss scale is "
                f"{self.scaler.loss_scale.value:g}. Run backward as `with trainer.scale_loss(loss) as scaled: "
                "scaled.backward()`; or to train without a loss scale set trainer.loss_scale = None, after states are "
                "loaded. A loss on which a second trainer steps is scaled for both: first.scale_loss(loss, second)."
            )
        return not is_missing

    def require_all(self, call: str) -> None:
        """Raise if the gradient of any parameter on any context is stale."""
        cleared = {id(data) for data in self._zeroed}
        written = self._waiting_ids
        for param in self._trained():
            for data in param.list_data():
                if id(data) in cleared or not (id(data) in written or data._fresh_grad):
                    self._require_same_arrays(call)
                    raise StaleGradientError(
                        f"{call}: the gradient of parameter '{param.name}' on context {data.ctx} has not "
                        "been updated by backward since the last step. If only a part of the network is "
                        f"meant to be trained, call {call} with ignore_stale_grad=True."
                    )

    def _require_same_arrays(self, call: str) -> None:
        """Raise if backward wrote gradients of arrays that are no parameter's any more."""
        ids = {id(data) for step in _ALL_STEPS for param in step._params for data in param._data or ()}
        if self._waiting_ids - ids:
            raise StaleGradientError(
                f"{call}: after backward, parameters got other arrays, as when a net is converted, restored, cast or "
                "moved to other contexts, so that their gradients are lost. Call discard_grads, and run forward and "
                "backward again; convert before the step's forward pass."
            )

    def require_used(self, call: str) -> None:
        """Raise in the middle of an accumulation: between a backward with ``grad_req='add'`` and its step."""
        for param, _ in self.fresh():
            if param.grad_req == "add":
                raise TrainerError(
                    f"{call} came in the middle of an accumulation window: the gradient of parameter '{param.name}', "
                    "with grad_req='add', waits for its step and would not be saved; call step first, or zero_grad "
                    "and discard_grads."
                )

    def require_no_others(self, call: str) -> None:
        """Raise if a gradient waits for the step of another trainer, or if that trainer is gone."""
        window = self.scaler.window
        for param in self._trained():
            arrays = param._grad
            if not isinstance(arrays, TrueOnRead) or (window and window.written is arrays.window.written):
                continue
            if self._waits_for_another(arrays):
                gc.collect()  # Trainers are part of cycles, so dropped ones may still be there.
            if self._waits_for_another(arrays):
                raise TrainerError(
                    f"{call}: the gradient of parameter '{param.name}' waits for the step of another trainer. Let "
                    "that step first, or give its gradients up by its discard_grads(); a loss that both step on is "
                    "scaled for both at once: first.scale_loss(loss, second)."
                )
            if _adds_to_numbers(param):
                raise TrainerError(
                    f"{call}: the gradient of parameter '{param.name}', to which this backward adds (grad_req='add'), "
                    "was scaled by a trainer that is gone. Now call zero_grad on the parameters to start again."
                )
            param._grad = arrays.plain

    def _waits_for_another(self, arrays: TrueOnRead) -> bool:
        return any(owner is not self.trainer for owner in arrays.window.written.owners)

    def begin_block(self, is_scaled: bool) -> bool:
        """Require that no fresh gradient would mix with those of a block; return whether the step begins with it.

        Gradients become stale that were written before the first scaled block of a step, because they are not scaled.
        One with ``grad_req='add'`` is read on the host, because ``zero_grad`` leaves it fresh.

        Raises:
            TrainerError: If a fresh gradient waits for the step, or if the block would add to it.
        """
        window = self.scaler.window
        if window is not None and window.is_open:
            return False  # Another thread is running a backward.
        if window is not None and window.reached:
            fresh = next(self.fresh(), None) if self.scaler.checks else None
            if fresh is not None:
                raise _not_scaled("scale_loss", *fresh)
            return False
        for param, data in self.fresh() if is_scaled else ():
            if window is not None and not self.scaler.active:
                raise TrainerError(
                    f"scale_loss: the gradient of parameter '{param.name}' waits for a step, and is not scaled: an "
                    "earlier block of its trainer, which has no loss scale, wrote it. Step before this block, or scale "
                    "all losses of the step in one block."
                )
            if _adds_to_numbers(param):
                raise TrainerError(
                    "scale_loss: a backward outside of scale_loss, or in a block that raised, has written the gradient "
                    f"of parameter '{param.name}', to which this block would add (grad_req='add'). Scale every loss of "
                    "a step. Now call zero_grad and discard_grads to start again."
                )
            data._fresh_grad = False
        return True

    # ------------------------------------------------------------------ readers of gradients

    def waiting_for_reader(self, done: Set[int]) -> Mapping[int, List[mx.nd.NDArray]]:
        """Return the gradients that a scaled backward wrote, by index, except for parameters in ``done``."""
        written, grads = self._waiting_ids, {}
        for index, param in enumerate(self._params):
            if param.grad_req != "null" and id(param) not in done:
                if any(id(data) in written for data in param._data or ()):
                    grads[index] = self.grads(index)
                    done.add(id(param))
        return grads

    def collect(self) -> Set[int]:
        """Add the weights with fresh gradients to the window, and clear their flags; return their ids."""
        window = self.scaler.ensure_window()
        pairs = list(self.fresh())
        window.written.owners.add(self.trainer)
        ids = {id(data) for _, data in pairs}
        window.written.ids |= ids
        for param, data in pairs:
            shows_another = window.scale != 1.0 or (self.scaler.active and is_low_precision(data))
            if shows_another and not isinstance(param._grad, TrueOnRead):
                param._grad = TrueOnRead(param._grad, window)
            data._fresh_grad = False
        return ids

    # ------------------------------------------------------------------ fresh gradients

    def fresh(self) -> Iterator[Tuple[mx.gluon.Parameter, mx.nd.NDArray]]:
        """Yield (parameter, weight) for each fresh gradient.

        For many arrays this takes less than half as long as to read ``array._fresh_grad`` of each.
        """
        state = ctypes.c_int()
        reference, read_state = ctypes.byref(state), _LIB.MXNDArrayGetGradState
        for param in self._trained():
            for data in param._data or ():
                check_call(read_state(data.handle, reference))
                if state.value:
                    yield param, data

    @property
    def _waiting_ids(self) -> Set[int]:
        """The ids of the weights whose gradients the step uses."""
        if self._groups is not None:
            return {id(update.weight) for group in self._groups for update in group}
        return set() if self.scaler.window is None else self.scaler.window.written.ids

    def adding(self) -> Iterator[int]:
        """Yield the ids of the weights to whose gradients backward adds."""
        for param in self._params:
            if param.grad_req == "add":
                yield from map(id, param._data or ())

    def named(self, ids: Set[int]) -> Iterator[mx.gluon.Parameter]:
        """Yield the parameters of some weights."""
        for param in self._trained():
            if any(id(data) in ids for data in param._data or ()):
                yield param

    def written_grads(self) -> List[mx.nd.NDArray]:
        """Return the gradients that a scaled backward has written."""
        ids = self._waiting_ids
        pairs = (zip(param._data or (), plain(param._grad) or ()) for param in self._trained())
        return [grad for each in pairs for data, grad in each if id(data) in ids]

    def bring_to(self, scale: float) -> None:
        """Multiply the gradients that wait so that they have another scale: a step has one scale at any time.

        The product is exact in float32; float16 may lose bits.
        """
        window = self.scaler.ensure_window()
        with window.changing():
            scale_in_place(self.written_grads(), scale / window.scale)
            window.scale = scale

    def restore_fresh_flags(self, ids: Set[int]) -> None:
        """Set MXNet's flags again on weights, by their ids, and take the weights out of the window."""
        for data in (data for param in self._trained() for data in param._data or ()):
            if id(data) in ids:
                data._fresh_grad = True
        if self.scaler.window is not None:
            self.scaler.window.written.ids -= ids

    def make_stale(self) -> None:
        """Make all gradients stale, also those that backward wrote after `unscale`."""
        for _, data in self.fresh():
            data._fresh_grad = False

    def _trained(self) -> Iterator[mx.gluon.Parameter]:
        return (param for param in self._params if param.grad_req != "null")

    # ------------------------------------------------------------------ the weights of a step

    @property
    def kvstore(self) -> Any:
        """The trainer's kvstore."""
        return self.trainer._kvstore

    @property
    def updaters(self) -> Any:  # type: ignore[override]
        """The trainer's updaters, as many as work."""
        return self.trainer._updaters[:1] if self.kvstore else self.trainer._updaters

    def groups(self) -> List[List[Update]]:
        """Return the gradients that wait, per context. The first call takes them out of the window of all trainers.

        A gradient that is stale on one context and waits on another is an old sum, at another loss scale. It becomes
        zero, because a kvstore would add it to the others.
        """
        if self._groups is None:
            if self.scaler.window is None or not self.scaler.checks:
                self.collect()
            ids, has_kvstore = self._waiting_ids, bool(self.kvstore)
            groups: List[List[Update]] = [[] for _ in self.trainer._contexts or ()]
            for index, param in enumerate(self._params):
                if param.grad_req == "null":
                    continue
                weights, grads = param.list_data(), plain(param.list_grad())
                if len(weights) != len(groups):
                    raise TrainerError(
                        f"parameter '{param.name}' is on {param.list_ctx()}, but the trainer was made for "
                        f"{len(groups)} of them; make the trainer anew after reset_ctx."
                    )
                is_summed = has_kvstore and any(id(data) in ids for data in weights)
                for group, data, grad in zip(groups, weights, grads):
                    if is_summed and id(data) not in ids:
                        mx.nd.zeros_like(grad.as_nd_ndarray(), out=grad.as_nd_ndarray())
                        self._zeroed.append(data)
                    if is_summed or id(data) in ids:
                        group.append(Update(index, grad, data))
            self._groups = groups
            ids -= self._waiting_ids
        return self._groups

    def name(self, index: int) -> str:
        """Return the name of a parameter."""
        return str(self._params[index].name)

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return ``param.list_grad()`` as it is, scaled or not."""
        return list(plain(self._params[index].list_grad()))

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let ``param.grad()`` show other arrays."""
        for index, arrays in grads.items():
            param = self._params[index]
            shown = param._grad
            if shown is None or (not isinstance(shown, TrueOnRead) and shown[0] is arrays[0]):
                continue  # it is gone, or shows them already
            if not isinstance(shown, TrueOnRead):
                shown = TrueOnRead(shown, self.scaler.ensure_window())
                param._grad = shown
            shown.show(arrays)
        if self._groups is not None:
            self._groups = [
                [each._replace(grad=grads[each.index][k]) if each.index in grads else each for each in group]
                for k, group in enumerate(self._groups)
            ]

    def accumulates(self, index: int) -> bool:
        """Return whether a parameter has ``grad_req='add'``."""
        return bool(self._params[index].grad_req == "add")

    def sum_grads(self) -> None:
        """Sum the gradients over contexts and workers."""
        self.trainer._allreduce_grads()

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Copy the weights of the first context to the others. Only the masters of the first are kept."""
        for index in indices if len(self.updaters) < len(self.trainer._contexts) else ():
            copy_to_other_contexts(self._params[index].list_data(), self._params[index])

    def release(self) -> None:
        """Show the parameters' own lists of gradients again, and take this trainer's weights out of the window."""
        window = self.scaler.window
        for param in self._params:
            arrays = param._grad
            if not isinstance(arrays, TrueOnRead):
                continue
            if arrays.window is window or any(owner is self.trainer for owner in arrays.window.written.owners):
                vars(param)["_grad"] = arrays.plain
        if window is not None:
            window.written.owners.discard(self.trainer)
            window.written.ids -= {id(data) for param in self._params for data in param._data or ()}
        self._zeroed.clear()
        self._groups, self.thread = None, threading.get_ident()
        HEAD_SCALE.forget(self.trainer)

    def running_stats(self) -> NamedArrays:
        """Return BatchNorm's statistics and their like: non-differentiable parameters, on every context."""
        stats = [param for param in self._params if not param._differentiable]
        return [(param.name, data) for param in stats for data in param._data or ()]


def _adds_to_numbers(param: mx.gluon.Parameter) -> bool:
    """Return whether a backward adds to a gradient that is not zero; a host read."""
    return param.grad_req == "add" and any(grad.asnumpy().any() for grad in plain(param._grad))


def _not_scaled(call: str, param: mx.gluon.Parameter, data: mx.nd.NDArray) -> TrainerError:
    return TrainerError(
        f"{call}: the gradient of parameter '{param.name}' on {data.ctx} was written by a backward outside of "
        "scale_loss, and is not scaled, as others of this step are. Scale all losses: `with "
        "trainer.scale_loss([loss1, loss2]) as scaled: autograd.backward(scaled)`. Now call discard_grads to start "
        "again."
    )


# ------------------------------------------------------------------ the block of scale_loss


class LossBlock:
    """The context manager that `Trainer.scale_loss` returns; it yields the scaled losses.

    Attributes:
        windows: Those of all trainers that step on the losses; empty while the block is not open.
        thread: The number of its thread.
        is_alone: Whether no other block of its windows was open with it, and no two of its backward passes at once.
    """

    def __init__(self, loss: Any, trainers: Sequence[Any], loss_id: int) -> None:
        self.windows: Sequence[Window] = ()
        self.thread, self.is_alone = threading.get_ident(), True
        self._loss, self._loss_id = loss, loss_id
        self._steps: List[TrainerStep] = [trainer._training_step for trainer in dict.fromkeys(trainers)]
        self._losses: List[ScaledLoss] = []
        self._arrays: List[mx.nd.NDArray] = []  # The losses as they were given.
        # Ids of weights whose gradients were written by earlier blocks, by scaled losses here, and by others here.
        self._earlier_ids: Set[int] = set()
        self._scaled_ids: Set[int] = set()
        self._unscaled_ids: Set[int] = set()
        self._new_steps: List[TrainerStep] = []  # Steps that begin with this block.
        self._set_aside: List[mx.nd.NDArray] = []  # Weights of other trainers that had fresh gradients before.
        self._running_backwards = 0
        self._changed_heads: List[Any] = []  # Loss heads of other trainers' nets, with the scales that they had.
        self._losses_finite: Optional[mx.nd.NDArray] = None  # A flag on the device.

    def __enter__(self) -> Any:
        with LOCK:
            for step in self._steps:
                step.scaler.require_can_scale("scale_loss")
            for step in self._steps:
                step.require_no_others("scale_loss")
            scale = self._choose_scale()
            is_scaled = scale != 1.0 or any(step.scaler.active for step in self._steps)
            self._new_steps = [step for step in self._steps if step.begin_block(is_scaled)]
            scaled = self._multiply(scale, is_scaled)
            for step in self._steps:
                window = step.scaler.window
                for _, each in window.written.windows() if window is not None else ():
                    each.scale_again()
                if window is not None and window.reached and window.scale != scale:
                    step.bring_to(scale)
            self._losses_finite = all_finite([each.cast_loss for each in self._losses]) if self._losses else None
            windows = [step.scaler.ensure_window(scale) for step in self._steps]
            if len(windows) > 1:
                join(windows)
            self._earlier_ids = set(windows[0].written.ids)
            try:
                self._set_aside = _fresh_of_others(self._steps) if is_scaled else []
                for data in self._set_aside:
                    data._fresh_grad = False
                HEAD_SCALE.write(scale, [step.trainer for step in self._steps], self._changed_heads)
                for step in self._steps if is_scaled else ():
                    step.last_stats.keep(step.running_stats())
                for other in open_blocks():
                    if any(window in other.windows for window in windows):
                        self.is_alone = other.is_alone = False
                self.thread = threading.get_ident()
                BLOCKS.add(self)
                self.windows = windows
                return scaled
            except BaseException:
                self._leave(windows)
                raise

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        with LOCK:
            windows = self.windows
            try:
                if error is None:
                    self._finish(windows)
                else:
                    explain_unrecorded_loss(self._losses, error)
            except BaseException:
                self._leave(windows)
                raise
            if error is None:
                self._close(windows, has_raised=False)
            else:
                self._leave(windows)
        for step in self._steps if error is None else ():
            for observer in list(step.scaler.observers.values()):
                observer.on_losses(self._arrays, step in self._new_steps)

    def _leave(self, windows: Sequence[Window]) -> None:
        """Leave a block that raises: its gradients are fresh again, so that no step takes them for scaled ones."""
        noted = windows[0].written.ids - self._earlier_ids if self.is_alone else set()
        for step in self._steps:
            step.restore_fresh_flags(self._scaled_ids | noted)
        self._close(windows, has_raised=True)

    def _close(self, windows: Sequence[Window], has_raised: bool) -> None:
        """Close the block, and end the windows that no backward has reached.

        Gradients that this block wrote for trainers that were not named become stale: they have its scale.
        """
        self.windows = ()
        BLOCKS.discard(self)
        LOCK.notify_all()
        if self._changed_heads:
            HEAD_SCALE.give_back(self._changed_heads)
        for step, window in zip(self._steps, windows):
            is_unused = not window.reached and window.fault is None and not window.is_open
            if is_unused and (self._losses or has_raised):
                step.release()
                step.scaler.end_step()
        written = _fresh_of_others(self._steps) if self._losses else []
        for data in written:
            data._fresh_grad = False
        ids = {id(data) for data in written}
        for data in self._set_aside:
            if id(data) not in ids:
                data._fresh_grad = True

    def _choose_scale(self) -> float:
        """Select the loss in trainers with several losses; return the scale of the block, the smallest of all."""
        scalers = [step.scaler for step in self._steps]
        several = [scaler for scaler in scalers if self._loss_id != 0 or scaler.num_losses > 1]
        if several:
            for scaler in several:
                scaler.select_loss(self._loss_id)
            return min(scaler.loss_scale.value for scaler in scalers)
        scales = {each.window.scale for each in scalers if each.window is not None and each.window.reached}
        if len(scales) > 1:
            raise TrainerError(
                f"scale_loss was given trainers whose gradients wait at different scales {sorted(scales)}; "
                "call step on them first."
            )
        values = [scaler.loss_scale.value for scaler in scalers if scaler.active]
        return scales.pop() if scales else min(values, default=1.0)

    def _multiply(self, scale: float, is_scaled: bool) -> Any:
        """Return the loss times the scale, or the loss itself if no trainer has a scale."""
        for step in self._new_steps:
            step.scaler.factors.release()  # The graphs of the last step are freed.
        scaler = self._steps[0].scaler

        def multiply(path: str, array: mx.nd.NDArray) -> mx.nd.NDArray:
            self._arrays.append(array)
            if not is_scaled:
                return array
            self._losses.append(scaler.factors.multiply(path, array, scale, self))
            return self._losses[-1].scaled

        scaled = map_losses(self._loss, multiply)
        if is_scaled and not scaler.has_checked_loss_heads:
            refuse_recorded(self._losses)
            scaler.has_checked_loss_heads = True
        return scaled

    @contextlib.contextmanager
    def backward_of(self, loss: ScaledLoss) -> Iterator[None]:
        """Run a backward of a scaled loss within this context, and record which gradients it writes."""
        if not self.windows:
            yield
            return
        with LOCK:
            if self._running_backwards or (loss.reached and not loss.is_announced):
                self.is_alone = False  # Another backward runs now, or autograd.backward ran before.
            self._running_backwards += 1
            before = self._collect()
        try:
            yield
        finally:
            self._running_backwards -= 1
        with LOCK:
            after = self._collect()
            loss.is_announced = True
            self._scaled_ids |= after
            if before:
                self._unscaled_ids |= before & self._adding() | before - after

    def _adding(self) -> Set[int]:
        return set().union(*(step.adding() for step in self._steps))

    def _collect(self) -> Set[int]:
        return set().union(*(step.collect() for step in self._steps))

    def _finish(self, windows: Sequence[Window]) -> None:
        """Check that backward ran on the scaled losses, and on no others; add the gradients to the windows."""
        if not self._losses:
            return
        try:
            reached = require_backward(self._losses, self._name_of_fresh)
            all_announced = self.is_alone and all(each.is_announced or each.factor is None for each in self._losses)
            if all_announced:
                self._unscaled_ids |= {id(data) for step in self._steps for _, data in step.fresh()}
                if self._unscaled_ids:
                    raise UnscaledLossError(
                        f"scale_loss: within the block a backward of another loss wrote the gradient of parameter "
                        f"'{self._name_of_any(self._unscaled_ids)}', which is not scaled. Scale all losses: `with "
                        f"trainer.scale_loss([loss1, loss2]) as scaled: autograd.backward(scaled)`."
                    )
        except UnscaledLossError:
            for window in windows:
                window.fault = UnscaledLossError, (
                    "a scale_loss block of this step has raised, because backward was called on a loss that was not "
                    "scaled; call discard_grads to start again (with grad_req='add' zero_grad too)."
                )
            raise
        written = self._scaled_ids if all_announced else self._collect() | self._scaled_ids
        for window in windows:
            window.flag("losses", self._losses_finite)
            window.reached = window.reached or reached
        overwritten = written & self._earlier_ids
        if overwritten:
            overwritten -= self._adding()
        if overwritten:
            text = (
                f"a backward overwrote the gradient of parameter '{self._name_of_any(overwritten)}' from an earlier "
                "scale_loss block of the same step. Was step forgotten between them? If that gradient is not wanted, "
                "call discard_grads before the later block; to add gradients up set grad_req='add', and zero_grad "
                "after each step; or scale all losses in one block. Now call discard_grads to start again."
            )
            for window in windows:
                window.fault = TrainerError, text
            raise TrainerError(f"scale_loss: {text}")
        for step in self._steps:
            if self._loss_id != 0 or step.scaler.num_losses > 1:
                step.scaler.record_finite(step.written_grads())

    def _name_of_any(self, ids: Set[int]) -> str:
        return next(str(param.name) for step in self._steps for param in step.named(ids))

    def _name_of_fresh(self) -> Optional[str]:
        """Return the name of a parameter with a fresh gradient, or None."""
        return next((str(param.name) for step in self._steps for param, _ in step.fresh()), None)


def _fresh_of_others(named: Sequence[TrainerStep]) -> List[mx.nd.NDArray]:
    """Return weights with fresh gradients whose trainers are not named, have no scale and belong to this thread."""
    weights = []
    for other in _ALL_STEPS:
        if other in named or other.thread != threading.get_ident():
            continue
        is_summed = other.scaler.window is not None and other.scaler.window.is_summed
        with contextlib.suppress(TrainerError):  # Its policy's loss scale does not fit it, as its own step says.
            if not other.scaler.checks and not is_summed:
                weights += [data for _, data in other.fresh()]
    return weights
