"""An optimizer of MXNet that runs another one in float32 on low precision weights, without a trainer of mxmp."""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import mxnet as mx

from ..arrays import is_low_precision, to_float32
from ..errors import TrainerError
from .kernels import Weight, update_part
from .masters import (
    Masters,
    changed_dtype,
    equals_rounded,
    forget_masters,
    keep_masters,
    masters_of,
    name_of,
    set_owner,
    sync_master_from_weight,
    weight_was_overwritten,
)

_COMPARED_UPDATES = 10
"""The first updates of a Parameter, in which it is compared with its master."""

# MXNet's own multi_precision keeps (state, master) for these, and (master, state) for all other optimizers: their
# create_state_multi_precision in python/mxnet/optimizer/optimizer.py at tag 1.9.1.
_MASTER_LAST = mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.LARS
# Their state of a weight is one array, so that two arrays are a state and a master. That of Adam is two arrays.
_OF_ONE_ARRAY = mx.optimizer.Signum, mx.optimizer.AdaGrad, mx.optimizer.LBSGD, mx.optimizer.Test


def pair_of(optimizer: mx.optimizer.Optimizer, master: mx.nd.NDArray, state: Any) -> Tuple[Any, Any]:
    """Return a master and a state as MXNet's ``multi_precision`` pairs them."""
    return (state, master) if isinstance(optimizer, _MASTER_LAST) else (master, state)


def master_and_state(optimizer: mx.optimizer.Optimizer, state: Any) -> Tuple[Any, Any]:
    """Return master and state from the state that an updater of MXNet keeps of a weight; None for no master."""
    if type(state) is not tuple or len(state) != 2:
        return None, state
    if isinstance(optimizer, _MASTER_LAST):
        return state[1], state[0]
    is_pair = isinstance(optimizer, _OF_ONE_ARRAY) or state[1] is None or type(state[1]) is tuple
    return state if is_pair else (None, state)


def _of_inner(name: str) -> Any:
    """Return a property that is an attribute of the inner optimizer."""

    def read(self: Any) -> Any:
        return getattr(self.inner, name)

    def write(self: Any, value: Any) -> None:
        setattr(self.inner, name, value)

    return property(read, write, doc=f"``{name}`` of the inner optimizer.")


