"""Values that a converted net computes from its parameters alone, kept for as long as no parameter changes."""

from __future__ import annotations

import functools
from typing import AbstractSet, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set

import mxnet as mx
from mxnet import gluon
from mxnet.ndarray import CachedOp

from ..arrays import to_float32
from ..dtypes import FLOAT32, limits
from ..errors import MxmpError
from ..mxnet_private import parameters
from ..passes.fold import Fold
from ..symbol.for_inference import fold_params
from ..write_counts import UnwrittenArrays, write_count


class FoldRangeError(MxmpError):
    """Raised where folding gives values that the graph's dtypes do not have; the net then runs without these folds."""

    def __init__(self, folds: Sequence[Fold]) -> None:
        """Take the folds."""
        super().__init__(f"folded weights are out of range: {', '.join(fold.weight for fold in folds)}")
        self.sources = frozenset(fold.sources for fold in folds)


class PreparedParam(gluon.Parameter):
    """A parameter of a graph that is run, computed from those of the net; it is not one of the net's."""

    def __init__(self, name: str) -> None:
        super().__init__(name, grad_req="null")
        self.values: Dict[mx.Context, mx.nd.NDArray] = {}

    def data(self, ctx: Optional[mx.Context] = None) -> mx.nd.NDArray:
        """Return the value on a context, the current one if it is not given, where there must be one."""
        if ctx is None and len(self.values) == 1:  # to look the context up takes longer
            (value,) = self.values.values()
            return value
        return self.values[ctx or mx.context.current_context()]


class _Sources:
    """The values of parameters on one context that others are computed from."""

    def __init__(self, params: Sequence[gluon.Parameter], arrays: Sequence[mx.nd.NDArray]) -> None:
        self.arrays = arrays
        held = [each for each in zip(params, map(_place, params, arrays), arrays) if each[1] is not None]
        self._params, self._places, self._held = ([each[i] for each in held] for i in range(3))
        counts = [count for count in map(write_count, arrays) if count is not None]
        can_tell = len(counts) == len(held) == len(arrays)  # not of an array that a parameter computes at each call
        self._counts = UnwrittenArrays(counts) if can_tell else None

    def are_held(self) -> bool:
        """Return whether the parameters still have these arrays, those left out that they computed."""
        return parameters.have_arrays(self._params, self._places, self._held)

    def are_current(self) -> bool:
        """Return whether the parameters still have these values, as far as can be told."""
        return self._counts is not None and self.are_held() and self._counts.are_unwritten()


def _place(param: gluon.Parameter, array: mx.nd.NDArray) -> Optional[int]:
    """Return which of a parameter's arrays an array is; None if it was computed from it, as by weight dropout."""
    return next((i for i, each in enumerate(parameters.arrays(param)) if each is array), None)


class PreparedParams:
    """What one graph computes from parameters alone, for each context.

    It is computed again when a parameter has been written or has other arrays; at each call where that cannot be told.
    BatchNorm is folded first, then a symbol of casts runs on what that gives.
    """

    def __init__(self, params: Mapping[str, gluon.Parameter], folds: Sequence[Fold] = (), dtype: str = FLOAT32) -> None:
        """Take the net's parameters by name, what is folded, and the lowest dtype that the results are cast to."""
        self.params: List[PreparedParam] = []
        self._net_params = params
        self._folds = folds
        self._largest = limits(dtype).max
        self._watched: List[str] = []
        self._casts: Any = None  # the cached operator that casts
        self._cast_inputs: List[str] = []
        self._cast_names: List[str] = []
        self._sources: Dict[mx.Context, _Sources] = {}  # of values that are complete
        self._begun: Set[mx.Context] = set()  # where values were computed, or begun to be, at any time

    def give(self, names: Iterable[str]) -> None:
        """Keep values under these names: folded parameters, or outputs of the graph of casts."""
        self.params.extend(map(PreparedParam, names))

    def cast_by(self, symbol: Any, names: Sequence[str]) -> None:
        """Take the symbol that casts, and keep its outputs under these names."""
        self._casts, self._cast_inputs, self._cast_names = CachedOp(symbol), symbol.list_inputs(), list(names)
        self.give(names)

    def watch(self, names: Iterable[str]) -> None:
        """Take changes of these parameters of the net for changes too."""
        self._watched.extend(names)

    def is_current(self) -> bool:
        """Return whether the values on the current context are there, and no parameter has changed since."""
        sources = self._sources.get(mx.context.current_context())
        return sources is not None and sources.are_current()

    def had_values(self) -> bool:
        """Return whether values were computed on the current context before, or begun to be."""
        return mx.context.current_context() in self._begun

    def refresh(self) -> None:
        """Compute the values on the current context. If it is interrupted there are none.

        Raises:
            FoldRangeError: If there are folds that the net must do without.
        """
        ctx = mx.context.current_context()
        self._begun.add(ctx)
        self._sources.pop(ctx, None)
        self.forget_left()
        sources = self._sources_on(ctx)  # what is written from here on makes the values stale
        values = self._computed(dict(zip(self.inputs, sources.arrays)))
        for param in self.params:
            param.values[ctx] = values[param.name]
        self._sources[ctx] = sources

    def _sources_on(self, ctx: mx.Context) -> _Sources:
        params = [self._net_params[name] for name in self.inputs]
        return _Sources(params, [param.data(ctx) for param in params])

    @functools.cached_property
    def inputs(self) -> List[str]:
        """The names of the net's parameters that values are computed from."""
        folded = {name for fold in self._folds for name in (fold.weight, fold.bias)}
        names = [name for fold in self._folds for name in fold.sources.params]
        cast = (name for name in self._cast_inputs if name not in folded)
        return list(dict.fromkeys([*names, *self._watched, *cast]))

    def _computed(self, arrays: Dict[str, mx.nd.NDArray]) -> Dict[str, mx.nd.NDArray]:
        sources = {name for fold in self._folds for name in fold.sources.params}
        wide = {name: to_float32(arrays[name]) for name in sources}
        folded, beyond = fold_params(self._folds, wide, self._largest)
        if beyond:
            raise FoldRangeError(beyond)
        known = {**arrays, **folded}
        if self._casts is not None:
            results = self._casts(*(known[name] for name in self._cast_inputs))
            known.update(zip(self._cast_names, results if isinstance(results, list) else [results]))
        return known

    def forget(self) -> None:
        """Free the values; they are computed again when they are needed."""
        self._keep_only(frozenset())

    def forget_left(self) -> bool:
        """Free the values on contexts that parameters have left; return whether there are others, or were none."""
        held = frozenset(ctx for ctx, sources in list(self._sources.items()) if sources.are_held())
        had_any = bool(self._sources)
        self._keep_only(held)
        return bool(held) or not had_any

    def _keep_only(self, contexts: AbstractSet[mx.Context]) -> None:
        kept: List[Dict[mx.Context, Any]] = [self._sources, *(param.values for param in self.params)]
        for values in kept:  # what tells that there are values goes first
            for ctx in set(values) - contexts:
                values.pop(ctx, None)
