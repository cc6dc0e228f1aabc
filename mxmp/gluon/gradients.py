"""The parameters of a gluon trainer as weights of a training step: which gradients are fresh, and which are shown."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import mxnet as mx

from ..errors import StaleGradientError, TrainerError
from ..mxnet_private import is_fresh, parameters, trainers
from ..train import loss_heads
from ..train.calls import RECORDER
from ..train.kernels import Update
from ..train.masters import Masters, copy_to_other_contexts
from ..train.running_stats import Named
from ..train.step import Weights

# Asked of every weight at every step.
_fresh = is_fresh.read
_arrays, _gradients = parameters.arrays.read, parameters.gradients.read
_is_differentiable = parameters.is_differentiable.read


class _Seen(List[mx.nd.NDArray]):
    """The gradients of a parameter, ``param.list_grad()``, until the step: whoever reads one sees true gradients.

    Reading an element unscales all gradients of the trainers whose loss was scaled together. A copy by `copy.deepcopy`
    or pickle, as of a net, is a plain list, of gradients that are scaled.
    """

    def __init__(self, param: mx.gluon.Parameter, owner: Gradients, look: Callable[[], None]) -> None:
        self.arrays = _plain(_gradients(param))
        super().__init__(self.arrays)
        self.owner = weakref.ref(owner)  # a trainer that is dropped before its step leaves nothing behind
        self._param, self._look = param, look

    def copy(self) -> List[mx.nd.NDArray]:
        self._look()
        return list(_plain(_gradients(self._param)))

    def __getitem__(self, key: Any) -> Any:
        return self.copy()[key]

    def __iter__(self) -> Iterator[mx.nd.NDArray]:
        return iter(self.copy())

    def __reversed__(self) -> Any:
        return reversed(self.copy())

    def __add__(self, other: Any) -> Any:
        return self.copy() + other

    def __radd__(self, other: Any) -> Any:
        return other + self.copy()

    def __mul__(self, count: Any) -> Any:
        return self.copy() * count

    __rmul__ = __mul__
    __copy__ = copy

    def pop(self, *index: Any) -> Any:
        return self.copy().pop(*index)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (self.arrays,)


def _plain(arrays: Any) -> Any:
    return arrays.arrays if isinstance(arrays, _Seen) else arrays


class Gradients(Weights):
    """The gradients that backward wrote since a trainer's last step.

    A gradient is fresh while MXNet's flag on its weight says so. `groups` takes the fresh ones and
    clears their flags, so that a backward that comes later is noticed.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._params: Sequence[mx.gluon.Parameter] = trainer.mx_params  # may grow later
        self._masters = [Masters(each.optimizer, trainer.multi_precision) for each in trainer.mx_updaters]
        self._taken: Optional[List[List[Update]]] = None
        self._is_seen = False  # whether parameters have lists of gradients that tell who reads one
        self._scaled: Set[int] = set()  # the ids of the weights whose gradients were fresh at the end of a block
        self.joined: Iterable[Any] = ()  # the trainers whose gradients of this step are unscaled together
        self._overwritten: Optional[str] = None  # a parameter whose gradient was
        self.has_averages = False  # whether the parameters have averages in the place of their values
        self._cleared: List[mx.nd.NDArray] = []  # weights whose gradient was stale when it was reduced

    # ------------------------------------------------------------------ preconditions

    def require(self, call: str, allow_missing: bool = False, reached: bool = False) -> None:
        """Raise if ``call`` has no gradients to use, unless it can do without, or if one was written since `unscale`.

        ``reached`` says whether a backward came through a loss that was scaled for the parameters.
        """
        if self.has_averages:
            raise TrainerError(
                f"{call} was called within `averaged.swapped_in()`, after which the net has its own values again, so "
                "that the step would be lost; end that context first."
            )
        self._require_not_overwritten(call)
        fresh = next(self.fresh(), None)
        if self._taken is not None:
            if fresh is not None:
                raise TrainerError(
                    f"{call}: backward wrote the gradient of parameter '{fresh[0].name}' after the gradients "
                    "were unscaled. Run every backward before unscale; to start again call discard_grads."
                )
        elif fresh is None and not allow_missing:
            raise StaleGradientError(
                f"{call}: backward was called on the scaled loss, but it depends on no parameter of this trainer; "
                "give the trainer the parameters of the net that made the loss, and scale the loss for those "
                "trainers alone that it trains."
                if reached
                else f"{call}: no parameter has a gradient from after the last step; run backward first, or leave "
                f"{call} out. Only a trainer with loss_scale=None steps without one, with ignore_stale_grad=True."
            )

    def require_all(self, call: str) -> None:
        """Raise if the gradient of any parameter on any context is stale."""
        cleared = {id(data) for data in self._cleared}
        taken = None if self._taken is None else {id(update.weight) for group in self._taken for update in group}
        for param in self._params:
            for data in _arrays(param) or parameters.checked_arrays(param) if param.grad_req != "null" else ():
                fresh = _fresh(data) if taken is None else id(data) in taken
                if not fresh or id(data) in cleared:
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

    def begin(self) -> None:
        """Let gradients that were written before the first block of a step be stale, which are not scaled.

        Raise if the block would add to one; a host read for it, for ``zero_grad`` leaves it fresh.
        """
        for param, data in self.fresh():
            if param.grad_req == "add" and any(grad.asnumpy().any() for grad in param.list_grad()):
                raise TrainerError(
                    "scale_loss: a backward outside of scale_loss, or in a block that raised, has written the gradient "
                    f"of parameter '{param.name}', to which this block would add (grad_req='add'). Scale every loss of "
                    "a step. Now call zero_grad and discard_grads to start again."
                )
            is_fresh.set(data, False)

    @contextlib.contextmanager
    def forbid_overwrite(self) -> Iterator[None]:
        """Raise at the end if a backward inside overwrote a gradient that waits for its step."""
        waiting = [(param, data) for param, data in self.fresh() if param.grad_req == "write"]
        for _, data in waiting:
            is_fresh.set(data, False)
        try:
            yield
        finally:
            found = next((param.name for param, data in waiting if _fresh(data)), None)
            self._overwritten = self._overwritten or found
            for _, data in waiting:
                is_fresh.set(data, True)
        self._require_not_overwritten("scale_loss")

    def _require_not_overwritten(self, call: str) -> None:
        if self._overwritten is not None:
            raise TrainerError(
                f"{call}: a backward overwrote the gradient of parameter '{self._overwritten}' from an earlier "
                "scale_loss block of the same step. Was step forgotten between them? If that gradient is not wanted, "
                "call discard_grads before the later block; to add gradients up set grad_req='add', and zero_grad "
                "after each step; or scale all losses in one block. Now call discard_grads to start again."
            )

    # ------------------------------------------------------------------ who looks sees true gradients

    def let_see(self, look: Callable[[], None], joined: Iterable[Any]) -> None:
        """Have a function called when somebody reads a gradient, up to `hide`; it unscales those of ``joined``."""
        self._is_seen, self.joined = True, joined
        for param in self._trained():
            if _gradients(param) is not None:
                parameters.gradients.set(param, _Seen(param, self, look))
                self._scaled.update(id(data) for data in _arrays(param) if _fresh(data))

    def require_own(self) -> None:
        """Raise if gradients of a parameter wait for the step of another trainer, which is alive."""
        for param in self._trained():
            arrays = _gradients(param)
            if not isinstance(arrays, _Seen):
                continue
            if arrays.owner() not in (None, self):
                gc.collect()  # trainers are part of cycles, so that dropped ones may still be there
            if arrays.owner() not in (None, self):
                raise TrainerError(
                    f"scale_loss: the gradient of parameter '{param.name}' waits for the step of another trainer. Let "
                    "that step first, or give its gradients up by its discard_grads(); a loss that both step on is "
                    "scaled for both at once: first.scale_loss(loss, second)."
                )
            parameters.gradients.set(param, arrays.arrays)

    def hide(self) -> None:
        """Let parameters have plain lists of gradients again."""
        for param in self._params if self._is_seen else ():
            arrays = _gradients(param)
            if isinstance(arrays, _Seen):
                vars(param)[parameters.gradients.name] = arrays.arrays
        self._is_seen = False

    def waiting(self, others: Optional[Set[int]] = None) -> Dict[int, List[mx.nd.NDArray]]:
        """Return the gradients of the parameters that backward has written, by index, on all contexts.

        Parameters whose id is in ``others`` are left out, and the rest is added to it: trainers may share parameters.
        """
        others = set() if others is None else others
        fresh = {id(param) for param, _ in self.fresh()} - others
        others |= fresh
        return {index: self.grads(index) for index, param in enumerate(self._params) if id(param) in fresh}

    # ------------------------------------------------------------------ what is fresh

    def fresh(self) -> Iterator[Tuple[mx.gluon.Parameter, mx.nd.NDArray]]:
        """Yield the parameters, with their arrays, whose gradient backward has written and nothing has used."""
        for param in self._params:
            if param.grad_req != "null":
                for data in _arrays(param) or parameters.checked_arrays(param):
                    if _fresh(data):
                        yield param, data

    def fresh_grads(self) -> List[mx.nd.NDArray]:
        """Return the gradients that are fresh."""
        found = []
        for param in self._trained():
            pairs = zip(parameters.checked_arrays(param), _plain(_gradients(param)))
            found += [grad for data, grad in pairs if _fresh(data)]
        return found

    def discard(self) -> None:
        """Let all gradients be stale, those that backward wrote after `unscale` too."""
        for _, data in self.fresh():
            is_fresh.set(data, False)
        self._overwritten = None
        self.release()

    def _trained(self) -> Iterator[mx.gluon.Parameter]:
        return (param for param in self._params if param.grad_req != "null")

    # ------------------------------------------------------------------ the weights of a step

    @property
    def optimizer(self) -> Any:
        """The trainer's optimizer."""
        return self._trainer.mx_optimizer

    @property
    def updaters(self) -> Any:  # type: ignore[override]
        """The trainer's updaters, as many as work."""
        return self._trainer.mx_updaters[:1] if self.kvstore else self._trainer.mx_updaters

    @property
    def masters(self) -> Any:  # type: ignore[override]
        """The masters of each updater."""
        return self._masters[: len(self.updaters)]

    @property
    def kvstore(self) -> Any:
        """The trainer's kvstore."""
        return self._trainer.mx_kvstore

    def groups(self) -> List[List[Update]]:
        """Return the fresh gradients per context; they are stale from now on."""
        if self._taken is None:
            taken: List[List[Update]] = [[] for _ in self._trainer.mx_contexts or ()]
            for index, param in enumerate(self._params):
                if param.grad_req == "null":
                    continue
                grads = param.list_grad()
                pairs = list(zip(param.list_data(), grads.arrays if isinstance(grads, _Seen) else grads))
                if len(pairs) != len(taken):
                    raise TrainerError(
                        f"parameter '{param.name}' is on {param.list_ctx()}, but the trainer was made for "
                        f"{len(taken)} of them; make the trainer anew after reset_ctx."
                    )
                for group, (data, grad) in zip(taken, pairs):
                    if _fresh(data):
                        group.append(Update(index, grad, data))
                        if self._scaled and id(data) not in self._scaled:
                            raise _not_scaled(param, data)
            for group in taken:
                for update in group:
                    is_fresh.set(update.weight, False)
            self._taken = taken
        return self._taken

    def name(self, index: int) -> str:
        """Return the name of a parameter."""
        return str(self._params[index].name)

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return ``param.list_grad()``, whose reader is nobody but us."""
        arrays: List[mx.nd.NDArray] = _plain(self._params[index].list_grad())
        return arrays

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Let ``param.grad()`` show other arrays."""
        for index, arrays in grads.items():
            parameters.gradients.set(self._params[index], arrays)
        if self._taken is not None:
            self._taken = [
                [each._replace(grad=grads[each.index][k]) if each.index in grads else each for each in group]
                for k, group in enumerate(self._taken)
            ]

    def shows(self, index: int, grads: List[mx.nd.NDArray]) -> bool:
        """Return whether nothing else was put in the place of a parameter's gradients since."""
        return parameters.gradients(self._params[index]) is grads

    def accumulates(self, index: int) -> bool:
        """Return whether a parameter has ``grad_req='add'``."""
        return bool(self._params[index].grad_req == "add")

    def prepare_reduce(self) -> None:
        """Zero the gradients of contexts that no backward reached, where another's is fresh, and let them be fresh.

        They are old sums, of another loss scale, and would be added to the fresh ones.
        """
        for param in self._trained() if self.kvstore else ():
            weights = parameters.checked_arrays(param)
            if any(_fresh(data) for data in weights):
                for data, grad in zip(weights, _plain(param.list_grad())):
                    if not _fresh(data):
                        grad = grad.as_nd_ndarray()
                        mx.nd.zeros_like(grad, out=grad)
                        is_fresh.set(data, True)
                        self._cleared.append(data)
                        if self._scaled:
                            self._scaled.add(id(data))

    def reduce(self) -> None:
        """Sum the gradients over contexts and workers."""
        trainers.allreduce_grads(self._trainer)

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Give all contexts the weights of the first, whose masters are the only ones from now on."""
        for index in indices if len(self.updaters) < len(self._trainer.mx_contexts) else ():
            copy_to_other_contexts(self._params[index].list_data(), self._params[index])

    def release(self) -> None:
        """Forget the taken gradients."""
        self.hide()
        self.joined = ()
        self._scaled.clear()
        self._cleared.clear()
        self._taken = None
        RECORDER.forget(self._trainer)
        loss_heads.forget(self._params)

    def running_stats(self) -> Named:
        """Return BatchNorm's statistics and their like: non-differentiable parameters, on every context."""
        stats = [param for param in self._params if not _is_differentiable(param)]
        return [(param.name, data) for param in stats for data in _arrays(param) or ()]


def _not_scaled(param: mx.gluon.Parameter, data: mx.nd.NDArray) -> TrainerError:
    return TrainerError(
        f"the gradient of parameter '{param.name}' on {data.ctx} was written by a backward outside of scale_loss, and "
        "is not scaled, as others of this step are. Scale all losses: `with trainer.scale_loss([loss1, loss2]) as "
        "scaled: autograd.backward(scaled)`. Now call discard_grads to start again."
    )
