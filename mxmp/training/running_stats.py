"""Running statistics: what BatchNorm and its like keep, which a forward pass that overflows destroys."""

from __future__ import annotations

import logging
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.finite import merge_flags
from ..dtypes import canonical
from ..errors import NonFiniteLossError
from ..scaling.skips import worth_a_line

_LOG = logging.getLogger(__name__)

Named = Sequence[Tuple[str, mx.nd.NDArray]]


class _Group(NamedTuple):
    """Statistics of one context and dtype as views of one dimension; the key is context, dtype and names."""

    key: Tuple[mx.Context, str, Tuple[str, ...]]
    names: Sequence[str]
    arrays: List[mx.nd.NDArray]


class RunningStats:
    """The last finite values of running statistics, to put back what a forward pass destroyed.

    They are written before anybody knows that the pass overflowed, by forward or, as MXNet does on a
    CPU, by backward; and an average with a NaN is NaN for ever. What was never finite, such as a mask
    of -inf, is left alone.
    """

    def __init__(self) -> None:
        # One array for all of a group: a copy of each would cost as much as they are many.
        self._kept: Dict[object, mx.nd.NDArray] = {}
        self._seen: Tuple[List[mx.nd.NDArray], List[_Group]] = [], []
        self._put_back = 0  # how often

    def keep(self, named: Named) -> None:
        """Copy every element that is finite; to be called before a backward pass. No host read."""
        with mx.autograd.pause():
            for group in self._groups(named):
                values = _joined(group)
                kept = self._kept.setdefault(group.key, values)
                if kept is not values:
                    mx.nd.where(_finite(values), values, kept, out=kept)

    def check(self, named: Named) -> Optional[mx.nd.NDArray]:
        """Return a flag that is 1 unless something was finite and is not any more, None without statistics.

        To be called after backward. Shape (1,), float32, on a device; no host read.
        """
        flags = []
        with mx.autograd.pause():
            for group in self._groups(named):
                values, kept = _joined(group), self._kept.get(group.key)
                # An inf from the beginning may be meant, a NaN never is.
                lost = values != values if kept is None else _finite(kept) > _finite(values)
                lost = lost if kept is None else mx.nd.maximum(lost, kept != kept)
                flags.append((mx.nd.sum(lost.astype("float32")) == 0).reshape((1,)))
            return merge_flags(flags) if flags else None

    def restore(self, named: Named) -> None:
        """Put back the statistics that are not finite and once were; reads them on the host.

        Raises NonFiniteLossError if there is a NaN where no finite value is known.
        """
        lost_names = []
        for group in self._groups(named):
            kept = self._kept.get(group.key)
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
                        f"the running statistics '{name}' are NaN: a forward pass overflowed before the first step. "
                        "The weights are unchanged; initialize the statistics again, and look at the data: an "
                        "activation may exceed its dtype."
                    )
                start = end
        self._log(list(dict.fromkeys(lost_names)))

    def _log(self, names: List[str]) -> None:
        self._put_back += bool(names)
        if names and worth_a_line(self._put_back):
            text = "%s not finite after a forward pass that overflowed, and put back; such passes so far: %d"
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


def _joined(group: _Group) -> mx.nd.NDArray:
    return mx.nd.concat(*group.arrays, dim=0) if len(group.arrays) > 1 else group.arrays[0].copy()


def _finite(array: mx.nd.NDArray) -> mx.nd.NDArray:
    return array * 0 == 0