class MultiPrecision(mx.optimizer.Optimizer):
    """An optimizer that runs another one in float32 on float16 and bfloat16 weights.

    It is for ``mx.gluon.Trainer``, ``mx.mod.Module`` and loops with an ``mx.optimizer.Updater``. The trainers and
    modules of mxmp do the same for any optimizer; of this one they take the inner optimizer.

    Each low precision weight has a float32 master. Its gradient is cast to float32, the inner optimizer updates the
    master, and the master is rounded to nearest even into the weight. The inner optimizer's states are float32 too.
    Weights of other dtypes go straight to the inner optimizer.

    Trainers and updaters read and set attributes of the inner optimizer: learning rate and its schedule, weight decay,
    ``rescale_grad``, multipliers, ``param_dict`` and counts. Options such as ``momentum`` are attributes of ``inner``.
    The state of a low precision weight is the pair of state and master that MXNet's own
    ``multi_precision=True`` makes.

    A Parameter of ``param_dict`` is written to by ``set_data`` or ``load_parameters``, which change its master too. A
    write in another way raises in its first ten updates; later the next update undoes the write. An array may be
    written to at any time: its master takes over the elements that changed. That costs about as much as two updates.

    It is not in ``mx.optimizer.Optimizer.opt_registry``; wrap an instance.

    Args:
        optimizer: Any optimizer of MXNet or of the user.
        masters: False keeps no masters: each update starts from the rounded weight. Saves 4
            bytes per weight and loses every change below half a unit in the last place.

    Attributes:
        inner: The optimizer that was given.
        masters: Whether low precision weights have masters.

    Raises:
        TrainerError: If ``optimizer`` is no optimizer, or is wrapped already.

    Example:
        >>> optimizer = MultiPrecision(mx.optimizer.SGD(momentum=0.9, learning_rate=0.5))
        >>> optimizer.learning_rate, optimizer.inner.momentum
        (0.5, 0.9)
    """

    inner: mx.optimizer.Optimizer
    masters: bool

    lr, wd, lr_scheduler, num_update, begin_num_update = map(
        _of_inner, ("lr", "wd", "lr_scheduler", "num_update", "begin_num_update")
    )
    rescale_grad, clip_gradient, aggregate_num = map(_of_inner, ("rescale_grad", "clip_gradient", "aggregate_num"))
    param_dict, idx2name, sym_info, lr_mult, wd_mult = map(
        _of_inner, ("param_dict", "idx2name", "sym_info", "lr_mult", "wd_mult")
    )

    def __init__(self, optimizer: mx.optimizer.Optimizer, masters: bool = True) -> None:
        # Not the constructor of MXNet: it would set the inner optimizer's attributes to its defaults.
        if isinstance(optimizer, MultiPrecision):
            raise TrainerError(
                f"the optimizer {type(optimizer.inner).__name__} is wrapped in MultiPrecision already; wrap it once."
            )
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TrainerError(
                f"MultiPrecision got {optimizer!r}; expected an mx.optimizer.Optimizer. "
                "Create it by name with mx.optimizer.create."
            )
        self.inner, self.masters = optimizer, bool(masters)
        self._is_low: Dict[int, bool] = {}  # Whether each weight was in low precision at first.
        self._updates: Dict[Tuple[int, str], int] = {}  # How often, by index and context; up to ten.

    # MXNet's leave ``param_dict`` out, which is the inner optimizer's.

    def __getstate__(self) -> Dict[str, Any]:
        """Return the state for pickle."""
        return dict(vars(self))

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Take the state from pickle."""
        self.__dict__.update(state)

    @property
    def multi_precision(self) -> bool:
        """Whether low precision weights have masters."""
        return self.masters

    @property
    def learning_rate(self) -> float:
        """The inner optimizer's present learning rate."""
        return float(self.inner.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate; a TrainerError if it is no finite number."""
        require_finite(lr)
        self.inner.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Dict[Any, float]) -> None:
        """Set learning rate multipliers by name or index."""
        self.inner.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Dict[Any, float]) -> None:
        """Set weight decay multipliers by name or index."""
        self.inner.set_wd_mult(args_wd_mult)

    def _set_current_context(self, device_id: int) -> None:
        """Choose the device whose counts the inner optimizer uses."""
        self.inner._set_current_context(device_id)

    def create_state(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the inner optimizer's state of a weight."""
        return self.inner.create_state(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update a weight with the inner optimizer, without a master."""
        self.inner.update(index, weight, grad, state)

    def create_state_multi_precision(self, index: int, weight: mx.nd.NDArray) -> Any:
        """Return the state of one weight: if it has low precision, a pair of state and master.

        Args:
            index: The parameter's index, a key of ``param_dict``.
            weight: Any shape and dtype.
        """
        self._is_low[index] = is_low_precision(weight)
        master = Masters(self.inner, self.masters).of(index, weight) if self._is_low[index] else None
        value = to_float32(weight) if master is None else master
        state = self.inner.create_state_multi_precision(index, value)
        return state if master is None else pair_of(self.inner, master, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight, or a list of weights of one dtype, in place.

        Args:
            index: The parameter's index, or a list of them.
            weight: The weight or weights.
            grad: The gradient or gradients; of a low precision weight, float32 or its dtype.
            state: The state of `create_state_multi_precision`, for each.

        Raises:
            TrainerError: If a weight changed its dtype. Or if the weight of a Parameter was written to past its master
                within its first ten updates.
        """
        many = isinstance(index, (list, tuple))
        rows = zip(*((index, weight, grad, state) if many else ([index], [weight], [grad], [state])))
        weights = [Weight(i, w, g, s, None, is_low_precision(w)) for i, w, g, s in rows]
        for each in weights:
            if self._is_low.setdefault(each.index, each.is_low) != each.is_low:
                raise changed_dtype(self.inner, each.index)
        if not weights[0].is_low:
            self.inner.update_multi_precision(index, weight, grad, state)
        else:
            update_part(self.inner, list(map(self._with_master, weights)) if self.masters else weights)

    def _with_master(self, each: Weight) -> Weight:
        """Return a weight with the master that is part of its state, which its Parameter keeps."""
        master, state = each.state[::-1] if isinstance(self.inner, _MASTER_LAST) else each.state
        param = self.inner.param_dict.get(each.index)
        if param is None:
            sync_master_from_weight(master, each.weight)  # A write to an array is not noticed.
            return each._replace(state=state, master=master)
        kept = masters_of(param)
        present = kept.get(each.weight.ctx)
        if present is not master:  # The state was loaded, or the parameter was stored anew.
            if present is None:
                sync_master_from_weight(master, each.weight)
            else:
                present.copyto(master)
            keep_masters(param, [*(array for ctx, array in kept.items() if ctx != each.weight.ctx), master])
        if each.weight.ctx not in param.list_ctx():  # A kvstore's weight, which all contexts copy.
            forget_masters(param, but=each.weight.ctx)
        set_owner(param, self.inner)
        key = each.index, str(each.weight.ctx)
        self._updates[key] = min(self._updates.get(key, 0) + 1, _COMPARED_UPDATES + 1)
        if self._updates[key] <= _COMPARED_UPDATES and equals_rounded(master, each.weight).asscalar() != 1.0:
            raise weight_was_overwritten(name_of(self.inner, each.index))
        return each._replace(state=state, master=master)


def unwrapped(optimizer: mx.optimizer.Optimizer, masters: bool = True) -> Tuple[mx.optimizer.Optimizer, bool]:
    """Return the optimizer within a `MultiPrecision`, or the given one, and whether it has masters."""
    is_wrapped = isinstance(optimizer, MultiPrecision)
    return (optimizer.inner, optimizer.masters) if is_wrapped else (optimizer, bool(masters))


def require_finite(rate: Any) -> None:
    """Raise if a learning rate is no finite number. MXNet would fail at the next step, or not at all."""
    try:
        finite = math.isfinite(rate)
    except TypeError:
        finite = False
    if not finite:
        raise TrainerError(f"the learning rate is {rate!r}; expected a finite number.")
