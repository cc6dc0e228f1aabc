"""Float32 masters of low precision weights: who keeps them, and the optimizer that updates them.

A master belongs to the trainer or module that updates it: each step computes the weight from it. Whatever else writes
weights says so (`set_master`, which ``set_data``, loads and casts call), or leaves the two different, which
`masters_flag` and `exact_value` find. Before there is an optimizer a parameter keeps the float32 value that its weight
was rounded from; elements that were changed since count as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import weakref
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd

from ..arrays import (
    MOST_ARRAYS,
    MOST_ELEMENTS,
    by_context,
    chunks,
    is_low_precision,
    merge_flags,
    on_gpu,
    round_all,
    round_into,
    settle,
    to_float32,
    view,
    widen,
)
from ..errors import TrainerError
from ..mxnet_private import OptimizerBase, ParameterBase, optimizers

_KEPT = "_mxmp_masters"
_OWNER = "_mxmp_optimizer"
_OWN = ("inner", "masters")

_CHECKED_UPDATES = 10
"""The first updates of a weight by MXNet's own trainer or updater, which look whether it is its master still."""

# Elements of weights that go together on a CPU: MXNet's kernel for many walks the longest as often as there are weights
# and asks at every element which of them are that long, so that no compiler vectorizes it (MultiSGDKernel in
# src/operator/optimizer_op-inl.h at tag 1.9.1). For one it takes two to three times as long as sgd_mom_update.
_SMALL = 4096

# Elements from which a weight's comparison with its master is waited for: it takes 30 bytes an element meanwhile, which
# MXNet's engine would have there for all weights at once.
_WAITED = 2**16


# ------------------------------------------------------------------ the masters of a parameter


def keep_masters(param: mx.gluon.Parameter, masters: Sequence[mx.nd.NDArray]) -> None:
    """Keep the float32 value of a low precision parameter, an array for each context; they are not copied."""
    setattr(param, _KEPT, {array.ctx: array for array in masters})


def forget_masters(param: mx.gluon.Parameter, but: Optional[mx.Context] = None) -> None:
    """Forget the float32 value of a parameter, but for that on one context."""
    kept = masters_of(param)
    for ctx in [ctx for ctx in kept if ctx != but]:
        del kept[ctx]
    if not kept:
        vars(param).pop(_OWNER, None)


def masters_of(param: mx.gluon.Parameter) -> Dict[mx.Context, mx.nd.NDArray]:
    """Return the float32 values of a parameter that are kept, by context."""
    return getattr(param, _KEPT, {})


