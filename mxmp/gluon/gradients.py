"""The parameters of a gluon trainer as weights of a training step: the gradients that wait for it, and their readers.

MXNet has a flag on each weight that says whether a backward wrote its gradient. At the end of a block of `scale_loss`
the flags are cleared, and the window notes the weights. A flag that is set again is another backward, for certain.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from operator import attrgetter
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import mxnet as mx

from ..arrays import all_finite, is_low_precision, scale_in_place
from ..errors import StaleGradientError, TrainerError, UnscaledLossError
from ..mxnet_private import checked_arrays, fresh_among
from ..train import loss_heads
from ..train.kernels import Update
from ..train.loss_heads import HEAD_SCALE, ScaledLoss, explain_unrecorded, mapped, refuse_recorded, require_backward
from ..train.masters import Masters, copy_to_other_contexts
from ..train.running_stats import Named
from ..train.scaler import Scaler
from ..train.step import Step, Weights
from ..train.window import BLOCKS, LOCK, Alive, Block, Stage, TrueOnRead, Window, join, open_blocks, plain

# Asked of every weight at every step.
_fresh = attrgetter("_fresh_grad")
_arrays, _gradients = attrgetter("_data"), attrgetter("_grad")
_is_differentiable = attrgetter("_differentiable")


_ALL = Alive()  # of all trainers: a scaled backward may reach parameters of one that was not named


class Gradients(Weights):
    """The gradients that backward wrote since a trainer's last step.

    Attributes:
        step: The step of the trainer.
        scaler: The scaler of the trainer.
        optimizer: The trainer's optimizer.
        has_averages: Whether the parameters have averages in the place of their values.
    """

    def __init__(self, trainer: Any, step: Step) -> None:
        self.step, self.scaler, self.optimizer = step, step.scaler, trainer._optimizer
        self._trainer = trainer
        self._params: Sequence[mx.gluon.Parameter] = trainer._params  # may grow later
        self._masters = [Masters(each.optimizer, trainer.multi_precision) for each in trainer._updaters]
        self._taken: Optional[List[List[Update]]] = None
        self.has_averages = False
        self._cleared: List[mx.nd.NDArray] = []  # weights whose gradient was stale when it was reduced
        self._thread = threading.get_ident()  # of the last step; before that, the one that made the trainer
        _ALL.add(self)

    @property
    def window(self) -> Optional[Window]:
        """The window of the trainer's step."""
        return self.scaler.window

    # ------------------------------------------------------------------ preconditions

    def require(self, call: str, allow_missing: bool = False) -> bool:
        """Raise if a call cannot use the gradients; return whether there are any, without which it may do."""
        if self.has_averages:
            raise TrainerError(
                f"{call} was called within `averaged.swapped_in()`, after which the net has its own values again, so "
                "that the step would be lost; end that context first."
            )
        self.require_own(call)
        window, fresh = self.scaler.window, next(self.fresh(), None)
        if window is not None:
            window.require_sound(call)
        if fresh is not None and window is not None and (window.is_true or window.is_summed):
            raise TrainerError(
                f"{call}: backward wrote the gradient of parameter '{fresh[0].name}' after the gradients were "
                "unscaled. Run every backward before unscale; to start again call discard_grads."
            )
        if fresh is not None and self._is_scaled:
            raise _not_scaled(call, *fresh)
        is_missing = fresh is None and self._taken is None and next(self.named(self._ids), None) is None
        if is_missing and not allow_missing:
            raise StaleGradientError(
                f"{call}: backward was called on the scaled loss, but it depends on no parameter of this trainer; "
                "give the trainer the parameters of the net that made the loss, and scale the loss for those "
                "trainers alone that it trains."
                if window is not None and window.reached
                else f"{call}: no parameter has a gradient from after the last step; run backward first, or leave "
                f"{call} out. Only a trainer with loss_scale=None steps without one, with ignore_stale_grad=True."
            )
        if window is None and self.scaler.active:
            raise UnscaledLossError(
                f"{call}: the loss of this step was not scaled, but the loss scale is "
                f"{self.scaler.loss_scale.value:g}. Run backward as `with trainer.scale_loss(loss) as scaled: "
                "scaled.backward()`, or create the trainer with loss_scale=None. A loss on which a second trainer "
                "steps is scaled for both: first.scale_loss(loss, second)."
            )
        return not is_missing

    @property
    def _is_scaled(self) -> bool:
        """Whether all gradients of the present step are to come from scaled losses."""
        return self.scaler.window is not None and self.scaler.checks

    def require_all(self, call: str) -> None:
        """Raise if the gradient of any parameter on any context is stale."""
        cleared = {id(data) for data in self._cleared}
        written = self._ids
        for param in self._trained():
            for data in _arrays(param) or checked_arrays(param):
                if id(data) in cleared or not (id(data) in written or _fresh(data)):
                    raise StaleGradientError(
                        f"{call}: the gradient of parameter '{param.name}' on context {data.ctx} has not "
                        "been updated by backward since the last step. If only a part of the network is "
                        f"meant to be trained, call {call} with ignore_stale_grad=True."
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

    def require_own(self, call: str) -> None:
        """Raise if a gradient waits for the step of another trainer, or was scaled by one that is gone."""
        window = self.scaler.window
        for param in self._trained():
            arrays = _gradients(param)
            if not isinstance(arrays, TrueOnRead) or (window and window.written is arrays.window.written):
                continue
            if self._waits_for_another(arrays):
                gc.collect()  # trainers are part of cycles, so that dropped ones may still be there
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
        return any(owner is not self for owner in arrays.window.written.owners)

    def begin(self, waits: bool) -> None:
        """Let gradients that were written before the first block of a step be stale, which are not scaled.

        Raise if the block would add to one; a host read for it, because ``zero_grad`` leaves it fresh. Raise too if it
        ``waits`` for a step: an earlier block without a scale wrote it.
        """
        for param, data in self.fresh():
            if waits:
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

    # ------------------------------------------------------------------ who reads sees true gradients

    def make_true(self, done: Set[int]) -> None:
        """Make the gradients that wait true ones, but those of parameters whose ids are ``done``; these are added."""
        window = self.scaler.window
        if window is None or window.stage is not Stage.SCALED or window.fault is not None:
            return
        written, grads = window.written.ids, {}
        for index, param in enumerate(self._params):
            if param.grad_req != "null" and id(param) not in done:
                if any(id(data) in written for data in _arrays(param) or ()):
                    grads[index] = self.grads(index)
                    done.add(id(param))
        self.step.see(self, grads)

    def collect(self) -> Set[int]:
        """Note the weights whose gradients backward wrote, and clear MXNet's flags on them; return their ids."""
        window = self.scaler.begun()
        found = list(self.fresh())
        window.written.owners.add(self)
        ids = {id(data) for _, data in found}
        window.written.ids |= ids
        for param, data in found:
            shows_another = window.scale != 1.0 or (self.scaler.active and is_low_precision(data))
            if shows_another and not isinstance(_gradients(param), TrueOnRead):
                param._grad = TrueOnRead(_gradients(param), window)
            data._fresh_grad = False
        return ids

    # ------------------------------------------------------------------ what is fresh

    def fresh(self) -> Iterator[Tuple[mx.gluon.Parameter, mx.nd.NDArray]]:
        """Return the parameters, with their arrays, whose gradient backward has written and nothing has noted."""
        return fresh_among((param, data) for param in self._trained() for data in _arrays(param) or ())

    @property
    def _ids(self) -> Set[int]:
        """The ids of the weights whose gradients the step uses."""
        if self._taken is not None:
            return {id(update.weight) for group in self._taken for update in group}
        return set() if self.scaler.window is None else self.scaler.window.written.ids

    def adding(self) -> Iterator[int]:
        """Yield the ids of the weights to whose gradients backward adds."""
        for param in self._params:
            if param.grad_req == "add":
                yield from map(id, _arrays(param) or ())

    def named(self, ids: Set[int]) -> Iterator[mx.gluon.Parameter]:
        """Yield the parameters of some weights."""
        for param in self._trained():
            if any(id(data) in ids for data in _arrays(param) or ()):
                yield param

    def written_grads(self) -> List[mx.nd.NDArray]:
        """Return the gradients that a scaled backward has written."""
        ids = self._ids
        pairs = (zip(_arrays(param) or (), plain(_gradients(param)) or ()) for param in self._trained())
        return [grad for each in pairs for data, grad in each if id(data) in ids]

    def bring_to(self, scale: float) -> None:
        """Bring gradients that wait to the scale of one of several losses: a step has one scale at any time.

        That is exact in float32; float16 may lose bits.
        """
        window = self.scaler.begun()
        with window.changing():
            scale_in_place(self.written_grads(), scale / window.scale)
            window.scale = scale

    def unnote(self, ids: Set[int]) -> None:
        """Let MXNet's flags tell again of gradients, by the ids of their weights, in place of the window."""
        for data in (data for param in self._trained() for data in _arrays(param) or ()):
            if id(data) in ids:
                data._fresh_grad = True
        if self.scaler.window is not None:
            self.scaler.window.written.ids -= ids

    def fresh_of_others(self, named: Sequence[Gradients]) -> List[mx.nd.NDArray]:
        """Return the weights with fresh gradients of trainers of this thread that have no scale and are not named."""
        return [
            data
            for other in _ALL
            if other not in named and not other.scaler.checks and other._thread == threading.get_ident()
            for _, data in (other.fresh() if other.window is None or not other.window.is_summed else ())
        ]

    def discard(self) -> None:
        """Let all gradients be stale, those that backward wrote after `unscale` too."""
        for _, data in self.fresh():
            data._fresh_grad = False

    def _trained(self) -> Iterator[mx.gluon.Parameter]:
        return (param for param in self._params if param.grad_req != "null")

    # ------------------------------------------------------------------ the weights of a step

    @property
    def updaters(self) -> Any:  # type: ignore[override]
        """The trainer's updaters, as many as work."""
        return self._trainer._updaters[:1] if self.kvstore else self._trainer._updaters

    @property
    def masters(self) -> Any:  # type: ignore[override]
        """The masters of each updater."""
        return self._masters[: len(self.updaters)]

    @property
    def kvstore(self) -> Any:
        """The trainer's kvstore."""
        return self._trainer._kvstore

    def groups(self) -> List[List[Update]]:
        """Return the gradients that wait, per context; from now on this step alone has them."""
        if self._taken is None:
            if not self._is_scaled:
                self.collect()
            ids = self._ids
            taken: List[List[Update]] = [[] for _ in self._trainer._contexts or ()]
            for index, param in enumerate(self._params):
                if param.grad_req == "null":
                    continue
                pairs = list(zip(param.list_data(), plain(param.list_grad())))
                if len(pairs) != len(taken):
                    raise TrainerError(
                        f"parameter '{param.name}' is on {param.list_ctx()}, but the trainer was made for "
                        f"{len(taken)} of them; make the trainer anew after reset_ctx."
                    )
                for group, (data, grad) in zip(taken, pairs):
                    if id(data) in ids:
                        group.append(Update(index, grad, data))
            self._taken = taken
            ids -= self._ids
        return self._taken

    def name(self, index: int) -> str:
        """Return the name of a parameter."""
        return str(self._params[index].name)

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return ``param.list_grad()``; nothing is made true."""
        return list(plain(self._params[index].list_grad()))

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let ``param.grad()`` show other arrays."""
        for index, arrays in grads.items():
            param = self._params[index]
            found = _gradients(param)
            if found is None or (not isinstance(found, TrueOnRead) and found[0] is arrays[0]):
                continue  # it is gone, or shows them already
            if not isinstance(found, TrueOnRead):
                found = TrueOnRead(found, self.scaler.begun())
                param._grad = found
            found.show(arrays)
        if self._taken is not None:
            self._taken = [
                [each._replace(grad=grads[each.index][k]) if each.index in grads else each for each in group]
                for k, group in enumerate(self._taken)
            ]

    def accumulates(self, index: int) -> bool:
        """Return whether a parameter has ``grad_req='add'``."""
        return bool(self._params[index].grad_req == "add")

    def prepare_reduce(self) -> None:
        """Zero the gradients of contexts that no backward reached, where another's is fresh, and let them be fresh.

        They are old sums, of another loss scale, and would be added to the fresh ones.
        """
        if not self.kvstore:
            return
        if not self._is_scaled:
            self.collect()
        written = self._ids
        for param in self._trained():
            weights = checked_arrays(param)
            missing = [k for k, data in enumerate(weights) if id(data) not in written]
            for k in missing if len(missing) < len(weights) else ():
                grad = plain(_gradients(param))[k].as_nd_ndarray()
                mx.nd.zeros_like(grad, out=grad)
                written.add(id(weights[k]))
                self._cleared.append(weights[k])

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers."""
        self._trainer._allreduce_grads()

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Give all contexts the weights of the first, whose masters are the only ones from now on."""
        for index in indices if len(self.updaters) < len(self._trainer._contexts) else ():
            copy_to_other_contexts(self._params[index].list_data(), self._params[index])

    def release(self) -> None:
        """Give the parameters their own lists of gradients back, and forget the window's."""
        window = self.scaler.window
        for param in self._params:
            arrays = _gradients(param)
            if not isinstance(arrays, TrueOnRead):
                continue
            if arrays.window is window or any(owner is self for owner in arrays.window.written.owners):
                vars(param)["_grad"] = arrays.plain
        if window is not None:
            window.written.owners.discard(self)
            window.written.ids -= {id(data) for param in self._params for data in _arrays(param) or ()}
        self._cleared.clear()
        self._taken, self._thread = None, threading.get_ident()
        loss_heads.forget(self._params)
        HEAD_SCALE.forget(self._trainer)

    def running_stats(self) -> Named:
        """Return BatchNorm's statistics and their like: non-differentiable parameters, on every context."""
        stats = [param for param in self._params if not _is_differentiable(param)]
        return [(param.name, data) for param in stats for data in _arrays(param) or ()]


def _adds_to_numbers(param: mx.gluon.Parameter) -> bool:
    """Return whether a backward adds to a gradient that is not zero; a host read."""
    return param.grad_req == "add" and any(grad.asnumpy().any() for grad in plain(_gradients(param)))


def _not_scaled(call: str, param: mx.gluon.Parameter, data: mx.nd.NDArray) -> TrainerError:
    return TrainerError(
        f"{call}: the gradient of parameter '{param.name}' on {data.ctx} was written by a backward outside of "
        "scale_loss, and is not scaled, as others of this step are. Scale all losses: `with "
        "trainer.scale_loss([loss1, loss2]) as scaled: autograd.backward(scaled)`. Now call discard_grads to start "
        "again."
    )


# ------------------------------------------------------------------ the block of scale_loss


class LossBlock(Block):
    """The context manager that `Trainer.scale_loss` returns, which is no loss: it yields the scaled one."""

    def __init__(self, loss: Any, trainers: Sequence[Any], loss_id: int) -> None:
        self._loss, self._loss_id = loss, loss_id
        self._trainers = list(dict.fromkeys(trainers))
        self._scalers: List[Scaler] = [trainer._scaler for trainer in self._trainers]
        self._gradients: List[Gradients] = [trainer._gradients for trainer in self._trainers]
        self._losses: List[ScaledLoss] = []
        self._arrays: List[mx.nd.NDArray] = []
        self._before: Set[int] = set()  # the ids of the weights that earlier blocks reached
        self._told: Set[int] = set()  # and of those that backward passes of this one did
        self._unscaled: Set[int] = set()  # and of those that other backward passes did
        self._begins: List[Scaler] = []  # whose window begins here
        self._set_aside: List[mx.nd.NDArray] = []  # weights of other trainers, with gradients from before
        self._running = 0  # backward passes
        self._heads: List[Any] = []  # loss heads of other trainers' nets, with their scales before
        self._flag: Optional[mx.nd.NDArray] = None  # whether the losses are finite

    def __enter__(self) -> Any:
        with LOCK:
            for scaler in self._scalers:
                scaler.require_can_scale("scale_loss")
            for gradients in self._gradients:
                gradients.require_own("scale_loss")
            scale = self._chosen_scale()
            working = [scaler for scaler in self._scalers if scaler.active or scale != 1.0]
            for scaler, gradients in zip(self._scalers, self._gradients):
                if scaler.window is not None and scaler.window.is_open:
                    continue  # another thread is running a backward
                fresh = None
                if scaler.window is None or not scaler.window.reached:
                    self._begins.append(scaler)
                    if working:
                        gradients.begin(waits=scaler.window is not None and not scaler.active)
                elif scaler.checks:
                    fresh = next(gradients.fresh(), None)
                if fresh is not None:
                    raise _not_scaled("scale_loss", *fresh)
            scaled = self._multiply(scale, working)
            for gradients, window in zip(self._gradients, [scaler.window for scaler in self._scalers]):
                if window is not None:
                    window.written.scale_again()
                    if window.reached and window.scale != scale:
                        gradients.bring_to(scale)
            self._flag = all_finite([each.wide for each in self._losses]) if self._losses else None
            windows = [scaler.begun(scale) for scaler in self._scalers]
            if len(windows) > 1:
                join(windows)
            self._before = set(windows[0].written.ids)
            try:
                self._set_aside = self._gradients[0].fresh_of_others(self._gradients) if working else []
                for data in self._set_aside:
                    data._fresh_grad = False
                HEAD_SCALE.write(scale, self._trainers, self._heads)
                for scaler, gradients in zip(self._scalers, self._gradients):
                    if scaler.active:
                        gradients.step.running_stats.keep(gradients.running_stats())
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
        begins = [scaler in self._begins for scaler in self._scalers]
        with LOCK:
            windows = self.windows
            try:
                if error is None:
                    self._finish(windows)
                else:
                    explain_unrecorded(self._losses, error)
            except BaseException:
                self._leave(windows)
                raise
            if error is None:
                self._close(windows, has_raised=False)
            else:
                self._leave(windows)
        for scaler, first in zip(self._scalers, begins) if error is None else ():
            for observer in list(scaler.observers.values()):
                observer.on_losses(self._arrays, first)

    def _leave(self, windows: Sequence[Window]) -> None:
        """Leave a block that raises: MXNet's flags tell again of all that it wrote, so that no step uses it."""
        noted = windows[0].written.ids - self._before if self.is_alone else set()
        for gradients in self._gradients:
            gradients.unnote(self._told | noted)
        self._close(windows, has_raised=True)

    def _close(self, windows: Sequence[Window], has_raised: bool) -> None:
        """Close the block, also one that was not opened; a window that no backward has reached ends.

        Gradients of trainers that were not named are stale where this block wrote them, times its scale.
        """
        self.windows = ()
        BLOCKS.discard(self)
        LOCK.notify_all()
        if self._heads:
            HEAD_SCALE.give_back(self._heads)
        for scaler, gradients, window in zip(self._scalers, self._gradients, windows):
            is_unused = not window.reached and window.fault is None and not window.is_open
            if is_unused and (self._losses or has_raised):
                gradients.release()
                scaler.end_step()
        written = self._gradients[0].fresh_of_others(self._gradients) if self._losses else []
        for data in written:
            data._fresh_grad = False
        ids = {id(data) for data in written}
        for data in self._set_aside:
            if id(data) not in ids:
                data._fresh_grad = True

    def _chosen_scale(self) -> float:
        """Choose one of several losses, and return the scale of all trainers."""
        begun = {scaler.window.scale for scaler in self._scalers if scaler.window is not None and scaler.window.reached}
        several = [scaler for scaler in self._scalers if self._loss_id != 0 or scaler.num_losses > 1]
        if several:
            for scaler in several:
                scaler.select(self._loss_id)
            return min(scaler.loss_scale.value for scaler in self._scalers)
        if len(begun) > 1:
            raise TrainerError(
                f"scale_loss was given trainers whose gradients wait at different scales {sorted(begun)}; "
                "call step on them first."
            )
        values = [scaler.loss_scale.value for scaler in self._scalers if scaler.active]
        return begun.pop() if begun else min(values, default=1.0)

    def _multiply(self, scale: float, working: Sequence[Scaler]) -> Any:
        """Return the loss times the scale; as it is where no trainer has one."""
        for scaler in self._begins:
            scaler.factors.release()  # those of the last step, whose graphs are freed

        def multiply(path: str, array: mx.nd.NDArray) -> mx.nd.NDArray:
            self._arrays.append(array)
            if not working:
                return array
            self._losses.append(working[0].factors.multiply(path, array, scale))
            return self._losses[-1].tell(self)

        scaled = mapped(self._loss, multiply)
        if working and not working[0].has_checked_heads:
            refuse_recorded(self._losses)
            working[0].has_checked_heads = True
        return scaled

    @contextlib.contextmanager
    def backward_of(self, loss: ScaledLoss) -> Iterator[None]:
        """Run a backward of a scaled loss within this context, and tell its gradients from those of others."""
        if not self.windows:
            yield
            return
        with LOCK:
            if self._running or (loss.reached and not loss.is_told):  # by autograd.backward before
                self.is_alone = False
            self._running += 1
            before = self._collect()
        try:
            yield
        finally:
            self._running -= 1
        with LOCK:
            after = self._collect()
            loss.is_told = True
            self._told |= after
            if before:
                self._unscaled |= before & self._adding() | before - after

    def _adding(self) -> Set[int]:
        return set().union(*(gradients.adding() for gradients in self._gradients))

    def _collect(self) -> Set[int]:
        return set().union(*(gradients.collect() for gradients in self._gradients))

    def _finish(self, windows: Sequence[Window]) -> None:
        """Note the gradients that were written, or raise if they are not those of the scaled losses."""
        if not self._losses:
            return
        try:
            reached = require_backward(self._losses, self._written)
            are_told = self.is_alone and all(each.is_told or each.factor is None for each in self._losses)
            if are_told:
                self._unscaled |= {id(data) for gradients in self._gradients for _, data in gradients.fresh()}
                if self._unscaled:
                    raise UnscaledLossError(
                        f"scale_loss: within the block a backward of another loss wrote the gradient of parameter "
                        f"'{self._name(self._unscaled)}', which is not scaled. Scale all losses: `with "
                        f"trainer.scale_loss([loss1, loss2]) as scaled: autograd.backward(scaled)`."
                    )
        except UnscaledLossError:
            for window in windows:
                window.fault = UnscaledLossError, (
                    "a scale_loss block of this step has raised, because backward was called on a loss that was not "
                    "scaled; call discard_grads to start again (with grad_req='add' zero_grad too)."
                )
            raise
        written = self._told if are_told else self._collect() | self._told
        for window in windows:
            window.flag("losses", self._flag)
            window.reached = window.reached or reached
        overwritten = written & self._before
        if overwritten and overwritten - self._adding():
            overwritten -= self._adding()
            text = (
                f"a backward overwrote the gradient of parameter '{self._name(overwritten)}' from an earlier "
                "scale_loss block of the same step. Was step forgotten between them? If that gradient is not wanted, "
                "call discard_grads before the later block; to add gradients up set grad_req='add', and zero_grad "
                "after each step; or scale all losses in one block. Now call discard_grads to start again."
            )
            for window in windows:
                window.fault = TrainerError, text
            raise TrainerError(f"scale_loss: {text}")
        for scaler, gradients in zip(self._scalers, self._gradients):
            if self._loss_id != 0 or scaler.num_losses > 1:
                scaler.record_finite(gradients.written_grads())

    def _name(self, ids: Set[int]) -> str:
        return next(str(param.name) for each in self._gradients for param in each.named(ids))

    def _written(self) -> Optional[str]:
        """Return a parameter whose gradient was written within the block, or None.

        Of trainers that have gradients of an earlier block as well, those that are added up cannot be told.
        """
        fresh = (param for gradients in self._gradients for param, _ in gradients.fresh())
        return next((str(param.name) for param in fresh), None)
