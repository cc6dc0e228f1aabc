"""Float32 masters of low precision weights; `Masters` has the masters that one updater updates, next to its optimizer.

A master belongs to the trainer or module that updates it: each step computes the weight from it. ``set_data``, loads
and casts change the master with the weight (`set_master`). Any other write to a weight makes the two different, which
`masters_flag` and `exact_value` find.

Before there is an optimizer, a parameter keeps the float32 value that its weight was rounded from. An element that was
written since then takes the weight's value.
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..arrays import is_low_precision, merge_flags, on_gpu, round_into, to_float32, view, wait_until_readable
from ..dtypes import FLOAT32, canonical
from ..errors import TrainerError

_KEPT = "_mxmp_masters"
_OWNER = "_mxmp_optimizer"

# Size of weights from which the comparison with a master is waited for. It takes 30 bytes for each element, and without
# the wait MXNet's engine would run the comparisons of all weights at once.
_LARGE = 2**16


# ------------------------------------------------------------------ the masters of a parameter


def keep_masters(param: mx.gluon.Parameter, masters: Sequence[mx.nd.NDArray]) -> None:
    """Keep float32 values of a low precision parameter, an array for each context, without copying them."""
    setattr(param, _KEPT, {array.ctx: array for array in masters})


def forget_masters(param: mx.gluon.Parameter, but: Optional[mx.Context] = None) -> None:
    """Forget the float32 values of a parameter, except the one on a context ``but``."""
    kept = masters_of(param)
    for ctx in [ctx for ctx in kept if ctx != but]:
        del kept[ctx]
    if not kept:
        vars(param).pop(_OWNER, None)


def masters_of(param: mx.gluon.Parameter) -> Dict[mx.Context, mx.nd.NDArray]:
    """Return the float32 values of a parameter that are kept, by context."""
    return getattr(param, _KEPT, {})


def exact_value(weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return a weight of a parameter in float32: its master if it has one, else the weight itself.

    A context without a master gets a copy of another context's.

    Raises:
        TrainerError: If an optimizer has the master, and the weight was overwritten past it.
    """
    kept = masters_of(param) if is_low_precision(weight) else {}
    master = kept.get(weight.ctx)
    if master is None and kept:
        master = next(iter(kept.values())).copyto(weight.ctx)
    if master is None or master.shape != weight.shape:
        return to_float32(weight)
    if is_owned(param) and equals_rounded(master, weight).asscalar() != 1.0:
        gc.collect()  # Trainers are part of cycles, so dropped ones may still be there.
        if is_owned(param):
            raise weight_was_overwritten(f"parameter '{param.name}'")
    if not is_owned(param):
        sync_master_from_weight(master, weight)
    return master


