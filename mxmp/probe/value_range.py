"""What is known of the values of an array: a few numbers, computed where it lies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Sequence

import mxnet as mx
from mxnet import autograd

_LARGEST = 3.4028234663852886e38  # of float32: stands for no finite value at all


@dataclass(frozen=True)
class ValueRange:
    """The values of one tensor.

    Attributes:
        name: What it is called: the name of an output, an input or a parameter.
        size: How many elements it has.
        nans: How many are NaN.
        infs: How many are inf or -inf.
        smallest: The smallest finite value; 0 if there is none.
        largest: The largest finite value; 0 if there is none.
    """

    name: str
    size: int
    nans: int
    infs: int
    smallest: float
    largest: float

    @property
    def bad(self) -> int:
        """How many elements are inf or NaN."""
        return self.nans + self.infs

    @property
    def magnitude(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.smallest), abs(self.largest))

    @property
    def what(self) -> str:
        """'inf', 'NaN', 'inf and NaN', or 'finite values'."""
        kinds = [kind for kind, count in (("inf", self.infs), ("NaN", self.nans)) if count]
        return " and ".join(kinds) or "finite values"

    def times(self, factor: float) -> ValueRange:
        """Return the range of the values times a positive factor."""
        return replace(self, smallest=self.smallest * factor, largest=self.largest * factor)

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data."""
        return asdict(self)


def summarize(F: Any, x: Any) -> Any:
    """Return four numbers about an array or symbol, in float32: how many are inf or NaN, how many NaN, the finite ends.

    Counts of 0 are exact for arrays of any size.
    """
    x = F.BlockGrad(F.cast(x, dtype="float32"))
    product, zeros = x * 0, F.zeros_like(x)
    is_finite = product == 0
    smallest = F.min(F.where(is_finite, x, zeros + _LARGEST))
    largest = F.max(F.where(is_finite, x, zeros - _LARGEST))
    return F.stack(F.sum(product != 0), F.sum(x != x), smallest, largest)


class Summaries:
    """Sums up arrays that are not in a graph."""

    def __init__(self) -> None:
        self._operator = mx.nd.CachedOp(summarize(mx.sym, mx.sym.var("x")))

    def __call__(self, arrays: Sequence[Any]) -> List[Any]:
        """Return what `summarize` gives for each array; nothing is recorded."""
        with autograd.pause():
            return [self._operator(array.as_nd_ndarray()) for array in arrays]


def read_ranges(names: Sequence[str], sizes: Sequence[int], summaries: Sequence[mx.nd.NDArray]) -> List[ValueRange]:
    """Return what summaries of arrays of known sizes say, which all lie on one context, by one host read."""
    if not summaries:
        return []
    rows = mx.nd.concat(*[each.as_nd_ndarray() for each in summaries], dim=0).asnumpy().reshape(-1, 4).tolist()
    found = []
    for name, size, (bad, nans, low, high) in zip(names, sizes, rows):
        low, high = (low, high) if low <= high else (0.0, 0.0)
        found.append(ValueRange(name, max(size, round(bad)), round(nans), round(bad - nans), low, high))
    return found


def ranges_of(arrays: Dict[str, Any]) -> List[ValueRange]:
    """Return the ranges of arrays by name, all on one context."""
    sizes = [array.size for array in arrays.values()]
    return read_ranges(list(arrays), sizes, Summaries()(list(arrays.values())))
