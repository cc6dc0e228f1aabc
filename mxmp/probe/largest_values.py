"""A graph that gives, beside its outputs, the largest magnitude of each of its tensors: one number for each."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import mxnet as mx

from .. import dtypes
from ..mxnet_private.arrays import NumpySymbol


class LargestValues:
    """An operator that runs a network's graph and keeps the largest magnitudes that its tensors have had.

    They are reduced where the network runs, so that no activation outlives its readers or comes to the host.

    Attributes:
        found: By the name of an output or input: the largest magnitude among its finite values so far, 0 if there was
            none.
    """

    def __init__(self, symbol: Any, without: Any) -> None:
        """Build the operator; ``without`` has the names of variables that are not looked at."""
        as_numpy = isinstance(symbol, NumpySymbol)
        plain = symbol.as_nd_ndarray() if as_numpy else symbol
        internals = plain.get_internals()
        names = internals.list_outputs()
        watched = [number for number, name in enumerate(names) if name not in without]
        self.found: Dict[str, float] = {names[number]: 0.0 for number in watched}
        self._names = [names[number] for number in watched]
        group = mx.sym.Group([plain, *(_largest(internals[number]) for number in watched)])
        running = group.as_np_ndarray() if as_numpy else group
        self.inputs: List[str] = running.list_inputs()
        self._run = mx.nd.CachedOp(running)  # an executor would fuse operators with oneDNN, and hide what they give

    def __call__(self, values: Mapping[str, Any]) -> List[Any]:
        """Return the network's outputs, for a value of each variable; waits for the magnitudes."""
        outputs, largest = self._split(self._run(*[values[name] for name in self.inputs]))
        for name, array in zip(self._names, largest):
            self.found[name] = max(self.found[name], float(array.asnumpy().reshape(-1)[0]))
        return outputs

    def _split(self, results: Any) -> Tuple[List[Any], List[Any]]:
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        count = len(results) - len(self._names)
        return results[:count], results[count:]


def _largest(tensor: Any) -> Any:
    """Return the largest magnitude among the finite values of a tensor, of any dtype."""
    size = mx.sym.abs(mx.sym.cast(tensor, dtype=dtypes.FLOAT32))
    return mx.sym.max(mx.sym.where(size * 0 == 0, size, mx.sym.zeros_like(size)))