def exact_value(weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return a weight of a parameter in float32: its master where it has one, else the weight as it is.

    On a context that lacks a master, a copy of another context's.

    Raises:
        TrainerError: If an optimizer has the master and somebody has written to the weight past it.
    """
    kept = masters_of(param) if is_low_precision(weight) else {}
    master = kept.get(weight.ctx)
    if master is None and kept:
        master = next(iter(kept.values())).copyto(weight.ctx)
    if master is None or master.shape != weight.shape:
        return to_float32(weight)
    if is_owned(param) and rounds_to(master, weight).asscalar() != 1.0:
        gc.collect()  # trainers are part of cycles, so that dropped ones may still be there
        if is_owned(param):
            raise written_past(f"parameter '{param.name}'")
    if not is_owned(param):
        follow(master, weight)
    return master


def without_owner(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the attributes of a parameter for a copy of it, whose masters no optimizer has."""
    return {name: value for name, value in state.items() if name != _OWNER}


def is_owned(param: mx.gluon.Parameter) -> bool:
    """Return whether an optimizer that is alive has the masters of a parameter."""
    owner = getattr(param, _OWNER, None)
    return owner is not None and owner() is not None


def require_masters(params: Iterable[mx.gluon.Parameter]) -> None:
    """Raise if a weight was written to past its float32 master; a host read for each."""
    for param in params:
        for weight in param.list_data() if masters_of(param) else ():
            exact_value(weight, param)


def set_master(param: mx.gluon.Parameter, value: mx.nd.NDArray) -> None:
    """Make a float32 value the master of a parameter, in the arrays that an optimizer may hold already."""
    kept = masters_of(param)
    with autograd.pause():
        for master in kept.values():
            value.copyto(master)
        if not kept:
            keep_masters(param, [value.copyto(weight.ctx) for weight in param.list_data()])


def follow_weights(param: mx.gluon.Parameter) -> None:
    """Let the masters of a parameter take over the elements of its weights that they do not round to."""
    for weight in param.list_data() if masters_of(param) else ():
        if weight.ctx in masters_of(param) and is_low_precision(weight):
            follow(masters_of(param)[weight.ctx], weight)


def follow(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
    """Let a float32 master take over the elements of its weight that it does not round to, in place."""
    with autograd.pause():
        wide = to_float32(weight.as_nd_ndarray())
        rounded = to_float32(_rounded(master, weight))
        mx.nd.where(rounded == wide, master, wide, out=master)  # a NaN takes over another NaN
        if weight.size >= _WAITED:
            master.wait_to_read()


def rounds_to(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a flag, shape (1,), float32, that is 1 if a weight is its master, rounded.

    No host read, but for a large weight a wait.
    """
    with autograd.pause():
        low = _rounded(master, weight)
        is_large = weight.size >= _WAITED
        if is_large and not on_gpu(weight) and weight.stype == "default" and np.array_equal(_bits(low), _bits(weight)):
            return mx.nd.ones((1,), ctx=weight.ctx)  # what follows takes several times as long
        rounded, wide = to_float32(low), to_float32(weight.as_nd_ndarray())
        same = mx.nd.maximum(rounded == wide, (rounded != rounded) * (wide != wide))  # a NaN is the same as a NaN
        flag = mx.nd.min(same).reshape((1,))
        if is_large:
            flag.wait_to_read()
        return flag


def _rounded(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a master as its weight's dtype rounds it."""
    rounded = mx.nd.empty(weight.shape, ctx=weight.ctx, dtype=weight.dtype)
    round_into(master, rounded)
    return rounded


def _bits(array: mx.nd.NDArray) -> "np.ndarray[Any, Any]":
    return view(settle(array.as_nd_ndarray())).view(np.uint16)


def written_past(name: str) -> TrainerError:
    """Return the error for a weight that is not its master any more."""
    return TrainerError(
        f"{name} is stored in low precision and was written to past its float32 master, from which the next step "
        "would compute it, so that the write would be lost. Use param.set_data(value) or load_parameters in its "
        "place (set_params of a module); or take over all weights of a net as they are: "
        "mxmp.gluon.adopt_weights(net)."
    )


class ParameterWithMasters(ParameterBase):
    """A parameter that a trainer of mxmp has a master of, which follows what is set and loaded.

    A low precision parameter gets this class with its master, and keeps it; a copy has the class that it had before.
    """

    def set_data(self, data: Any) -> None:
        """Set the value on all contexts, as ``Parameter.set_data``; one of float32 is the master, rounded once."""
        dtype = getattr(data, "dtype", None)
        wide = isinstance(data, mx.nd.NDArray) and dtype == np.float32 and is_low_precision(self.list_data()[0])
        if wide:
            rounded = mx.nd.empty(data.shape, ctx=data.ctx, dtype=self.list_data()[0].dtype)
            round_into(data.as_nd_ndarray(), rounded)
            super().set_data(rounded)
            set_master(self, data)
        else:
            super().set_data(data)
            follow_weights(self)

    def mx_load_value(self, data: Any, ctx: Any, cast_dtype: bool = False, dtype_source: str = "current") -> None:
        """Load a value, as from a file."""
        super().mx_load_value(data, ctx, cast_dtype, dtype_source)
        self._follow()

    def cast(self, dtype: Any) -> None:
        """Cast the value, as ``Parameter.cast``, from its master; a value that is not low precision has none."""
        exact = [exact_value(weight, self) for weight in self.list_data()] if masters_of(self) else []
        super().cast(dtype)
        with autograd.pause():
            for value, weight in zip(exact, self.list_data()):
                if is_low_precision(weight):
                    round_into(value, weight)
                else:
                    value.astype(weight.dtype, copy=False).copyto(weight)
        self._follow()

    def _follow(self) -> None:
        if is_low_precision(self.list_data()[0]):
            follow_weights(self)
        else:
            forget_masters(self)

    def mx_init_arrays(self, data: Any, ctx_list: Any) -> None:
        """Set an initial value, again."""
        super().mx_init_arrays(data, ctx_list)
        follow_weights(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the state for pickle and copy, with the class that the parameter had before."""
        kind = type(self).__bases__[-1]
        state = {name: value for name, value in vars(self).items() if name not in (_KEPT, _OWNER)}
        return object.__new__, (kind,), state


@functools.lru_cache(maxsize=None)
def _class_with_masters(kind: Any) -> Any:
    return type(kind.__name__, (ParameterWithMasters, kind), {"__module__": kind.__module__})


def copy_to_other_contexts(arrays: Sequence[mx.nd.NDArray], param: Optional[mx.gluon.Parameter] = None) -> None:
    """Give all contexts of a weight the value of the first, whose master is the only one that ``param`` keeps."""
    first, *others = arrays
    for other in others:
        first.copyto(other)
    if others and param is not None:
        forget_masters(param, but=first.ctx)


# ------------------------------------------------------------------ the optimizer


@dataclasses.dataclass
class MasterState:
    """State of one low precision weight.

    Attributes:
        master: Its float32 master; None if none is kept, or known yet.
        inner: The inner optimizer's state.
        is_loaded: Whether it is from a file, so that at the next update the weight decides wherever the two differ.
        updates: How many updates an updater of MXNet has made with it, up to ten.
    """

    master: Optional[mx.nd.NDArray]
    inner: Any
    is_loaded: bool = dataclasses.field(default=False, repr=False, compare=False)
    updates: int = dataclasses.field(default=0, repr=False, compare=False)


def needs_unscaled_gradients(optimizer: mx.optimizer.Optimizer) -> bool:
    """Return whether an optimizer looks at gradients before it applies ``rescale_grad``.

    LBSGD adds gradients up over several steps, whose scales may differ, and takes norms of them.
    """
    return isinstance(optimizer, mx.optimizer.LBSGD)


class MultiPrecision(OptimizerBase):
    """An optimizer that runs another one in float32 on float16 and bfloat16 weights.

    Each low precision weight has a float32 master; its gradient is cast to float32, the inner
    optimizer updates the master, and the master is rounded to nearest even into the weight. The
    inner optimizer's states are float32 too. Weights of other dtypes go straight to the inner
    optimizer, in the same lists.

    Every attribute but ``inner`` and ``masters`` is the inner optimizer's, for reading and for
    writing: ``lr``, ``wd``, ``momentum``, ``num_update``, ``rescale_grad``, ``param_dict``...

    The first value of a master is the one that the parameter keeps, where that still rounds to the
    weight; from then on the parameter keeps the master itself. Whoever writes to a weight of a
    parameter by ``set_data`` or ``load_parameters`` of a converted net writes to its master too. A
    weight that was written in another way raises in its first ten updates; later the next update
    undoes the write. An array that is no ``Parameter`` of ``param_dict`` may be written to at any
    time: its master takes over the elements that changed. That costs about as much as two updates.

    It is not in ``mx.optimizer.Optimizer.opt_registry``; wrap an instance.

    Args:
        optimizer: Any optimizer of MXNet or of the user.
        masters: False keeps no masters: each update starts from the rounded weight. Saves 4
            bytes per weight and loses every change below half a unit in the last place.

    Raises:
        TrainerError: If ``optimizer`` is no optimizer, or is wrapped already.

    Example:
        >>> optimizer = MultiPrecision(mx.optimizer.SGD(momentum=0.9))
        >>> optimizer.momentum
        0.9
    """

    inner: mx.optimizer.Optimizer
    masters: bool

    def __init__(self, optimizer: mx.optimizer.Optimizer, masters: bool = True) -> None:
        if isinstance(optimizer, MultiPrecision):
            raise TrainerError(
                f"the optimizer {type(optimizer.inner).__name__} is wrapped in MultiPrecision already; wrap it once."
            )
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TrainerError(
                f"MultiPrecision got {optimizer!r}; expected an mx.optimizer.Optimizer. "
                "Create it by name with mx.optimizer.create."
            )
        self.__setstate__({"inner": optimizer, "masters": masters})

    def __getattr__(self, name: str) -> Any:
        """Return the inner optimizer's attribute."""
        if name in _OWN:  # not set yet, while unpickling
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the inner optimizer's attribute."""
        if name in _OWN:
            raise AttributeError(f"{name} of MultiPrecision cannot be replaced; wrap the optimizer anew.")
        if name in ("lr", "wd"):
            _require_finite(name, value)
        setattr(self.inner, name, value)

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for pickle."""
        return {name: self.__dict__[name] for name in _OWN}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Take the state from pickle."""
        self.__dict__.update(state)

    @property
    def multi_precision(self) -> bool:
        """Whether low precision weights have masters."""
        return self.masters

    @property
    def needs_unscaled_gradients(self) -> bool:
        """Whether dividing by the loss scale through ``rescale_grad`` is not enough."""
        return needs_unscaled_gradients(self.inner)

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the state of one weight: a `MasterState` if it is low precision.

        Args:
            index: The parameter's index, a key of ``param_dict``.
            weight: Any shape and dtype.
        """
        if not is_low_precision(weight):
            return self.inner.create_state_multi_precision(index, weight)
        param = self.inner.param_dict.get(index)
        if not self.masters:
            if param is not None:
                forget_masters(param)
            return MasterState(None, self.inner.create_state_multi_precision(index, to_float32(weight)))
        return self.create_state_of_master(index, self.new_master(index, weight))

    def new_master(self, index: int, weight: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a float32 master for a weight; its parameter keeps it, so that all who ask for it share it."""
        param = self.inner.param_dict.get(index)
        if param is None:
            return to_float32(weight)
        if not masters_of(param):  # on all contexts now: later, those updated first are no measure for the others
            keep_masters(param, [to_float32(data.as_nd_ndarray()) for data in param.list_data()])
        return self._shared_master(exact_value(weight, param), weight, param)

    def _shared_master(
        self, master: mx.nd.NDArray, weight: mx.nd.NDArray, param: mx.gluon.Parameter
    ) -> mx.nd.NDArray:
        """Return the one master of a weight: what its parameter keeps, else ``master``, which it keeps from now on."""
        kept = masters_of(param).get(weight.ctx)
        if kept is None or kept.shape != weight.shape:
            if kept is None and masters_of(param):  # set since, on the parameter's own contexts
                master = exact_value(weight, param)
            keep_masters(param, [*(array for ctx, array in masters_of(param).items() if ctx != weight.ctx), master])
            kept = master
        setattr(param, _OWNER, weakref.ref(self.inner))
        if not isinstance(param, ParameterBase):  # nor one of `mxmp.gluon` that a conversion stores, which follows too
            kind: Any = type(param)
            param.__class__ = _class_with_masters(kind)
        return kept

    def create_state_of_master(self, index: int, master: mx.nd.NDArray) -> MasterState:
        """Return the state of a low precision weight whose float32 value is given; it is kept, not copied."""
        return MasterState(master, self.inner.create_state_multi_precision(index, master))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight, or a list of weights of one dtype, in place.

        Args:
            index: The parameter's index, or a list of them.
            weight: The weight or weights.
            grad: The gradient or gradients; of a low precision weight, float32 or its dtype.
            state: The state of `create_state_multi_precision`, for each.

        Raises:
            TrainerError: If a state is of another precision than its weight, or the weight of a Parameter was written
                to past its master within its first ten updates.
        """
        many = isinstance(index, (list, tuple))
        weights = list(map(Weight, *((index, weight, grad, state) if many else ([index], [weight], [grad], [state]))))
        self.check_states((each.index, each.weight, each.state) for each in weights)
        if not is_low_precision(weights[0].weight):
            self.inner.update_multi_precision(index, weight, grad, state)
            return
        for each in weights:
            self.share_master(each)
            self.follow_array(each.index, each.weight, each.state)
            if each.state.master is not None and each.state.updates < _CHECKED_UPDATES:
                each.state.updates += 1
                if rounds_to(each.state.master, each.weight).asscalar() != 1.0:
                    raise written_past(self._name(each.index))
        _update_part(self.inner, weights)

    def check_states(self, weights: Iterable[Tuple[int, mx.nd.NDArray, Any]]) -> None:
        """Raise if a weight's state was made for another dtype, before anything is updated.

        Args:
            weights: (index, weight, its state or None) of each.

        Raises:
            TrainerError: Naming the first such parameter.
        """
        for index, weight, state in weights:
            if state is not None and isinstance(state, MasterState) != is_low_precision(weight):
                raise TrainerError(
                    f"{self._name(index)} changed its dtype after its optimizer state was made. Convert the network "
                    "before its trainer is made; in a training, call save_states before the network is converted, and "
                    "load_states of a new trainer after it. States of MXNet are loaded by load_states alone, not by "
                    "set_states."
                )

    def share_master(self, weight: Weight) -> None:
        """Let a weight's state have the one master of its parameter, on the weight's context."""
        state = weight.state
        if not self.masters:
            return
        if state.master is None:  # of states from a run under another policy
            state.master = self.new_master(weight.index, weight.weight)
        if state.master.ctx != weight.weight.ctx:  # where a kvstore or a loaded file differ
            state.master = state.master.as_in_context(weight.weight.ctx)
            state.inner = mx.optimizer.Updater(self.inner).sync_state_context(state.inner, weight.weight.ctx)
        if state.is_loaded:
            state.is_loaded = False
            follow(state.master, weight.weight)
        param = self.inner.param_dict.get(weight.index)
        if param is not None:
            state.master = self._shared_master(state.master, weight.weight, param)

    def follow_array(self, index: int, weight: mx.nd.NDArray, state: Any) -> None:
        """Let the master of a weight that is no Parameter follow it: whoever writes to an array cannot say so."""
        if index not in self.inner.param_dict and isinstance(state, MasterState) and state.master is not None:
            follow(state.master, weight)

    def _name(self, index: int) -> str:
        param = self.inner.param_dict.get(index)
        return f"parameter {index if param is None else repr(param.name)}"

    # What MXNet's base class would do itself, but the inner class may have overridden.

    @property
    def learning_rate(self) -> float:
        """The present learning rate."""
        return float(self.inner.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; a TrainerError if it is no finite number."""
        _require_finite("the learning rate", lr)
        self.inner.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Dict[Any, float]) -> None:
        """Set learning rate multipliers by name or index."""
        self.inner.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Dict[Any, float]) -> None:
        """Set weight decay multipliers by name or index."""
        self.inner.set_wd_mult(args_wd_mult)

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the inner optimizer's state of a weight."""
        return self.inner.create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight with the inner optimizer, without a master."""
        self.inner.update(index, weight, grad, state)

    def mx_set_current_context(self, device_id: int) -> None:
        """Choose the device whose counts the inner optimizer uses."""
        optimizers.set_current_context(self.inner, device_id)

    def mx_update_count(self, index: Any) -> None:
        """Have the inner optimizer count an update."""
        optimizers.update_count(self.inner, index)

    def mx_learning_rates(self, indices: Sequence[int]) -> List[float]:
        """Return the inner optimizer's learning rates."""
        return list(optimizers.learning_rates(self.inner, indices))

    def mx_weight_decays(self, indices: Sequence[int]) -> List[float]:
        """Return the inner optimizer's weight decays."""
        return list(optimizers.weight_decays(self.inner, indices))


def _require_finite(name: str, value: Any) -> None:
    """Raise unless a value is a number that an update can use: MXNet would fail at the next step, or not at all."""
    try:
        finite = math.isfinite(value)
    except TypeError:
        finite = False
    if not finite:
        raise TrainerError(f"{name} is {value!r}; expected a finite number.")


# ------------------------------------------------------------------ the update of all weights of a step


class Update(NamedTuple):
    """What an ``mx.optimizer.Updater`` needs for one weight on one context, which is updated in place."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    grad: mx.nd.NDArray
    weight: mx.nd.NDArray


class Weight(NamedTuple):
    """One weight with its gradient and state, as an optimizer of MXNet takes them."""

    index: int  # type: ignore[assignment]  # it hides tuple.index
    weight: mx.nd.NDArray
    grad: mx.nd.NDArray
    state: Any

    @property
    def is_dense(self) -> bool:
        """Whether it is dense, and its gradient too."""
        return bool(self.weight.stype == self.grad.stype == "default")

    @property
    def is_plain(self) -> bool:
        """Whether it is what the kernels for many take: dense float16 on a GPU with a dense gradient."""
        return bool(on_gpu(self.weight) and self.weight.dtype == np.float16 and self.is_dense and self.weight.size)


def masters_flag(pairs: Iterable[Tuple[mx.optimizer.Updater, Sequence[Update]]]) -> Optional[mx.nd.NDArray]:
    """Return a flag that is 1 if every low precision weight is its master, rounded; None without masters."""
    return merge_flags(flags) if (flags := [flag for _, flag in _flags(pairs)]) else None


def first_written_past(pairs: Iterable[Tuple[mx.optimizer.Updater, Sequence[Update]]]) -> Optional[int]:
    """Return the index of the first weight that is not its master, rounded; slow."""
    return next((index for index, flag in _flags(pairs) if flag.asscalar() != 1.0), None)


def _flags(pairs: Iterable[Tuple[mx.optimizer.Updater, Sequence[Update]]]) -> List[Tuple[int, mx.nd.NDArray]]:
    found = []
    for updater, updates in pairs:
        for each in updates:
            state = updater.states.get(each.index)
            if isinstance(state, MasterState) and state.master is not None and is_low_precision(each.weight):
                weight = _with_state(updater, each)
                updater.optimizer.share_master(weight)
                found.append((each.index, rounds_to(weight.state.master, weight.weight)))
    return found


def update(updater: mx.optimizer.Updater, updates: Sequence[Update]) -> None:
    """Update weights, those of one context together.

    For finite values the wrapped optimizer computes what it does for one weight after the other, but for the sign of
    zero. It gets the weights in their order; one of MXNet that takes several at once gets the dense float32 ones first.
    """
    optimizer: MultiPrecision = updater.optimizer
    for group in by_context(updates, [each.weight for each in updates]):
        optimizers.set_current_context(optimizer, group[0].weight.ctx.device_id)
        weights = [_with_state(updater, each) for each in group]
        for each in weights:
            if isinstance(each.state, MasterState):
                optimizer.share_master(each)
        for part in _parts(_without_kernel_for_masters(optimizer, weights)):
            _update_part(optimizer.inner, part)


def _without_kernel_for_masters(optimizer: MultiPrecision, weights: List[Weight]) -> List[Weight]:
    """Update float16 weights of a GPU by SGD's kernel that casts and rounds by itself, and return the others."""
    sgd = optimizer.inner
    if type(sgd) is not mx.optimizer.SGD or sgd.aggregate_num <= 0 or not optimizer.masters:
        return weights
    if not on_gpu(weights[0].weight):
        return weights
    done = [each for each in weights if each.is_plain and each.grad.dtype == np.float16]
    for part in chunks(done, MOST_ARRAYS):
        states = [(each.state.inner, each.state.master) for each in part]
        index, weight, grad, _ = map(list, zip(*part))
        optimizers.update_sgd(sgd, index, weight, grad, states, multi_precision=True)
    indices = {each.index for each in done}
    return [each for each in weights if each.index not in indices]


def _parts(weights: Sequence[Weight]) -> Iterable[List[Weight]]:
    """Yield the weights in parts whose gradients are cast at once: as many as a launch takes, of bounded size."""
    part: List[Weight] = []
    count = elements = 0
    for each in weights:
        if isinstance(each.state, MasterState):
            count, elements = count + 1, elements + each.weight.size
            if part and (count > MOST_ARRAYS or elements > MOST_ELEMENTS):
                yield part
                part, count, elements = [], 1, each.weight.size
        part.append(each)
    if part:
        yield part


def _update_part(inner: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> None:
    """Have an optimizer update float32 weights, and masters in place of low precision ones; round these."""
    low = [each for each in weights if isinstance(each.state, MasterState)]
    if not low:
        _update_wide(inner, weights)
        return
    without = iter(_widened([each.weight for each in low if each.state.master is None]))
    masters = [next(without) if each.state.master is None else each.state.master for each in low]
    grads = iter(_widened([each.grad for each in low]))
    wide = {each.index: Weight(each.index, master, next(grads), each.state.inner) for each, master in zip(low, masters)}
    _update_wide(inner, [wide.get(each.index, each) for each in weights])
    plain = [number for number, each in enumerate(low) if each.is_plain]
    round_all([masters[number] for number in plain], [low[number].weight for number in plain])
    for master, each in zip(masters, low):
        if not each.is_plain:
            round_into(master, each.weight)


def _widened(arrays: Sequence[mx.nd.NDArray]) -> List[mx.nd.NDArray]:
    """Return arrays in float32: dense float16 ones of a GPU together, others one by one."""
    fit = [k for k, each in enumerate(arrays) if on_gpu(each) and each.dtype == np.float16 and each.stype == "default"]
    together = dict(zip(fit, widen([arrays[k] for k in fit])))
    return [together[k] if k in together else to_float32(each) for k, each in enumerate(arrays)]


def _update_wide(inner: mx.optimizer.Optimizer, weights: Sequence[Weight]) -> None:
    """Have an optimizer update float32 weights, and what else there is."""
    is_sgd = type(inner) is mx.optimizer.SGD
    largest = _SMALL if is_sgd and inner.momentum > 0 and not on_gpu(weights[0].weight) else math.inf
    together: List[Weight] = []
    alone: List[Weight] = []
    others: List[Weight] = []
    for each in weights:
        if inner.aggregate_num <= 0 or not each.is_dense or each.weight.dtype != np.float32:
            others.append(each)
        else:
            (together if each.weight.size <= largest else alone).append(each)
    if alone:
        _update_sgd(inner, alone)
    for part in chunks(together, MOST_ARRAYS if is_sgd else max(1, inner.aggregate_num)):
        inner.update_multi_precision(*map(list, zip(*part)))
    for each in others:
        inner.update_multi_precision(*each)


def _update_sgd(sgd: mx.optimizer.SGD, weights: Sequence[Weight]) -> None:
    """Update float32 weights of a CPU, each by the kernel for one, which does what that for many does in its order."""
    indices = [each.index for each in weights]
    optimizers.update_count(sgd, indices)
    options = {"momentum": sgd.momentum, "rescale_grad": sgd.rescale_grad}
    if sgd.clip_gradient:
        options["clip_gradient"] = sgd.clip_gradient
    rates = zip(weights, optimizers.learning_rates(sgd, indices), optimizers.weight_decays(sgd, indices))
    for (_, weight, grad, momentum), rate, decay in rates:
        mx.nd.sgd_mom_update(weight, grad, momentum, out=weight, lr=_exactly(rate), wd=_exactly(decay), **options)


def _exactly(number: float) -> str:
    """Return a number that MXNet reads as the float32 next to it, as it does in a list of numbers.

    One that stands alone it reads with an error in the last bit where it is written with an exponent or many digits.
    """
    return f"{float(np.float32(number)):.60f}"


def add_state(updater: mx.optimizer.Updater, index: int, state: Any) -> None:
    """Give an updater the state of a weight on its context; an interrupt leaves what the next update completes."""
    updater.states_synced.setdefault(index, False)
    updater.states[index] = state
    updater.states_synced[index] = True


def _with_state(updater: mx.optimizer.Updater, update: Update) -> Weight:
    """Return a weight with its state, which is made if there is none, as `mx.optimizer.Updater` does."""
    index, weight = update.index, update.weight.as_nd_ndarray()
    if index not in updater.states:
        add_state(updater, index, updater.optimizer.create_state_multi_precision(index, weight))
    elif not updater.states_synced[index]:
        add_state(updater, index, updater.sync_state_context(updater.states[index], weight.ctx))
    return Weight(index, weight, update.grad.as_nd_ndarray(), updater.states[index])
