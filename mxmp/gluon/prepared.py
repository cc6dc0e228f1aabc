"""Values that a converted net computes from its parameters alone, kept for as long as no parameter changes."""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

import mxnet as mx
from mxnet import gluon
from mxnet.ndarray import CachedOp

from ..arrays.casts import to_float32
from ..arrays.write_counts import WriteCount, write_count
from ..mxnet_private import parameters
from ..passes.fold_batchnorm import Fold
from ..symbol.for_inference import fold_params


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
    BatchNorm is folded first, then a graph of casts runs on what that gives.
    """

    def __init__(self, params: Mapping[str, gluon.Parameter], folds: Sequence[Fold] = ()) -> None:
        """Take the net's parameters by name, and what is folded."""
        self.params: List[PreparedParam] = []
        self._net_params = params
        self._folds = folds
        self._watched: List[str] = []
        self._op: Optional[CachedOp] = None
        self._op_inputs: List[str] = []
        self._op_outputs: List[str] = []
        self._sources: Dict[mx.Context, List[_Source]] = {}

    def give(self, names: Iterable[str]) -> None:
        """Keep values under these names: folded parameters, or outputs of the graph of casts."""
        self.params.extend(map(PreparedParam, names))

    def cast_by(self, symbol: Any, names: Sequence[str]) -> None:
        """Take the graph of casts, and keep its outputs under these names."""
        self._op, self._op_inputs, self._op_outputs = CachedOp(symbol), symbol.list_inputs(), list(names)
        self.give(names)

    def watch(self, names: Iterable[str]) -> None:
        """Take changes of these parameters of the net for changes too."""
        self._watched.extend(names)

    def refresh(self) -> bool:
        """Compute the values on the current context unless they are current; return whether there were others."""
        ctx = mx.context.current_context()
        before = self._sources.get(ctx)
        if before is not None and all(source.is_current for source in before):
            return False
        arrays = {name: self._net_params[name].data(ctx) for name in self.inputs}
        self._sources[ctx] = [_source(self._net_params[name], array) for name, array in arrays.items()]
        values = self._computed(arrays)
        for param in self.params:
            param.values[ctx] = values[param.name]
        return before is not None

    @functools.cached_property
    def inputs(self) -> List[str]:
        """The names of the net's parameters that values are computed from."""
        folded = {name for fold in self._folds for name in (fold.weight, fold.bias)}
        names = [name for fold in self._folds for name in fold.sources.params]
        return list(dict.fromkeys([*names, *self._watched, *(name for name in self._op_inputs if name not in folded)]))

    def _computed(self, arrays: Dict[str, mx.nd.NDArray]) -> Dict[str, mx.nd.NDArray]:
        known = {**arrays, **fold_params(self._folds, {name: to_float32(array) for name, array in arrays.items()})}
        if self._op is not None:
            outputs = self._op(*(known[name] for name in self._op_inputs))
            known.update(zip(self._op_outputs, outputs if isinstance(outputs, (list, tuple)) else [outputs]))
        return known

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
