"""Traces of nets: their symbols, for the inputs of a call or before any, and how parameters are stored."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..graph import Graph
from ..mxnet_private import blocks
from ..passes.fold import Sources
from ..symbol import to_graph

Shape = Tuple[int, ...]

Unfolded = Optional[FrozenSet[Sources]]
"""The folds that a graph does without, since their values are out of range; None for a graph without any."""


class Storage(NamedTuple):
    """Which of a net's parameters a conversion may store in low precision, and which are stored so already."""

    storable: FrozenSet[str]
    stored: FrozenSet[str]

    def without(self, names: FrozenSet[str]) -> Storage:
        """Return the same for the other parameters."""
        return Storage(self.storable - names, self.stored - names)


class Trace:
    """A net's symbol and its graph."""

    def __init__(self, symbol: Any) -> None:
        """Take the symbol."""
        self.symbol = symbol

    @functools.cached_property
    def graph(self) -> Graph:
        """The graph of the symbol."""
        return to_graph(self.symbol)

    def inputs(self, params: Iterable[str]) -> FrozenSet[str]:
        """Return the names of the variables that are no parameters, given the names of these."""
        return frozenset(node.name for node in self.graph.nodes if node.is_variable).difference(params)


def known_shapes(inputs: Mapping[str, Shape], params: Mapping[str, Any]) -> Dict[str, Shape]:
    """Return the shapes of inputs and parameters; none where those of the inputs are not known."""
    if not inputs:
        return {}
    known = {name: p.shape for name, p in params.items() if p.shape and all(size > 0 for size in p.shape)}
    return {**known, **inputs}


def trace_before_call(net: gluon.HybridBlock) -> Optional[Any]:
    """Return the net's symbol for inputs that its signature suggests, None where it cannot be traced like this.

    A guess: it reports errors before the first batch.
    """
    if isinstance(net, gluon.SymbolBlock):
        return blocks.cached_graph(net)[1]
    count = _input_count(net)
    names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    inputs = [mx.sym.var(name) for name in names]
    if mx.util.is_np_array():
        inputs = [symbol.as_np_ndarray() for symbol in inputs]
    try:
        params = {name: param.var() for name, param in blocks.registered_params(net).items()}
        with net.name_scope():
            out = type(net).hybrid_forward(net, mx.sym, *inputs, **params)
        outputs, _ = blocks.flatten(out, "output")
        return mx.sym.Group(outputs, type(outputs[0]))
    except Exception:
        return None


def _input_count(net: gluon.HybridBlock) -> int:
    own = blocks.registered_params(net)
    parameters: List[inspect.Parameter] = list(inspect.signature(type(net).hybrid_forward).parameters.values())[2:]
    inputs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty and p.name not in own]
    return max(1, len(inputs))
