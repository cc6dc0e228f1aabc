"""Running statistics: what BatchNorm and its like keep, which a forward pass that overflows destroys."""

from __future__ import annotations

import logging
from typing import Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx

from ..dtypes import canonical
from ..errors import NonFiniteLossError
from .finite import all_finite, first_non_finite

_LOG = logging.getLogger(__name__)

Named = Sequence[Tuple[str, mx.nd.NDArray]]
_Place = Tuple[mx.Context, str]


class _Group(NamedTuple):
    """Statistics of one context and dtype.

    Attributes:
        place: Context and dtype.
        names: Their names.
        arrays: Views of one dimension.
    """

    place: _Place
    names: List[str]
    arrays: List[mx.nd.NDArray]


class Statistics:
    """A copy of the statistics as they were after the last step that was taken.

    The forward pass writes them before anybody knows that it overflowed. Where they are not finite
    after a skipped step, the copy is put back; nothing else could ever mend them, since each new
    value is an average with the old one.
    """

    def __init__(self) -> None:
        # By context and dtype; one array for all, since a copy of each would cost as much as they are many.
        self._kept: Dict[_Place, Tuple[List[str], mx.nd.NDArray]] = {}
        self._seen: Tuple[List[mx.nd.NDArray], List[_Group]] = [], []

    def keep(self, named: Named) -> None:
        """Copy the statistics; no host read.

        Args:
            named: Their names and arrays, each name once on a context.
        """
        with mx.autograd.pause():
            for group in self._groups(named):
                known, copy = self._kept.get(group.place, ([], None))
                if known == group.names:
                    mx.nd.concat(*group.arrays, dim=0, out=copy)
                else:
                    self._kept[group.place] = group.names, mx.nd.concat(*group.arrays, dim=0)

    def mend(self, named: Named, error: bool = True) -> None:
        """Put the copy back if the statistics are not finite; one host read.

        Args:
            named: As for `keep`.
            error: False where another error is under way.

        Raises:
            NonFiniteLossError: If there is no copy yet.
        """
        if not named or all_finite([array for _, array in named]).asscalar() == 1:
            return
        bad = first_non_finite(named)
        groups = self._groups(named)
        if any(self._kept.get(group.place, ([],))[0] != group.names for group in groups):
            if not error:
                return
            raise NonFiniteLossError(
                f"the running statistics '{bad}' are not finite: the forward pass overflowed before the first step "
                "that was taken. The weights are unchanged; initialize the statistics again, and look at the data: an "
                "activation may exceed its dtype."
            )
        _LOG.warning(
            "the running statistics '%s' are not finite after a skipped step, whose forward pass overflowed; those of "
            "the last step that was taken are put back",
            bad,
        )
        with mx.autograd.pause():
            for group in groups:
                start = 0
                for array in group.arrays:
                    self._kept[group.place][1][start : start + array.size].copyto(array)
                    start += array.size

    def _groups(self, named: Named) -> List[_Group]:
        """Return the arrays by context and dtype; looked at again where they are others than the last time."""
        arrays, groups = self._seen
        if len(arrays) != len(named) or any(array is not other for array, (_, other) in zip(arrays, named)):
            found: Dict[_Place, _Group] = {}
            for name, array in named:
                place = array.ctx, canonical(array.dtype)
                group = found.setdefault(place, _Group(place, [], []))
                group.names.append(name)
                group.arrays.append(_flat(array))
            groups = list(found.values())
            self._seen = [array for _, array in named], groups
        return groups


def _flat(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return a view of one dimension."""
    array = array.as_nd_ndarray()
    return array if array.ndim == 1 else array.reshape(-1)
