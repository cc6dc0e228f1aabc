"""Pairs of a gradient and a weight, as a user gives them: checked, summed over contexts, unscaled."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import mxnet as mx

from ..arrays import address, is_low_precision, to_float32
from ..dtypes import FLOAT32, PRECISIONS, canonical
from ..errors import TrainerError
from ..mxnet_private import multiply, parameters
from ..train.masters import Update, copy_to_other_contexts
from ..train.states import Described
from ..train.step import Weights

_FLOATS = (*PRECISIONS, "float64")

Weight = Union[mx.nd.NDArray, mx.gluon.Parameter]


def leaves(value: Any) -> Iterator[Any]:
    """Yield what nested lists and tuples hold."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested lists with a function applied to what they hold; None stays."""
    if isinstance(value, (list, tuple)):
        return [mapped(item, function) for item in value]
    return None if value is None else function(value)


def unscaled(grad: mx.nd.NDArray, factor: float) -> mx.nd.NDArray:
    """Return a gradient times a factor, in float32 if it has low precision; dense or row_sparse."""
    with mx.autograd.pause():
        result = multiply(to_float32(grad.as_nd_ndarray()), scalar=factor)
    return result.as_np_ndarray() if isinstance(grad, mx.np.ndarray) else result


def name_of(weight: Weight, index: int) -> str:
    """Return what errors call a weight."""
    return f"parameter '{weight.name}'" if isinstance(weight, mx.gluon.Parameter) else f"weight {index}"


def arrays_of(weight: Weight, index: int) -> List[mx.nd.NDArray]:
    """Return the value of a weight on each context, or raise if it is no weight or not initialized."""
    if isinstance(weight, mx.gluon.Parameter):
        if not parameters.is_initialized(weight):
            raise TrainerError(f"{name_of(weight, index)} is not initialized yet; run a forward pass first.")
        return list(weight.list_data())
    if not isinstance(weight, mx.nd.NDArray):
        raise TrainerError(f"weight {index} is a {type(weight).__name__}; expected an NDArray or a gluon Parameter.")
    return [weight]


def described(weight: Weight, index: int) -> Any:
    """Return a Parameter itself, and for an array what stands for one in saved states."""
    if isinstance(weight, mx.gluon.Parameter):
        return weight
    return Described(name_of(weight, index), weight.shape, weight.dtype)


def contexts_of(weight: Weight) -> List[mx.Context]:
    """Return where a weight lies."""
    return [array.ctx for array in arrays_of(weight, 0)]


def check_weights(known: Sequence[Weight], weights: Sequence[Weight]) -> List[Weight]:
    """Return known weights and after them those that are new.

    Raises TrainerError if one is no weight, comes twice or lies on other contexts than the first.
    """
    ids = {id(weight) for weight in known}
    if len({id(weight) for weight in weights}) < len(weights):
        raise TrainerError("a weight comes twice; give each once, with its gradients added up.")
    first = None
    for index, weight in enumerate([*known, *weights]):
        arrays_of(weight, index)
        first = first or contexts_of(weight)
        if contexts_of(weight) != first:
            raise TrainerError(
                f"{name_of(weight, index)} is on {contexts_of(weight)}, the weights before it are on {first}; put all "
                "on the same contexts."
            )
    return [*known, *(weight for weight in weights if id(weight) not in ids)]


def read_grads(grads: Any) -> List[Any]:
    """Return what was given to be unscaled as a list: arrays, lists of them, and None.

    Raises TrainerError that names the first item that is no gradient, or if there is none.
    """
    if isinstance(grads, mx.nd.NDArray):
        grads = [grads]
    if not isinstance(grads, Iterable):
        raise TrainerError(f"get_unscaled_gradients: expected a list of NDArrays, found a {type(grads).__name__}.")
    found = list(grads)
    arrays = [(number, leaf) for number, item in enumerate(found) for leaf in leaves(item) if leaf is not None]
    if not arrays:
        raise TrainerError("get_unscaled_gradients: there is no gradient; give those of all weights.")
    for number, array in arrays:
        dtype = canonical(array.dtype) if isinstance(array, mx.nd.NDArray) else None
        if dtype not in _FLOATS:
            what = f"a {type(array).__name__}" if dtype is None else f"an array of {dtype}"
            raise TrainerError(f"get_unscaled_gradients: item {number} holds {what}; expected floating point NDArrays.")
    return found


def check_unscaled(pairs: Sequence[Tuple[Any, Any]], given: Sequence[mx.nd.NDArray]) -> None:
    """Raise if a gradient is scaled still. Waits until the gradients are there; no host read.

    It is where it lies in the memory of what was ``given`` to be unscaled, or of its weight's own gradient, which
    hold what backward wrote.
    """
    seen = _addresses(given)
    for number, (grad, weight) in enumerate(pairs):
        if _addresses(leaves(grad)) & (seen | _addresses(_own_gradients(weight))):
            raise TrainerError(
                f"apply_gradients: the gradient of {name_of(weight, number)} is an array that backward wrote, scaled; "
                "give all gradients to get_unscaled_gradients, and here what it returns."
            )


