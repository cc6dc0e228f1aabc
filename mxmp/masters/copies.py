"""Float32 master copies of low precision weights: where they are kept, and how they follow a weight that was set."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import mxnet as mx

from ..arrays.casts import pieces, round_into, scratch, to_float32
from ..arrays.memory import same_bits
from ..mxnet_private import equal

_KEPT = "_mxmp_masters"


def sync_master_from_weight(master: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
    """Bring a float32 master up to date with its low precision weight, in place and without a host read.

    An element keeps its master while the master rounds to the weight. Where it does not, somebody changed
    the weight (``set_data``, ``load_parameters``, an edit in place), and the weight wins.
    """
    for part, low in zip(pieces(master), pieces(weight)):
        wide, rounded, same = scratch(low)
        mx.nd.amp_cast(low, dtype="float32", out=wide)
        round_into(part, rounded)
        # Compared in float32: float16 comparisons are 10 to 20 times slower on CPU.
        mx.nd.amp_cast(rounded, dtype="float32", out=same)
        equal(same, wide, out=same)
        mx.nd.where(same, part, wide, out=part)


class LastRounded:
    """What a master on a CPU was last rounded to: a copy, which tells whether its weight was changed since.

    Two passes over two bytes an element, where `sync_master_from_weight` casts three times and compares. But it waits
    for the weight: so somebody has to `look`, who knows that nothing is lost by it. Before, nothing is copied.
    """

    def __init__(self) -> None:
        self._wanted = False
        self._master: Optional[mx.nd.NDArray] = None
        self._copy: Optional[mx.nd.NDArray] = None
        self._unchanged = False

    def __reduce__(self) -> Tuple[type, Tuple[()]]:
        """Pickle and copy nothing: the other's first update looks at every element."""
        return type(self), ()

    def look(self, weight: mx.nd.NDArray) -> None:
        """Note whether a dense weight on a CPU, about to be updated, holds the bits of the copy; waits for it."""
        self._wanted = True
        self._unchanged = self._fits(weight) and same_bits(self._copy, weight)

    def is_still(self, master: mx.nd.NDArray) -> bool:
        """Return whether the last look has found what this master was last rounded to."""
        return self._unchanged and self._master is master

    def end_look(self) -> None:
        """Forget what was found: from now on the weight may change."""
        self._unchanged = False

    def set(self, master: mx.nd.NDArray, weight: mx.nd.NDArray) -> None:
        """Copy a weight that its master was just rounded into, if anybody looks."""
        if self._wanted:
            if not self._fits(weight):
                self._copy = mx.nd.empty(weight.shape, ctx=weight.ctx, dtype=weight.dtype)
            weight.copyto(self._copy)
            self._master = master

    def _fits(self, weight: mx.nd.NDArray) -> bool:
        copy = self._copy
        return copy is not None and copy.shape == weight.shape and bool(copy.dtype == weight.dtype)


def keep_masters(param: mx.gluon.Parameter, masters: Sequence[mx.nd.NDArray]) -> None:
    """Keep the float32 value of a low precision parameter, for its optimizer and for saving it.

    There is an array for each context; they are not copied, and an optimizer updates them in place.
    """
    setattr(param, _KEPT, {array.ctx: array for array in masters})


def forget_masters(param: mx.gluon.Parameter, but: Optional[mx.Context] = None) -> None:
    """Forget the float32 value of a parameter, but for that on one context."""
    kept = _kept(param)
    for ctx in [ctx for ctx in kept if ctx != but]:
        del kept[ctx]


def new_master(weight: mx.nd.NDArray, param: Optional[mx.gluon.Parameter] = None) -> mx.nd.NDArray:
    """Return a float32 master for a low precision weight, equal to it when rounded (but for the sign of zero).

    The float32 value that ``param`` keeps becomes the master, in every element that still rounds to the weight;
    and the master is kept, so that all who ask for it share it.
    """
    if param is None:
        return to_float32(weight)
    if not _kept(param):  # on all contexts now: later, those that are updated first are no measure for the others
        keep_masters(param, [to_float32(data.as_nd_ndarray()) for data in param.list_data()])
    return shared_master(exact_value(weight, param), weight, param)


def shared_master(master: mx.nd.NDArray, weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return the one master of a weight: what its parameter keeps, else ``master``, which it keeps from now on."""
    kept = _kept(param).get(weight.ctx)
    if kept is not None and kept.shape == weight.shape:
        return kept
    if kept is None and _kept(param):  # set since, on the parameter's own contexts
        master = exact_value(weight, param)
    keep_masters(param, [*(array for ctx, array in _kept(param).items() if ctx != weight.ctx), master])
    return master


def keeps_masters(param: mx.gluon.Parameter) -> bool:
    """Return whether the float32 value of a parameter is kept."""
    return bool(_kept(param))


def exact_value(weight: mx.nd.NDArray, param: mx.gluon.Parameter) -> mx.nd.NDArray:
    """Return a weight in float32: its master where one is kept, brought up to date, else the weight as it is.

    On a context that lacks a master, a copy of another context's, where it rounds to the weight.
    """
    kept = _kept(param)
    if kept and weight.ctx not in kept:
        return _synced(next(iter(kept.values())).copyto(weight.ctx), weight)
    return _synced(kept.get(weight.ctx), weight)


def _synced(master: Optional[mx.nd.NDArray], weight: mx.nd.NDArray) -> mx.nd.NDArray:
    if master is None or master.shape != weight.shape:
        return to_float32(weight)
    sync_master_from_weight(master, weight)
    return master


def _kept(param: mx.gluon.Parameter) -> Dict[mx.Context, mx.nd.NDArray]:
    return getattr(param, _KEPT, {})


def copy_to_other_contexts(arrays: Sequence[mx.nd.NDArray], param: Optional[mx.gluon.Parameter] = None) -> None:
    """Give all contexts of a weight the value of the first, whose master is the only one that ``param`` keeps."""
    first, *others = arrays
    for other in others:
        first.copyto(other)
    if others and param is not None:
        forget_masters(param, but=first.ctx)
