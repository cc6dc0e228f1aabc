"""What is known of the values of an array: a few numbers, computed where it lies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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

    def to_dict(self) -> Dict[str, Any]:
        """Return the fields as plain JSON data."""
        return asdict(self)


def summarize(F: Any, x: Any) -> Any:
    """Return five numbers about an array or symbol: NaNs, infs, smallest, largest and all; shape (5,), float32."""
    x = F.BlockGrad(F.cast(x, dtype="float32"))
    zeros = F.zeros_like(x)
    is_finite, is_nan = x * 0 == 0, x != x
    return F.concat(
        *[
            F.reshape(each, shape=(1,))
            for each in (
                F.sum(is_nan),
                F.sum(1 - is_finite) - F.sum(is_nan),
                F.min(F.where(is_finite, x, zeros + _LARGEST)),
                F.max(F.where(is_finite, x, zeros - _LARGEST)),
                F.sum(zeros + 1),
            )
        ],
        dim=0,
    )


class Summaries:
    """Sums up arrays that are not in a graph, as many at once as there are, by one operator for each count."""

    def __init__(self) -> None:
        self._operators: Dict[int, Any] = {}

    def __call__(self, arrays: Sequence[Any]) -> List[Any]:
        """Return what `summarize` gives for each array, all on one context; nothing is recorded."""
        count = len(arrays)
        if not count:
            return []
        if count not in self._operators:
            symbols = [summarize(mx.sym, mx.sym.var(f"array{number}")) for number in range(count)]
            self._operators[count] = mx.nd.CachedOp(mx.sym.Group(symbols))
        with autograd.pause():
            found = self._operators[count](*[array.as_nd_ndarray() for array in arrays])
        return list(found) if isinstance(found, (list, tuple)) else [found]


def read_ranges(names: Sequence[str], summaries: Sequence[mx.nd.NDArray]) -> List[ValueRange]:
    """Return what summaries say, which all lie on one context, by one host read."""
    if not summaries:
        return []
    rows = mx.nd.concat(*[each.as_nd_ndarray() for each in summaries], dim=0).asnumpy().reshape(-1, 5).tolist()
    found = []
    for name, (nans, infs, low, high, size) in zip(names, rows):
        low, high = (low, high) if low <= high else (0.0, 0.0)
        found.append(ValueRange(name, round(size), round(nans), round(infs), low, high))
    return found


def ranges_of(arrays: Dict[str, Any]) -> List[ValueRange]:
    """Return the ranges of arrays by name, all on one context."""
    return read_ranges(list(arrays), Summaries()(list(arrays.values())))
