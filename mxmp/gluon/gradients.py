"""The gradients of a trainer's parameters: which are fresh, and what ``param.grad()`` shows."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.casts import is_low_precision, round_into, to_float32
from ..arrays.finite import first_non_finite
from ..arrays.norms import scale_in_place
from ..errors import StaleGradientError, TrainerError

Update = Tuple[int, mx.nd.NDArray, mx.nd.NDArray]
"""What an updater needs for one parameter on one context: index, gradient, weight."""


class Gradients:
    """The gradients that backward wrote since the last step.

    A gradient is fresh while MXNet's flag on its weight says so. `unscale` takes the fresh ones
    and clears their flags, so that a backward that comes later is noticed.

    Args:
        params: The trainer's parameters; may grow later.
        contexts: Number of contexts that they are on.
    """

    def __init__(self, params: Sequence[mx.gluon.Parameter], contexts: int) -> None:
        self._params, self._contexts = params, contexts
        self._taken: Optional[List[List[Update]]] = None
        self._lost: Optional[str] = None  # a parameter whose gradient was overwritten
        self._cleared: List[mx.nd.NDArray] = []  # weights whose gradient was stale when it was reduced
        # Parameters whose ``_grad`` shows float32 copies: what it held, and the copies.
        self._shown: List[Tuple[mx.gluon.Parameter, List[mx.nd.NDArray], List[mx.nd.NDArray]]] = []

    def require(self, call: str, may_lack: bool = False, reached: bool = False) -> None:
        """Raise if there are no gradients to use now.

        Args:
            call: The method that would use them.
            may_lack: Whether it can do without.
            reached: Whether a backward came through a loss that was scaled for the parameters.

        Raises:
            StaleGradientError: If no backward has run since the last step.
            TrainerError: If one has run since `unscale`.
        """
        self._require_whole(call)
        fresh = next(self.fresh(), None)
        if self._taken is None:
            if fresh is None and not may_lack and reached:
                raise StaleGradientError(
                    f"{call}: backward was called on the scaled loss, but it depends on no parameter of this trainer; "
                    "give the trainer the parameters of the net that made the loss, and scale the loss for those "
                    "trainers alone that it trains."
                )
            if fresh is None and not may_lack:
                raise StaleGradientError(
                    f"{call}: no parameter has a gradient from after the last step; run backward first."
                )
        elif fresh is not None:
            raise TrainerError(
                f"{call}: backward wrote the gradient of parameter '{fresh[0].name}' after the gradients "
                "were unscaled. Run every backward before unscale; to start again call discard_grads."
            )

    def require_all(self, call: str) -> None:
        """Raise if the gradient of any parameter on any context is stale.

        Raises:
            StaleGradientError: It names the parameter.
        """
        cleared = {id(data) for data in self._cleared}
        taken = None
        if self._taken is not None:
            taken = {id(data) for group in self._taken for _, _, data in group}
        for param in self._trained():
            for data in _data(param):
                fresh = data._fresh_grad if taken is None else id(data) in taken
                if not fresh or id(data) in cleared:
                    raise StaleGradientError(
                        f"{call}: the gradient of parameter '{param.name}' on context {data.ctx} has not "
                        "been updated by backward since the last step. If only a part of the network is "
                        f"meant to be trained, call {call} with ignore_stale_grad=True."
                    )

    def require_used(self, call: str) -> None:
        """Raise in the middle of an accumulation: between a backward with ``grad_req='add'`` and its step.

        Raises:
            TrainerError: It names the parameter.
        """
        for param, _ in self.fresh():
            if param.grad_req == "add":
                raise TrainerError(
                    f"{call} came in the middle of an accumulation window: the gradient of parameter '{param.name}', "
                    "with grad_req='add', waits for its step and would not be saved; call step first, or zero_grad "
                    "and discard_grads."
                )

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Raise at the end if a backward inside overwrote a gradient that waits for its step.

        Raises:
            TrainerError: It names the parameter.
        """
        waiting = [(param, data) for param, data in self.fresh() if param.grad_req == "write"]
        for _, data in waiting:
            data._fresh_grad = False
        try:
            yield
        finally:
            self._lost = self._lost or next((param.name for param, data in waiting if data._fresh_grad), None)
            for _, data in waiting:
                data._fresh_grad = True
        self._require_whole("scale_loss")

    def _require_whole(self, call: str) -> None:
        if self._lost is not None:
            raise TrainerError(
                f"{call}: a backward overwrote the gradient of parameter '{self._lost}' from an earlier scale_loss "
                "block of the same step. If that gradient is not wanted, call discard_grads before the later block; to "
                "add gradients up set grad_req='add', and zero_grad after each step; or scale all losses in one block. "
                "Now call discard_grads to start again."
            )

    def take(self) -> List[List[Update]]:
        """Return the fresh gradients per context; they are stale from now on."""
        if self._taken is None:
            self._taken = []
            for i, param in enumerate(self._params):
                if param.grad_req == "null":
                    continue
                pairs = list(zip(param.list_data(), param.list_grad()))
                if len(pairs) != self._contexts:
                    raise TrainerError(
                        f"parameter '{param.name}' is on {param.list_ctx()}, but the trainer was made for "
                        f"{self._contexts} of them; make the trainer anew after reset_ctx."
                    )
                while len(self._taken) < len(pairs):
                    self._taken.append([])
                for group, (data, grad) in zip(self._taken, pairs):
                    if data._fresh_grad:
                        group.append((i, grad, data))
                        data._fresh_grad = False
        return self._taken

    def unscale(self, factor: float) -> None:
        """Multiply the taken gradients by ``factor``, in float32.

        Float32 gradients are changed in place. Low precision ones would be flushed to zero, so
        that they are widened first.
        """
        self.widen()
        for group in self.arrays():
            scale_in_place(group, factor)

    def widen(self) -> None:
        """Make ``param.grad()`` show float32 copies of taken low precision gradients up to `release`.

        Autograd goes on writing to the arrays that it knows.
        """
        copied = {}
        for i in dict.fromkeys(i for group in self.take() for i, _, _ in group):
            param = self._params[i]
            grads = param.list_grad()
            if is_low_precision(grads[0]):
                copies = [_copy_to_float32(grad) for grad in grads]
                self._shown.append((param, grads, copies))
                copied.update(zip(map(id, grads), copies))
                param._grad = copies
        self._taken = [[(i, copied.get(id(g), g), data) for i, g, data in group] for group in self.take()]

    def clear_stale(self) -> None:
        """Make the gradients of contexts that no backward reached 0, and fresh, where the others' are.

        They are old sums, of another loss scale, and would be added to the fresh ones.
        """
        for param in self._trained():
            weights = _data(param)
            if any(data._fresh_grad for data in weights):
                for data, grad in zip(weights, param.list_grad()):
                    if not data._fresh_grad:
                        grad = grad.as_nd_ndarray()
                        mx.nd.zeros_like(grad, out=grad)
                        data._fresh_grad = True
                        self._cleared.append(data)

    def discard(self) -> None:
        """Let all gradients be stale, those that backward wrote after `unscale` too."""
        for _, data in self.fresh():
            data._fresh_grad = False
        self._lost = None
        self.release()

    def arrays(self) -> List[List[mx.nd.NDArray]]:
        """Return the taken gradients per context."""
        return [[grad for _, grad, _ in group] for group in self.take()]

    def first_bad(self) -> Optional[str]:
        """Return the parameter whose taken gradient is the first to be non-finite; slow."""
        named = ((self._params[i].name, grad) for group in self.take() for i, grad, _ in group)
        return first_non_finite(named)

    def release(self) -> None:
        """Forget the taken gradients and show the original arrays again."""
        for param, original, copies in self._shown:
            if param._grad is copies:
                param._grad = original
            if param.grad_req == "add":  # what was shown stays, zeros above all, as in float32
                for copy, grad in zip(copies, original):
                    round_into(copy.as_nd_ndarray(), grad.as_nd_ndarray())
        self._shown.clear()
        self._cleared.clear()
        self._taken = None

    def _trained(self) -> Iterator[mx.gluon.Parameter]:
        return (param for param in self._params if param.grad_req != "null")

    def fresh(self) -> Iterator[Tuple[mx.gluon.Parameter, mx.nd.NDArray]]:
        """Yield the parameters, with their arrays, whose gradient backward has written and nothing has used."""
        return ((param, data) for param in self._trained() for data in _data(param) if data._fresh_grad)


def _data(param: mx.gluon.Parameter) -> List[mx.nd.NDArray]:
    """Return the arrays of a parameter; unlike ``list_data`` for row_sparse ones too."""
    return param._check_and_get(param._data, list)


def _copy_to_float32(grad: mx.nd.NDArray) -> mx.nd.NDArray:
    with mx.autograd.pause():
        wide = to_float32(grad.as_nd_ndarray())
    return wide.as_np_ndarray() if isinstance(grad, mx.np.ndarray) else wide
