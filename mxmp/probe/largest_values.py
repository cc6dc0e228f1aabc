"""A graph that gives, beside its outputs, the largest magnitude of each of its tensors: one number for each."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Tuple

import mxnet as mx
import numpy as np

from .. import dtypes
from ..arrays import to_float32
from ..mxnet_private import NumpySymbol
from .running import in_float32


class LargestValues:
    """An operator that runs a network's graph in float32 and keeps the largest magnitudes that its tensors have had.

    They are reduced where the network runs, so that no activation outlives its readers or comes to the host.

    Attributes:
        found: By the name of an output or input: the largest magnitude among its finite values so far, 0 if there was
            none.
        nans: By the name of those that have held NaN: how many elements were NaN.
    """

    def __init__(self, symbol: Any, without: Any) -> None:
        """Build the operator; ``without`` has the names of variables that are not looked at."""
        self._as_numpy = isinstance(symbol, NumpySymbol)
        symbol = in_float32(symbol)
        self._symbol = symbol.as_nd_ndarray() if self._as_numpy else symbol
        self._internals = self._symbol.get_internals()
        names = self._internals.list_outputs()
        self._watched = [number for number, name in enumerate(names) if name not in without]
        self._names = [names[number] for number in self._watched]
        self.found: Dict[str, float] = dict.fromkeys(self._names, 0.0)
        self.nans: Dict[str, int] = {}
        self.inputs: List[str] = self._symbol.list_inputs()
        self._run = self._operator(_largest)

    def __call__(self, values: Mapping[str, Any]) -> List[Any]:
        """Return the network's outputs, for a value of each variable; waits for the magnitudes."""
        given = [to_float32(values[name]) for name in self.inputs]
        outputs, rows = self._split(self._run(*given))
        if not all(math.isfinite(size) for size, *_ in rows):
            self._run = self._operator(_largest_finite)  # for good: it costs more, and they will come again
            outputs, rows = self._split(self._run(*given))
        for name, (size, *nans) in zip(self._names, rows):
            self.found[name] = max(self.found[name], size)
            if any(nans):
                self.nans[name] = self.nans.get(name, 0) + round(nans[0])
        return outputs

    def _operator(self, reduce: Callable[[Any], Any]) -> Any:
        group = mx.sym.Group([self._symbol, *(reduce(self._internals[number]) for number in self._watched)])
        # An executor would fuse operators with oneDNN, and hide what they give.
        return mx.nd.CachedOp(group.as_np_ndarray() if self._as_numpy else group)

    def _split(self, results: Any) -> Tuple[List[Any], List[List[float]]]:
        """Return the network's outputs, and of each tensor what was reduced: a number, or two."""
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        count = len(results) - len(self._names)
        sizes = [array.reshape((-1,)).as_nd_ndarray() for array in results[count:]]
        values = mx.nd.concat(*sizes, dim=0).asnumpy() if sizes else np.zeros(0)
        return results[:count], values.reshape(len(self._names), -1).tolist() if sizes else []


def _largest(tensor: Any) -> Any:
    """Return the largest magnitude of a tensor of any dtype; what it is where one is not finite is not said."""
    return mx.sym.max(mx.sym.abs(mx.sym.cast(tensor, dtype=dtypes.FLOAT32)))


def _largest_finite(tensor: Any) -> Any:
    """Return the largest magnitude among the finite values of a tensor, of any dtype, and how many are NaN."""
    size = mx.sym.abs(mx.sym.cast(tensor, dtype=dtypes.FLOAT32))
    largest = mx.sym.max(mx.sym.where(size * 0 == 0, size, mx.sym.zeros_like(size)))
    return mx.sym.concat(largest.reshape((1,)), mx.sym.sum(size != size).reshape((1,)), dim=0)
