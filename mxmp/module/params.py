"""The parameters of a module: float32 on the host, whatever executors hold, and the masters of low precision ones."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence

import mxnet as mx

from ..arrays import is_low_precision, to_float32
from ..mxnet_private import ModuleBase
from ..train.masters import follow, rounds_to, written_past
from .training import Training, Weight

_INITIALIZER = mx.init.Uniform(0.01)  # MXNet's default


class Float32Params(ModuleBase):
    """The parameters of a module whose executors may hold some in low precision; ``_arg_params`` is float32 for all."""

    _training: Optional[Training]

    def init_params(
        self,
        initializer: Any = _INITIALIZER,
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Initialize parameters in float32, as ``mx.mod.Module.init_params``.

        Where a call has nothing to do, as that of ``fit`` on a loaded module, it does not warn of it.
        """
        self._bound("init_params")
        applies = force_init or not self.params_initialized
        if not applies and arg_params is None and aux_params is None:
            return
        super().init_params(initializer, arg_params, aux_params, allow_missing, force_init, allow_extra)
        if applies:
            self._renew_masters(self.mx_arg_params)

    def set_params(
        self,
        arg_params: Any,
        aux_params: Any,
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters, float32 masters included, as ``mx.mod.Module.set_params``."""
        self._bound("set_params")
        applies = allow_missing and (force_init or not self.params_initialized)
        super().set_params(arg_params, aux_params, allow_missing, force_init, allow_extra)
        if applies:  # else init_params has done it
            for name in self._low_weights() & set(arg_params):
                arg_params[name].copyto(self.mx_arg_params[name])
            self._renew_masters(arg_params)

    def _weights(self) -> List[Weight]:
        """Return all parameters; the gradients of those that are not trained are None."""
        group = self.mx_exec_group
        grads = group.grad_arrays or [[None] * len(arrays) for arrays in group.param_arrays]
        adds = [group.grad_req.get(name) == "add" for name in group.param_names]
        return [Weight(*each) for each in zip(group.param_names, group.param_arrays, grads, adds)]

    def _trained(self) -> List[Weight]:
        return [weight for weight in self._weights() if weight.grads[0] is not None]

    def _low_weights(self) -> FrozenSet[str]:
        return frozenset(weight.name for weight in self._weights() if is_low_precision(weight.arrays[0]))

    def _renew_masters(self, values: Dict[str, mx.nd.NDArray]) -> None:
        """Make float32 values the masters of the weights that were rounded from them."""
        if self._training is None:
            return
        for weight in self._trained():
            if is_low_precision(weight.arrays[0]) and weight.name in values:
                self._training.set_master(weight, to_float32(values[weight.name]))

    def mx_sync_params_from_devices(self) -> None:
        """Bring the host's parameters up to date: the masters of low precision weights."""
        if self.mx_updates_on_kvstore:
            super().mx_sync_params_from_devices()
            return
        count = None if self._training is None else len(self._training.updaters)
        for weight in self._weights():
            exact = [self._exact(weight.name, number, array) for number, array in enumerate(weight.arrays[:count])]
            _store_mean(exact, self.mx_arg_params[weight.name])
        for name, arrays in zip(self.mx_exec_group.aux_names, self.mx_exec_group.aux_arrays):
            _store_mean(arrays, self.mx_aux_params[name])
        self.mx_params_dirty = False

    def _exact(self, name: str, number: int, array: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a weight's master; without one the host's value where that still rounds to it."""
        if not is_low_precision(array):
            return array
        master = self._training.master(name, number) if self._training is not None else None
        if master is None:
            master = self.mx_arg_params[name].copyto(array.ctx)
            follow(master, array)
        elif rounds_to(master, array).asscalar() != 1.0:
            raise written_past(f"parameter '{name}'")
        return master


def host_zeros(like: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return zeros for the host's value of a parameter: float32 where executors hold it in low precision."""
    return mx.nd.zeros(like.shape, dtype="float32" if is_low_precision(like) else like.dtype, stype=like.stype)


def _store_mean(arrays: Sequence[mx.nd.NDArray], out: mx.nd.NDArray) -> None:
    """Store the mean of the contexts' values, as MXNet does; of one context, its value."""
    if len(arrays) > 1:
        arrays = [sum(array.copyto(mx.cpu()) for array in arrays) / len(arrays)]
    arrays[0].astype(out.dtype).copyto(out)
