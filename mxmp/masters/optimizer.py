"""Float32 masters around any MXNet optimizer, for float16 and bfloat16 weights alike."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.casts import is_low_precision, round_into, to_float32
from ..errors import TrainerError
from ..mxnet_private import OptimizerBase, optimizers
from .copies import LastRounded, forget_masters, new_master, shared_master, sync_master_from_weight

_OWN = ("inner", "masters")


@dataclasses.dataclass
class MasterState:
    """State of one low precision weight: its float32 master, None if none is kept, and the inner optimizer's state."""

    master: Optional[mx.nd.NDArray]
    inner: Any
    last_rounded: LastRounded = dataclasses.field(default_factory=LastRounded, repr=False, compare=False)


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

    Masters follow the weights: whatever changes a weight between two updates is seen by the
    next update, on the device. The first value of a master is the one that the parameter keeps
    (`mxmp.masters.copies.keep_masters`), where that still rounds to the weight; from then on
    the parameter keeps the master itself.

    It is not in ``mx.optimizer.Optimizer.opt_registry``; wrap an instance.

    Args:
        optimizer: Any optimizer of MXNet or of the user.
        masters: False keeps no masters: each update starts from the rounded weight. Saves 4
            bytes per weight (6 on a CPU under a loss scale, where a copy of the rounded weight tells
            whether it was changed) and loses every change below half a unit in the last place.

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
            state = self.inner.create_state_multi_precision(index, to_float32(weight))
            return MasterState(None, state)
        master = new_master(weight, param)
        return self.create_state_of_master(index, master)

    def create_state_of_master(self, index: int, master: mx.nd.NDArray) -> MasterState:
        """Return the state of a low precision weight whose float32 value is given; it is kept, not copied."""
        return MasterState(master, self.inner.create_state_multi_precision(index, master))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Update one weight, or a list of weights of one dtype, in place.

        Args:
            index: The parameter's index, or a list of them.
            weight: The weight or weights.
            grad: The gradient or gradients; of a low precision weight, float32 or its dtype.
            state: What `create_state_multi_precision` returned, for each.
        """
        many = isinstance(index, (list, tuple))
        indices, weights, states = (each if many else [each] for each in (index, weight, state))
        low = is_low_precision(weights[0])
        for number, found in zip(indices, states):
            if isinstance(found, MasterState) != low:
                raise self._cast_after_state(number)
        if not low:
            self.inner.update_multi_precision(index, weight, grad, state)
            return
        wide = [self.wide(*each) for each in zip(indices, weights, states)]
        inner_states = [each.inner for each in states]
        if many:
            self.inner.update_multi_precision(index, wide, [to_float32(each) for each in grad], inner_states)
        else:
            self.inner.update_multi_precision(index, wide[0], to_float32(grad), inner_states[0])
        for source, each, found in zip(wide, weights, states):
            self.round(source, each, found)

    def check_states(self, weights: Iterable[Tuple[int, mx.nd.NDArray, Any]]) -> None:
        """Raise if a weight's state was made for another dtype, before anything is updated.

        Args:
            weights: (index, weight, its state or None) of each.

        Raises:
            TrainerError: Naming the first such parameter.
        """
        for index, weight, state in weights:
            if state is not None and isinstance(state, MasterState) != is_low_precision(weight):
                raise self._cast_after_state(index)

    def share_master(self, index: int, weight: mx.nd.NDArray, state: MasterState) -> Optional[mx.nd.NDArray]:
        """Return the master of a weight, on its context and shared by all who have the parameter; None without one."""
        if state.master is None:
            return None
        if state.master.ctx != weight.ctx:  # where a kvstore or a loaded file differ
            state.master = state.master.as_in_context(weight.ctx)
            state.inner = mx.optimizer.Updater(self.inner).sync_state_context(state.inner, weight.ctx)
        param = self.inner.param_dict.get(index)
        if param is not None:
            state.master = shared_master(state.master, weight, param)
        return state.master

    def wide(self, index: int, weight: mx.nd.NDArray, state: MasterState) -> mx.nd.NDArray:
        """Return what the inner optimizer updates: the master, shared and brought up to date, or a copy."""
        master = self.share_master(index, weight, state)
        if master is None:
            return to_float32(weight)
        if not state.last_rounded.is_still(master):
            sync_master_from_weight(master, weight)
        return master

    def round(self, wide: mx.nd.NDArray, weight: mx.nd.NDArray, state: MasterState) -> None:
        """Round what the inner optimizer has updated, which `wide` returned, into its weight."""
        round_into(wide, weight)
        if state.master is not None:
            state.last_rounded.set(wide, weight)

    def _cast_after_state(self, index: int) -> TrainerError:
        param = self.inner.param_dict.get(index)
        return TrainerError(
            f"parameter {repr(param.name) if param else index} changed its dtype after its optimizer "
            "state was made; cast the network first, then create the trainer."
        )

    # What MXNet's base class would do itself, but the inner class may have overridden.

    @property
    def learning_rate(self) -> float:
        """The present learning rate."""
        return float(self.inner.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate."""
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
