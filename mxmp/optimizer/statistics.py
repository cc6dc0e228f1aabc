"""Running statistics: what BatchNorm and its like keep, which a forward pass that overflows destroys."""

from __future__ import annotations

import logging
from typing import Dict, Sequence, Tuple

import mxnet as mx

from ..errors import NonFiniteLossError
from .finite import all_finite, first_non_finite

_LOG = logging.getLogger(__name__)

Named = Sequence[Tuple[str, mx.nd.NDArray]]


class Statistics:
    """A copy of the statistics as they were after the last step that was taken.

    The forward pass writes them before anybody knows that it overflowed. Where they are not finite
    after a skipped step, the copy is put back; nothing else could ever mend them, since each new
    value is an average with the old one.
    """

    def __init__(self) -> None:
        self._kept: Dict[Tuple[str, mx.Context], mx.nd.NDArray] = {}

    def keep(self, named: Named) -> None:
        """Copy the statistics; no host read.

        Args:
            named: Their names and arrays, each name once on a context.
        """
        with mx.autograd.pause():
            for name, array in named:
                copy = self._kept.get((name, array.ctx))
                if copy is None:
                    self._kept[name, array.ctx] = array.copy()
                else:
                    array.copyto(copy)

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
        if any((name, array.ctx) not in self._kept for name, array in named):
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
            for name, array in named:
                self._kept[name, array.ctx].copyto(array)