def _own_gradients(weight: Weight) -> Sequence[Optional[mx.nd.NDArray]]:
    """Return where backward writes the gradients of a weight."""
    return (parameters.gradients(weight) or ()) if isinstance(weight, mx.gluon.Parameter) else (weight.grad,)


def _addresses(arrays: Iterable[Optional[mx.nd.NDArray]]) -> Set[int]:
    """Return where arrays begin: ``w.grad`` is another object each time, but the same memory."""
    found = {address(array) for array in arrays if array is not None}
    return found - {0}  # a row_sparse array without rows has no memory


def read_pairs(grads_and_vars: Iterable[Any]) -> List[Tuple[Any, Any]]:
    """Return pairs as a list, or raise if they are none."""
    pairs = list(grads_and_vars)
    for number, pair in enumerate(pairs):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise TrainerError(
                f"apply_gradients: item {number} is a {type(pair).__name__}; expected pairs (gradient, weight), as "
                "zip(grads, weights) gives."
            )
    return pairs


def make_updates(pairs: Sequence[Tuple[Any, Any]], weights: Sequence[Weight]) -> List[Update]:
    """Return what a step does; pairs without a gradient are left out.

    Raises TrainerError if a gradient does not fit its weight, or a weight is none of ``weights``.
    """
    indices = {id(weight): index for index, weight in enumerate(weights)}
    updates = []
    for number, (grad, weight) in enumerate(pairs):
        if id(weight) not in indices:
            raise TrainerError(
                f"apply_gradients: {name_of(weight, number)} is none of the {len(weights)} weights of this optimizer; "
                "give the same arrays in every step, or call build with the new ones."
            )
        if grad is not None:
            arrays = arrays_of(weight, number)
            grads = _fitting(grad, arrays, name_of(weight, number))
            updates.append(Update(indices[id(weight)], _summed(grads), arrays[0].as_nd_ndarray()))
    if len({update.index for update in updates}) < len(updates):
        raise TrainerError("apply_gradients: a weight comes twice; give each once, with its gradients added up.")
    if not updates:
        raise TrainerError("apply_gradients: no weight has a gradient.")
    return updates


def _fitting(grad: Any, arrays: Sequence[mx.nd.NDArray], name: str) -> List[mx.nd.NDArray]:
    """Return the gradient on each context, as float32 where it has low precision."""
    grads = list(grad) if isinstance(grad, (list, tuple)) else [grad]
    if len(grads) != len(arrays):
        raise TrainerError(
            f"apply_gradients: {name} has {len(grads)} gradients; expected {len(arrays)}, one for each context."
        )
    for each, array in zip(grads, arrays):
        if not isinstance(each, mx.nd.NDArray):
            raise TrainerError(f"apply_gradients: the gradient of {name} is a {type(each).__name__}, no NDArray.")
        found, expected = (f"{_wide_dtype(a)} {a.shape} on {a.ctx}" for a in (each, array))
        if found != expected:
            raise TrainerError(f"apply_gradients: the gradient of {name} is {found}; expected {expected}.")
    return [to_float32(each.as_nd_ndarray()) for each in grads]


def _wide_dtype(array: mx.nd.NDArray) -> str:
    return FLOAT32 if is_low_precision(array) else canonical(array.dtype)


def _summed(grads: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    if len(grads) == 1:
        return grads[0]
    with mx.autograd.pause():
        return mx.nd.add_n(*(grad.as_in_context(grads[0].ctx) for grad in grads))


class GivenGradients(Weights):
    """Gradients that a user gave for some weights, true and summed over the contexts, as a step uses them.

    The updater updates the weights on their first context; ``weights`` are all, by their indices.
    """

    def __init__(self, updater: mx.optimizer.Updater, updates: Sequence[Update], weights: Sequence[Weight]) -> None:
        self.optimizer, self.updaters = updater.optimizer, [updater]
        self._updates, self._weights = list(updates), weights

    def groups(self) -> List[List[Update]]:
        """Return what to do, on the first context."""
        return [self._updates]

    def name(self, index: int) -> str:
        """Return what errors call a weight."""
        return name_of(self._weights[index], index)

    def grads(self, index: int) -> List[mx.nd.NDArray]:
        """Return the gradient of a weight."""
        return [update.grad for update in self._updates if update.index == index]

    def set_grads(self, grads: Mapping[int, List[mx.nd.NDArray]]) -> None:
        """Use other gradients."""
        self._updates = [u._replace(grad=grads[u.index][0]) if u.index in grads else u for u in self._updates]

    def copy_to_other_contexts(self, indices: Sequence[int]) -> None:
        """Give all contexts the weights of the first, whose masters are the only ones from now on."""
        for index in indices:
            weight = self._weights[index]
            copy_to_other_contexts(arrays_of(weight, index), weight if isinstance(weight, mx.gluon.Parameter) else None)
