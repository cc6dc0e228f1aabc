"""Running statistics, such as BatchNorm's: copies of the last finite values, because an overflow destroys them."""

from __future__ import annotations

import logging
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np

from ..arrays import all_finite, copy_all, merge_flags, on_gpu, to_float32, views
from ..dtypes import canonical
from ..errors import NonFiniteLossError
from .scaler import Scaler, should_log

_LOG = logging.getLogger(__name__)

NamedArrays = Sequence[Tuple[str, mx.nd.NDArray]]


class _Group(NamedTuple):
    """Statistics of one context and dtype as views of one dimension; the key is context, dtype and names."""

    key: Tuple[mx.Context, str, Tuple[str, ...]]
    names: Sequence[str]
    arrays: List[mx.nd.NDArray]


class _AnyDtype:
    """The last finite values of a group, element by element, of any dtype. Some may never have been finite."""

    def __init__(self, group: _Group) -> None:
        self.values = _concat(group)

    def keep(self, group: _Group) -> None:
        """Copy every element that is finite."""
        values = _concat(group)
        mx.nd.where(_finite(values), values, self.values, out=self.values)

    def check(self, group: _Group, after: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a flag: 0 if an element was finite and is not any more, or was NaN from the beginning; else 1."""
        lost = mx.nd.maximum(_finite(self.values) > _finite(_concat(group, after)), self.values != self.values)
        return (mx.nd.sum(lost.astype("float32")) == 0).reshape((1,))


class _FiniteFloat32:
    """The same with the fewest operators, for float32 values that were all finite when they were seen first."""

    def __init__(self, group: _Group) -> None:
        self._copy = mx.nd.empty((sum(array.size for array in group.arrays),), ctx=group.arrays[0].ctx)
        self._parts = views(self._copy, group.arrays)
        copy_all(group.arrays, self._parts)
        self.values = self._copy.copy()

    def keep(self, group: _Group) -> None:
        """Copy every element that is finite."""
        copy_all(group.arrays, self._parts)  # Makes NaN of inf.
        mx.nd.where(self._copy == self._copy, self._copy, self.values, out=self.values)

    def check(self, group: _Group, after: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a flag: 1 if all elements are finite."""
        return all_finite([*group.arrays, after.as_in_context(self.values.ctx)])


class RunningStats:
    """The last finite values of running statistics, which replace values that a forward pass destroyed.

    Forward writes the statistics on a GPU, backward on a CPU. Both come before anybody knows that the pass overflowed,
    and an average with a NaN stays NaN. Elements that were never finite, such as a mask of -inf, are not replaced.
    """

    def __init__(self) -> None:
        # One array for a whole group, because a copy of each of many arrays costs more.
        self._kept: Dict[object, Union[_AnyDtype, _FiniteFloat32]] = {}
        self._seen: Tuple[List[mx.nd.NDArray], List[_Group]] = [], []
        self._put_back = 0  # how often

    def keep(self, named: NamedArrays) -> None:
        """Copy every element that is finite; to be called before a backward pass.

        On a GPU there is one host read when statistics are seen the first time; else there is none.
        """
        with mx.autograd.pause():
            for group in self._groups(named):
                kept = self._kept.get(group.key)
                if kept is None:
                    self._kept[group.key] = _FiniteFloat32(group) if _fits_copied(group) else _AnyDtype(group)
                else:
                    kept.keep(group)

    def check(self, named: NamedArrays, after: mx.nd.NDArray) -> Optional[mx.nd.NDArray]:
        """Return a flag, shape (1,), float32: 0 if an element was finite and is not any more; None without statistics.

        Nothing is read on the host. ``after``, shape (1,), float32, is a flag that was made of all gradients. The check
        reads it, so that it comes after backward. MXNet's engine does not know that backward writes statistics
        (BatchNormBackward in src/operator/nn/batch_norm.cc at tag 1.9.1).
        """
        groups = [group for group in self._groups(named) if group.key in self._kept]
        with mx.autograd.pause():
            return merge_flags([self._kept[group.key].check(group, after) for group in groups]) if groups else None

    def restore(self, named: NamedArrays) -> None:
        """Replace statistics that are not finite by their last finite values; reads them on the host.

        Raises NonFiniteLossError if there is a NaN without an earlier finite value.
        """
        lost_names = []
        for group in [group for group in self._groups(named) if group.key in self._kept]:
            kept = self._kept[group.key].values
            for name, array, before in zip(group.names, group.arrays, views(kept, group.arrays)):
                with mx.autograd.pause():
                    lost = (_finite(before) > _finite(array)).asnumpy().any()
                if lost:
                    before.copyto(array)
                    lost_names.append(name)
                elif (before != before).asnumpy().any():
                    raise NonFiniteLossError(
                        f"the running statistics '{name}' are NaN: a forward pass met NaN or inf before the first "
                        "step. The weights are unchanged; initialize the statistics again, and look at the data: an "
                        "activation may exceed its dtype."
                    )
        self._log(list(dict.fromkeys(lost_names)))

    def _log(self, names: List[str]) -> None:
        self._put_back += bool(names)
        if names and should_log(self._put_back):
            text = "%s not finite after a forward pass on NaN or inf, and put back; such passes so far: %d"
            _LOG.warning(text, ", ".join(map(repr, names)), self._put_back)

    def _groups(self, named: NamedArrays) -> List[_Group]:
        """Return the arrays in groups by context and dtype. The groups of the last call are kept."""
        arrays, groups = self._seen
        if len(arrays) != len(named) or any(array is not other for array, (_, other) in zip(arrays, named)):
            arrays_of: Dict[Tuple[mx.Context, str], Tuple[List[str], List[mx.nd.NDArray]]] = {}
            for name, array in named:
                names, flat = arrays_of.setdefault((array.ctx, canonical(array.dtype)), ([], []))
                names.append(name)
                flat.append(array.as_nd_ndarray().reshape(-1))
            groups = [_Group((*place, tuple(names)), names, flat) for place, (names, flat) in arrays_of.items()]
            self._seen = [array for _, array in named], groups
        return groups


class UntrainedStats:
    """Warns once if the running statistics of a net that no trainer of mxmp trains are NaN: no step puts them back.

    They are read, on the host, only after some trainer has skipped a step.
    """

    def __init__(self) -> None:
        self._skips, self._is_told = Scaler.skips_of_all, False

    def check(self, name: str, params: Sequence[Any]) -> None:
        """Check the statistics among a net's parameters if a step was skipped since the last check."""
        if self._is_told or self._skips == Scaler.skips_of_all:
            return
        self._skips = Scaler.skips_of_all
        stats = [param for param in params if not param._differentiable]
        arrays = [(param.name, data) for param in stats for data in param._data or ()]
        lost = dict.fromkeys(name for name, data in arrays if np.isnan(to_float32(data).asnumpy()).any())
        if lost:
            self._is_told = True
            text = (
                "block '%s': the running statistics %s are NaN. No trainer of mxmp trains this net, so no step puts "
                "them back. Load or initialize them again. Calls within `autograd.predict_mode()` do not change them."
            )
            _LOG.warning(text, name, ", ".join(map(repr, lost)))


def _fits_copied(group: _Group) -> bool:
    """Return whether a group can be a `_FiniteFloat32`, on a GPU; a host read."""
    first = group.arrays[0]
    return bool(on_gpu(first) and first.dtype == np.float32 and all_finite(group.arrays).asscalar() == 1.0)


def _concat(group: _Group, after: Optional[mx.nd.NDArray] = None) -> mx.nd.NDArray:
    """Return all statistics in one array, which depends on the number ``after`` if there is one."""
    if after is not None:
        first = group.arrays[0]
        return mx.nd.concat(*group.arrays, after.as_in_context(first.ctx).astype(first.dtype, copy=False), dim=0)[:-1]
    return mx.nd.concat(*group.arrays, dim=0) if len(group.arrays) > 1 else group.arrays[0].copy()


def _finite(array: mx.nd.NDArray) -> mx.nd.NDArray:
    return array * 0 == 0
