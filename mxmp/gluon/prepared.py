"""Values that a converted net computes from its parameters alone, kept for as long as no parameter changes."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import mxnet as mx
from mxnet import gluon
from mxnet.ndarray import CachedOp

from ..arrays.write_counts import WriteCount, write_count
from ..mxnet_private import parameters


class PreparedParam(gluon.Parameter):
    """A parameter of a graph that is run, computed from those of the net; it is not one of the net's."""

    def __init__(self, name: str) -> None:
        super().__init__(name, grad_req="null")
        self.values: Dict[mx.Context, mx.nd.NDArray] = {}

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the value on a context, the current one if it is not given."""
        return self.values[ctx or mx.context.current_context()]


class _Source(NamedTuple):
    """The value of one parameter that others were computed from."""

    param: gluon.Parameter
    arrays: List[mx.nd.NDArray]  # the parameter's, one for each context
    index: int  # of this value among them
    count: Optional[WriteCount]
    written: Optional[int]  # how often the value had been written

    @property
    def is_current(self) -> bool:
        """Whether the parameter still has this value, as far as can be told."""
        if self.count is None or parameters.arrays(self.param) is not self.arrays:
            return False
        return self.arrays[self.index] is self.count.array and self.count() == self.written


class PreparedParams:
    """What one graph computes from parameters alone, for each context.

    It is computed again when a parameter has been written or has other arrays; at each call where that cannot be told.
    """

    def __init__(self, symbol: Any, params: Dict[str, gluon.Parameter], names: Sequence[str]) -> None:
        """Take the symbol that computes the values, the parameters by name, and the names that the values get."""
        self.params = [PreparedParam(name) for name in names]
        self._op = CachedOp(symbol)
        self._inputs = [params[name] for name in symbol.list_inputs()]
        self._sources: Dict[mx.Context, List[_Source]] = {}

    def refresh(self) -> bool:
        """Compute the values on the current context anew unless they are current; return whether it was done."""
        ctx = mx.context.current_context()
        sources = self._sources.get(ctx)
        if sources is not None and all(source.is_current for source in sources):
            return False
        arrays = [param.data(ctx) for param in self._inputs]
        self._sources[ctx] = list(map(_source, self._inputs, arrays))
        values = self._op(*arrays)
        for param, value in zip(self.params, values if isinstance(values, (list, tuple)) else [values]):
            param.values[ctx] = value
        return True

    def forget(self) -> None:
        """Free the values; the next `refresh` computes them again."""
        self._sources.clear()
        for param in self.params:
            param.values.clear()


def _source(param: gluon.Parameter, array: mx.nd.NDArray) -> _Source:
    arrays = parameters.arrays(param)
    count = write_count(array)
    index = next(i for i, each in enumerate(arrays) if each is array)
    return _Source(param, arrays, index, count, count() if count is not None else None)
