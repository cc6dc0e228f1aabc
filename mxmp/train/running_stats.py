"""Running statistics: what BatchNorm and its like keep, which a forward pass that overflows destroys."""

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

Named = Sequence[Tuple[str, mx.nd.NDArray]]


class _Group(NamedTuple):
    """Statistics of one context and dtype as views of one dimension; the key is context, dtype and names."""

    key: Tuple[mx.Context, str, Tuple[str, ...]]
    names: Sequence[str]
    arrays: List[mx.nd.NDArray]


class _Joined:
    """The last finite values of a group, element by element: of any dtype, and where some never were finite."""

    def __init__(self, group: _Group) -> None:
        self.values = _joined(group)

    def keep(self, group: _Group) -> None:
        """Copy every element that is finite."""
        values = _joined(group)
        mx.nd.where(_finite(values), values, self.values, out=self.values)

    def check(self, group: _Group, after: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a flag that is 1 unless something was finite and is not any more, or was NaN from the beginning."""
        lost = mx.nd.maximum(_finite(self.values) > _finite(_joined(group, after)), self.values != self.values)
        return _is_nowhere(lost)


class _Copied:
    """The same for float32 values that were all finite when they were seen first, in as few operators as can be."""

    def __init__(self, group: _Group) -> None:
        self._copy = mx.nd.empty((sum(array.size for array in group.arrays),), ctx=group.arrays[0].ctx)
        self._parts = views(self._copy, group.arrays)
        copy_all(group.arrays, self._parts)
        self.values = self._copy.copy()

    def keep(self, group: _Group) -> None:
        """Copy every element that is finite."""
        copy_all(group.arrays, self._parts)  # an inf is NaN in the copy
        mx.nd.where(self._copy == self._copy, self._copy, self.values, out=self.values)

    def check(self, group: _Group, after: mx.nd.NDArray) -> mx.nd.NDArray:
        """Return a flag that is 1 if all is finite."""
        return all_finite([*group.arrays, after.as_in_context(self.values.ctx)])


class RunningStats:
    """The last finite values of running statistics, to put back what a forward pass destroyed.

    They are written before anybody knows that the pass overflowed: by forward on a GPU, by backward on a CPU; and an
    average with a NaN is NaN for ever. What was never finite, such as a mask of -inf, is left alone.
    """

    def __init__(self) -> None:
        # One array for all of a group: a copy of each would cost as much as they are many.
        self._kept: Dict[object, Union[_Joined, _Copied]] = {}
        self._seen: Tuple[List[mx.nd.NDArray], List[_Group]] = [], []
        self._put_back = 0  # how often

    def keep(self, named: Named) -> None:
        """Copy every element that is finite; to be called before a backward pass.

        No host read, but for one on a GPU where statistics are seen the first time.
        """
        with mx.autograd.pause():
            for group in self._groups(named):
                kept = self._kept.get(group.key)
                if kept is None:
                    self._kept[group.key] = _Copied(group) if _fits_copied(group) else _Joined(group)
                else:
                    kept.keep(group)

    def check(self, named: Named, after: mx.nd.NDArray) -> Optional[mx.nd.NDArray]:
        """Return a flag that is 1 unless something was finite and is not any more, None without statistics.

        Shape (1,), float32, on a device; no host read. ``after`` is a finite number that was made of all gradients,
        shape (1,), float32: what reads it comes after backward, which MXNet's engine takes for a reader of statistics
        and not for the writer that it is (BatchNormBackward in src/operator/nn/batch_norm.cc at tag 1.9.1).
        """
        flags = []
        with mx.autograd.pause():
            for group in self._groups(named):
                kept = self._kept.get(group.key)
                flags.append(_has_no_nan(group, after) if kept is None else kept.check(group, after))
            return merge_flags(flags) if flags else None

    def restore(self, named: Named) -> None:
        """Put back the statistics that are not finite and once were; reads them on the host.

        Raises NonFiniteLossError if there is a NaN where no finite value is known.
        """
        lost_names = []
        for group in self._groups(named):
            found = self._kept.get(group.key)
            kept = None if found is None else found.values
            start = 0
            for name, array in zip(group.names, group.arrays):
                end = start + array.size
                before = kept[start:end] if kept is not None else array
                with mx.autograd.pause():
                    lost = (_finite(before) > _finite(array)).asnumpy().any()
                if lost:
                    before.copyto(array)
                    lost_names.append(name)
                elif (before != before).asnumpy().any():
                    self._kept.pop(group.key, None)
                    raise NonFiniteLossError(
                        f"the running statistics '{name}' are NaN: a forward pass met NaN or inf before the first "
                        "step. The weights are unchanged; initialize the statistics again, and look at the data: an "
                        "activation may exceed its dtype."
                    )
                start = end
        self._log(list(dict.fromkeys(lost_names)))

    def _log(self, names: List[str]) -> None:
        self._put_back += bool(names)
        if names and should_log(self._put_back):
            text = "%s not finite after a forward pass on NaN or inf, and put back; such passes so far: %d"
            _LOG.warning(text, ", ".join(map(repr, names)), self._put_back)

    def _groups(self, named: Named) -> List[_Group]:
        """Return the arrays by context and dtype; looked at again where they are others than the last time."""
        arrays, groups = self._seen
        if len(arrays) != len(named) or any(array is not other for array, (_, other) in zip(arrays, named)):
            found: Dict[Tuple[mx.Context, str], Tuple[List[str], List[mx.nd.NDArray]]] = {}
            for name, array in named:
                names, flat = found.setdefault((array.ctx, canonical(array.dtype)), ([], []))
                names.append(name)
                flat.append(array.as_nd_ndarray().reshape(-1))
            groups = [_Group((*place, tuple(names)), names, flat) for place, (names, flat) in found.items()]
            self._seen = [array for _, array in named], groups
        return groups


class UntrainedStats:
    """Warns once if the running statistics of a net that no trainer of mxmp trains are NaN: no step puts them back.

    They are read, on the host, only after a step was skipped, of whatever trainer.
    """

    def __init__(self) -> None:
        self._skips, self._is_told = Scaler.skips_of_all, False

    def check(self, name: str, params: Sequence[Any]) -> None:
        """Look at the statistics among a net's parameters if a step was skipped since the last time."""
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
    """Return whether `_Copied` is the better for a group, and can be used; a host read."""
    first = group.arrays[0]
    return bool(on_gpu(first) and first.dtype == np.float32 and all_finite(group.arrays).asscalar() == 1.0)


def _joined(group: _Group, after: Optional[mx.nd.NDArray] = None) -> mx.nd.NDArray:
    """Return all statistics in one array; read after a number is there, if one is given."""
    if after is not None:
        first = group.arrays[0]
        return mx.nd.concat(*group.arrays, after.as_in_context(first.ctx).astype(first.dtype, copy=False), dim=0)[:-1]
    return mx.nd.concat(*group.arrays, dim=0) if len(group.arrays) > 1 else group.arrays[0].copy()


def _finite(array: mx.nd.NDArray) -> mx.nd.NDArray:
    return array * 0 == 0


def _has_no_nan(group: _Group, after: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a flag for statistics that were never kept: an inf from the beginning may be meant, a NaN never is."""
    values = _joined(group, after)
    return _is_nowhere(values != values)


def _is_nowhere(mask: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a flag, shape (1,), that is 1 if no element of a mask is 1."""
    return (mx.nd.sum(mask.astype("float32")) == 0).reshape((1,))
