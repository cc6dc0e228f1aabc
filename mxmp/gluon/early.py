"""A net as it is traced and converted before its first call, and what of that a call can take over."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from ..arrays.write_counts import can_count
from ..graph import Graph, same_but_for_versions
from ..mxnet_private import NumpySymbol, blocks
from ..passes.find_folds import Sources, folds_depend_on_shapes
from ..policy import Policy
from ..symbol import Converted, to_graph
from ..symbol.again import for_shapes
from ..symbol.for_inference import folded_names, folded_shapes
from ..symbol.inference import Dtypes, Shapes, infer_later, json_of
from ..symbol.rewrite import ShapeOutcomes
from .inference_graph import InferenceGraph
from .shapes import guess_shapes, known_shapes
from .storage import contexts_of

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
    """A net's symbol with its JSON, which is read when its graph is first asked for."""

    def __init__(self, symbol: Any) -> None:
        """Take the symbol."""
        self.symbol = symbol
        self.text = json_of(symbol)
        self._graph: Optional[Graph] = None

    @property
    def graph(self) -> Graph:
        """The graph of the symbol."""
        if self._graph is None:
            self._graph = to_graph(self.symbol, self.text)
        return self._graph

    def inputs(self, params: Iterable[str]) -> FrozenSet[str]:
        """Return the names of the variables that are no parameters, given the names of these."""
        return frozenset(node.name for node in self.graph.nodes if node.is_variable).difference(params)

    def repeats(self, other: Trace) -> bool:
        """Return whether this gave the same as another trace but for versions; its graph is taken over then."""
        kinds = isinstance(self.symbol, NumpySymbol), isinstance(other.symbol, NumpySymbol)
        if kinds[0] != kinds[1] or not same_but_for_versions(self.text, other.text):
            return False
        self._graph = other.graph
        return True


@dataclass(frozen=True)
class EarlyGraph:
    """A conversion before the first call.

    A call traces the net anew, since what it does may have changed. Where that gives the same as before, and the shapes
    of its inputs change no verdict and no placement, the conversion is the one that the call needs.

    Attributes:
        trace: What was traced.
        converted: Its conversion, for inputs of unknown shape, or of guessed ones where sizes place casts.
        storage: How parameters were stored.
        unfolded: Which BatchNorms it leaves where the others are folded; None if none is.
        outcomes: Evaluates the conditions on shapes.
        outcome: What these gave.
        ready: What infers on a CPU, of the same graph; None where the net may run elsewhere, or shapes may change it
            otherwise than by layouts.
    """

    trace: Trace
    converted: Converted
    storage: Storage
    unfolded: Unfolded
    outcomes: ShapeOutcomes
    outcome: Tuple[Any, ...]
    ready: Optional[InferenceGraph]

    @classmethod
    def of(
        cls,
        net: gluon.HybridBlock,
        trace: Trace,
        converted: Converted,
        params: Mapping[str, gluon.Parameter],
        storage: Storage,
        unfolded: Unfolded,
        convert: Callable[[Shapes], Converted],
    ) -> Optional[EarlyGraph]:
        """Return what a call can take over, None if that is nothing.

        Args:
            net: The net.
            trace: What it was traced to.
            converted: The conversion for inputs of unknown shape.
            params: The parameters that the graph reads, by name.
            storage: How they are stored.
            unfolded: Which BatchNorms it leaves where the others are folded; None if none is.
            convert: Converts the same for inputs of some shapes.
        """
        removed = converted.decisions.removed
        if not converted.decisions.plan.steady or (removed.before and folds_depend_on_shapes(removed.before)):
            return None
        dtype = converted.decisions.policy.compute_dtype
        outcomes = ShapeOutcomes(trace.symbol, dtype, {}, storage.storable, trace.graph)
        depends = outcomes.depends or not converted.decisions.plan.placement.settled or bool(converted.extents)
        known = known_shapes(guess_shapes(trace.symbol, trace.graph, params) if depends else {}, params)
        outcome = outcomes(known)
        sized: Optional[Converted] = converted
        if known:
            sized = _for_shapes(converted, known) if outcome == outcomes({}) else None
        if sized is None:
            converted = sized = convert(known)
            if not converted.decisions.plan.steady:  # other verdicts than for unknown shapes
                return None
        return cls(trace, converted, storage, unfolded, outcomes, outcome, _inference_graph(net, sized))

    def converted_for(
        self,
        policy: Policy,
        shapes: Shapes,
        types: Dtypes,
        params: Mapping[str, Any],
        storage: Storage,
    ) -> Optional[Converted]:
        """Return the conversion for a call that is traced to the same graph, None if it has to be converted anew.

        Args:
            policy: The policy.
            shapes: Shapes of inputs and parameters.
            types: Dtypes of the inputs.
            params: The parameters that the graph reads, by name.
            storage: How parameters are stored now.
        """
        same_policy = policy == self.converted.decisions.policy
        if not same_policy or not self._infers_like(types, params) or not self._stores_like(storage):
            return None
        if self.outcomes.depends and self.outcomes(shapes) != self.outcome:
            return None
        return _for_shapes(self.converted, shapes)

    def _infers_like(self, types: Dtypes, params: Mapping[str, Any]) -> bool:
        """Return whether all inputs that are used have the dtypes that they were given when they were not known."""
        before = self.converted.decisions
        found = before.facts.variable_dtypes(before.before)
        ours = params.keys() | folded_names(self.converted.folds)
        return all(types.get(name) == dtype for name, dtype in found.items() if name not in ours)

    def _stores_like(self, storage: Storage) -> bool:
        """Return whether parameters are stored as before, or as the conversion wants it."""
        folded = folded_names(self.converted.folds)
        now, before = storage.without(folded), self.storage.without(folded)
        return now.storable == before.storable and before.stored <= now.stored <= self.converted.low_params


def _for_shapes(converted: Converted, shapes: Shapes) -> Optional[Converted]:
    """Return what a conversion for inputs of unknown shape is for shapes of the net's inputs and parameters.

    None if casts have to be placed elsewhere.
    """
    found = for_shapes(converted, folded_shapes(converted.folds, converted.decisions.before, shapes))
    removed = converted.decisions.removed
    if found is None or removed.before is None:
        return found
    return found.noting(removed._replace(facts=infer_later(removed.before, removed.facts, shapes)))


def _inference_graph(net: gluon.HybridBlock, converted: Converted) -> Optional[InferenceGraph]:
    """Return the graph that a net will run if its parameters stay where they are, on CPUs.

    None where they are not known to be there, or may go to a GPU: to emulate loads or builds a library.
    """
    params = blocks.collected_params(net)
    kinds = {context.device_type for context in contexts_of(params.values())}
    if not kinds or "gpu" in kinds or mx.runtime.Features().is_enabled("CUDA") or not can_count():
        return None
    return InferenceGraph.early(converted, params, bool(blocks.backend(net)))


def trace_early(net: gluon.HybridBlock) -> Optional[Any]:
    """Return the net's symbol for inputs that its signature suggests, None where it cannot be traced like this.

    A guess: it reports errors before the first batch, and is compared with what the first batch is traced to.
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