def without_masters(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the attributes of a parameter without its masters, for a copy of the parameter."""
    return {name: value for name, value in state.items() if name not in (_KEPT, _OWNER)}


def is_owned(param: mx.gluon.Parameter) -> bool:
    """Return whether an optimizer that is alive has the masters of a parameter."""
    owner = getattr(param, _OWNER, None)
    return owner is not None and owner() is not None


def require_masters(params: Iterable[mx.gluon.Parameter]) -> None:
    """Raise if a weight was overwritten past its float32 master; one host read for each weight."""
    for param in params:
        for weight in param.list_data() if masters_of(param) else ():
            exact_value(weight, param)


def set_master(param: mx.gluon.Parameter, value: mx.nd.NDArray) -> None:
    """Write a float32 value into the masters of a parameter, which an optimizer may hold."""
    kept = masters_of(param)
    with autograd.pause():
        for master in kept.values():
            value.copyto(master)
        if not kept:
            keep_masters(param, [value.copyto(weight.ctx) for weight in param.list_data()])


def float32_value(data: Any) -> mx.nd.NDArray:
    """Return an array of MXNet or numpy, of any dtype, as an NDArray in float32."""
    if not isinstance(data, mx.nd.NDArray):
        return mx.nd.array(data)
    return to_float32(data.as_nd_ndarray()).astype(FLOAT32, copy=False)


def sync_masters_from_weights(param: mx.gluon.Parameter) -> None:
    """Write into the masters of a parameter those elements of its weights that differ from the rounded masters."""
    for weight in param.list_data() if masters_of(param) else ():
        if weight.ctx in masters_of(param) and is_low_precision(weight):
            sync_master_from_weight(masters_of(param)[weight.ctx], weight)


def sync_master_from_weight(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
    """Write into a float32 master those elements of its weight that differ from the rounded master."""
    with autograd.pause():
        value = to_float32(weight.as_nd_ndarray())
        rounded = to_float32(_rounded(master, weight))
        mx.nd.where(rounded == value, master, value, out=master)  # A NaN replaces another NaN.
        if weight.size >= _LARGE:
            master.wait_to_read()


def equals_rounded(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a flag, shape (1,), float32: 1 if a weight equals its rounded master.

    Nothing is read on the host, but the comparison of a large weight is waited for.
    """
    with autograd.pause():
        low_master = _rounded(master, weight)
        is_large = weight.size >= _LARGE
        has_bits = not on_gpu(weight) and weight.stype == "default"
        if is_large and has_bits and np.array_equal(_bits(low_master), _bits(weight)):
            return mx.nd.ones((1,), ctx=weight.ctx)  # The comparison below takes several times as long.
        rounded, value = to_float32(low_master), to_float32(weight.as_nd_ndarray())
        same = mx.nd.maximum(rounded == value, (rounded != rounded) * (value != value))  # NaN equals NaN.
        flag = mx.nd.min(same).reshape((1,))
        if is_large:
            flag.wait_to_read()
        return flag


def _rounded(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a master, rounded to the dtype of its weight."""
    rounded = mx.nd.empty(weight.shape, ctx=weight.ctx, dtype=weight.dtype)
    round_into(master, rounded)
    return rounded


def _bits(array: mx.nd.NDArray) -> "np.ndarray[Any, Any]":
    return view(wait_until_readable(array.as_nd_ndarray())).view(np.uint16)


def weight_was_overwritten(name: str) -> TrainerError:
    """Return the error for a weight that differs from its rounded master."""
    return TrainerError(
        f"{name} is stored in low precision and was written to past its float32 master, from which the next step "
        "would compute it, so that the write would be lost. Use param.set_data(value) or load_parameters in its "
        "place (set_params of a module); or take over all weights of a net as they are: "
        "mxmp.gluon.adopt_weights(net)."
    )


class ParameterWithMasters(mx.gluon.Parameter):
    """A parameter stored in low precision, whose float32 master follows the values that are set and loaded.

    A parameter that ``net.cast`` has put in low precision gets this class with its first master, and keeps it; a copy
    has the class that it had before. Its files have its own dtype, because MXNet loads no other into such a net
    (``Parameter._load_init`` in python/mxnet/gluon/parameter.py at tag 1.9.1). A parameter that a conversion stores is
    a `mxmp.gluon.storage.LowPrecisionParameter`, whose files have float32.
    """

    def set_data(self, data: Any) -> None:
        """Set the value on all contexts, from an NDArray or a numpy array of any dtype.

        A value in the dtype that is stored comes from ``data()``, as in ``p.set_data(p.data().clip(-c, c))``: elements
        that it leaves as they are keep their masters, so that steps below half a unit in the last place still add up.
        Its other elements, and a value in any other dtype as a whole, are the master from now on.
        """
        weight = self._data[0] if self._data else None  # None until shapes are known
        dtype = None if getattr(data, "dtype", None) is None else canonical(data.dtype)
        if weight is None or not is_low_precision(weight) or dtype == canonical(weight.dtype):
            super().set_data(data)
            sync_masters_from_weights(self)
            return
        value = float32_value(data)
        rounded = mx.nd.empty(value.shape, ctx=value.ctx, dtype=weight.dtype)
        round_into(value, rounded)
        super().set_data(rounded)
        self._keep(value)

    def _keep(self, value: mx.nd.NDArray) -> None:
        """Make a float32 value the master, in the arrays that an optimizer may hold already."""
        if self.grad_req != "null" or masters_of(self):
            set_master(self, value)

    def cast(self, dtype: Any) -> None:
        """Cast the value, as ``Parameter.cast``, from its master; forget the master if the new dtype needs none."""
        exact = [exact_value(weight, self) for weight in self.list_data()] if masters_of(self) else []
        super().cast(dtype)
        with autograd.pause():
            for value, weight in zip(exact, self.list_data()):
                if is_low_precision(weight):
                    round_into(value, weight)
                else:
                    value.astype(weight.dtype, copy=False).copyto(weight)
        if is_low_precision(self.list_data()[0]):
            sync_masters_from_weights(self)
        else:
            forget_masters(self)

    def _init_impl(self, data: Any, ctx_list: Any) -> None:
        """Set an initial value, again."""
        super()._init_impl(data, ctx_list)
        sync_masters_from_weights(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the state for pickle and copy, with the class that the parameter had before."""
        kind = type(self).__bases__[-1]
        return object.__new__, (kind,), without_masters(vars(self))


@functools.lru_cache(maxsize=None)
def _class_with_masters(kind: Any) -> Any:
    return type(kind.__name__, (ParameterWithMasters, kind), {"__module__": kind.__module__})


def copy_to_other_contexts(arrays: Sequence[mx.nd.NDArray], param: Optional[mx.gluon.Parameter] = None) -> None:
    """Copy the weight of the first context to the others; ``param`` keeps only the master of the first."""
    first, *others = arrays
    for other in others:
        first.copyto(other)
    if others and param is not None:
        forget_masters(param, but=first.ctx)


# ------------------------------------------------------------------ the masters of an updater


class Masters:
    """Float32 masters of the low precision weights that one updater updates, next to its optimizer.

    The updater's states are those that the optimizer makes for float32 weights, also for low precision weights.

    Attributes:
        optimizer: The user's optimizer. Its ``param_dict`` has the Parameters by index.
        kept: False if there are no masters, so that each update starts from the rounded weight.
        arrays: The masters by index, of the weights that were updated or loaded.
        is_low: By index, whether a weight was in low precision when its state was made.
        compared_steps: In how many steps weights were compared with them, since they were made or loaded.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer, kept: bool = True) -> None:
        self.optimizer, self.kept = optimizer, kept
        self.arrays: Dict[int, mx.nd.NDArray] = {}
        self.is_low: Dict[int, bool] = {}
        self.compared_steps = 0

    def of(self, index: int, weight: mx.nd.NDArray) -> Optional[mx.nd.NDArray]:
        """Return the master of a low precision weight, made at the first call; None if masters are not kept.

        A Parameter keeps the same array, so that all its trainers share it. The first value of a master is the
        float32 value that the Parameter keeps, if that rounds to the weight. Otherwise it is the weight's value.

        Args:
            index: The index of the weight.
            weight: The weight, on this updater's context.

        Raises:
            TrainerError: At the first call, if another optimizer has the master and the weight was overwritten.
        """
        param = self.optimizer.param_dict.get(index)
        if not self.kept:
            if param is not None:
                forget_masters(param)
            return None
        if param is None:
            master = self.arrays[index] if index in self.arrays else to_float32(weight)
        else:
            master = masters_of(param).get(weight.ctx)
            if index not in self.arrays or master is None or master.shape != weight.shape:
                master = _first_master(param, weight)
            set_owner(param, self.optimizer)
        self.arrays[index] = master.as_in_context(weight.ctx)  # Differs from the master's with a module's group2ctxs.
        return self.arrays[index]

    def load(self, arrays: Dict[int, mx.nd.NDArray]) -> None:
        """Replace the masters. The states are replaced too, so weights may have other dtypes from now on."""
        self.arrays, self.is_low, self.compared_steps = arrays, {}, 0


def set_owner(param: mx.gluon.Parameter, optimizer: mx.optimizer.Optimizer) -> None:
    """Make an optimizer the owner of a parameter's masters. They follow values that are set and loaded from now on."""
    owner = getattr(param, _OWNER, None)
    if owner is None or owner() is not optimizer:
        setattr(param, _OWNER, weakref.ref(optimizer))
    if not isinstance(param, ParameterWithMasters):
        kind: Any = type(param)
        param.__class__ = _class_with_masters(kind)


def changed_dtype(optimizer: mx.optimizer.Optimizer, index: int) -> TrainerError:
    """Return the error for a weight whose dtype differs from the one that its state was made for."""
    return TrainerError(
        f"{name_of(optimizer, index)} changed its dtype after its optimizer state was made. Convert the network before "
        "its trainer is made; in a training, call save_states before the network is converted, and load_states of a "
        "new trainer after it."
    )


def name_of(optimizer: mx.optimizer.Optimizer, index: int) -> str:
    """Return the name of a weight, by its index, for errors."""
    param = optimizer.param_dict.get(index)
    return f"parameter {index if param is None else repr(param.name)}"


def _first_master(param: mx.gluon.Parameter, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the float32 value of a parameter on a context; the parameter keeps it as its master from now on."""
    if not masters_of(param):  # For all contexts now, because an update changes them one after the other.
        keep_masters(param, [to_float32(data.as_nd_ndarray()) for data in param.list_data()])
    master = exact_value(weight, param)
    keep_masters(param, [*(array for ctx, array in masters_of(param).items() if ctx != weight.ctx), master])
    return master


_Group = Tuple[Masters, Iterable[Tuple[int, Any, mx.nd.NDArray]]]
"""The masters of an updater, with (index, gradient, weight) of each weight."""


def masters_flag(pairs: Iterable[_Group]) -> Optional[mx.nd.NDArray]:
    """Return a flag: 1 if every low precision weight equals its rounded master. None if there are no masters."""
    return merge_flags(flags) if (flags := [flag for _, flag in _flags(pairs)]) else None


def first_overwritten_weight(pairs: Iterable[_Group]) -> Optional[int]:
    """Return the index of the first weight that differs from its rounded master; slow."""
    return next((index for index, flag in _flags(pairs) if flag.asscalar() != 1.0), None)


def _flags(pairs: Iterable[_Group]) -> List[Tuple[int, mx.nd.NDArray]]:
    flags = []
    for masters, weights in pairs:
        for index, _, weight in weights:
            if index in masters.arrays and is_low_precision(weight):
                array = weight.as_nd_ndarray()
                flags.append((index, equals_rounded(masters.of(index, array), array)))
    return flags
