"""Runs a graph forward and backward and looks at each output and each gradient: ranges, inf and NaN."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd

from .. import dtypes
from ..graph import Entry, Graph, Key, in_written_order
from ..passes import ScaleLoss
from ..passes.attributes import MARK_ATTR, SCALE_MARK
from ..passes.facts import Facts
from ..passes.scale_loss import is_loss_head
from ..report import Decisions
from .gradient_probes import Probed, add_probes
from .running import SCALE, Runner, Values, facts_of, runnable, values_on, zeros
from .value_range import Summaries, ValueRange, read_ranges, summarize

HeadGradients = Callable[[List[Any]], Optional[List[Any]]]
"""Gives the gradients of a graph's outputs, one each, for these; None where they are not known."""


@dataclass(frozen=True)
class Seen:
    """What a run of a graph has shown.

    Attributes:
        graph: The graph that ran, with casts.
        facts: What is known of it.
        forward: The values of its outputs by node and output.
        backward: Their gradients, those of variables that are trained included.
        outputs: The values of the network's outputs.
        head_gradients: The gradients that were given for them, None for an output without one; None if there was no
            backward.
    """

    graph: Graph
    facts: Facts
    forward: Mapping[Key, ValueRange]
    backward: Mapping[Key, ValueRange]
    outputs: Sequence[ValueRange]
    head_gradients: Optional[Sequence[Optional[ValueRange]]] = None

    @property
    def trained(self) -> List[ValueRange]:
        """The gradients of the variables that are trained."""
        return [found for key, found in self.backward.items() if self.graph.nodes[key[0]].is_variable]


@dataclass
class Looker:
    """A graph that was built to be looked at, for values of the shapes and dtypes that it was built for.

    Args:
        graph: The graph, converted or not.
        decisions: What was decided on the network that it comes from.
        context: Where it runs: float16 is emulated on a CPU.
        trained: Names of the variables whose gradients are wanted.
        training: Whether it runs in training mode.
        loss_heads: Names of Custom operators that are loss heads.
    """

    graph: Graph
    decisions: Decisions
    context: Any
    trained: FrozenSet[str]
    training: bool = True
    loss_heads: FrozenSet[str] = frozenset()
    _built: Optional[_Built] = field(default=None, init=False)

    def __call__(self, values: Mapping[str, Any], head_gradients: Optional[HeadGradients], scale: float = 1.0) -> Seen:
        """Run it once; gradients are those of the loss times ``scale``. Nothing that is given is changed."""
        with autograd.pause(), self.context:
            values = values_on(self.decisions, values, self.context)
            if self._built is None:
                self._built = _Built.of(self, values)
            return self._built.run(values, head_gradients, scale)


@dataclass
class _Built:
    graph: Graph
    facts: Facts
    probed: Probed
    keys: Sequence[Key]  # the outputs that are looked at
    runner: Runner
    looker: Looker
    summaries: Summaries = field(default_factory=Summaries)

    @classmethod
    def of(cls, looker: Looker, values: Values) -> _Built:
        graph, facts = looker.graph, facts_of(looker.graph, values)
        if any(is_loss_head(node) or node.name in looker.loss_heads for node in graph.nodes):
            known = looker.loss_heads & {node.name for node in graph.nodes}
            graph = in_written_order(ScaleLoss(facts, SCALE, frozenset(known))(graph).graph)
            values = {**values, SCALE: mx.nd.ones(1)}
            facts = facts_of(graph, values)
        probed = add_probes(graph, facts, dtypes.PRECISIONS, heads=True)
        keys = _looked_at(graph, facts)
        heads = (*probed.graph.heads, *(probed.places[key] for key in keys))
        watched = in_written_order(replace(probed.graph, heads=heads))
        given = {**values, **_zeros(probed, looker.context)}
        runs = runnable(watched, looker.decisions, given, looker.context, trains=True)
        count = len(graph.heads)
        outputs = [runs[number] for number in range(count + len(keys))]
        group = mx.sym.Group([*outputs[:count], *(summarize(mx.sym, each) for each in outputs)])
        return cls(graph, facts, probed, keys, Runner(group), looker)

    def run(self, values: Values, head_gradients: Optional[HeadGradients], scale: float) -> Seen:
        inputs = values_on(self.looker.decisions, values, self.looker.context, copied=True)
        probes = _zeros(self.probed, self.looker.context)
        trained = {name: inputs[name] for name in self.runner.names if name in self.looker.trained and name in inputs}
        for array in trained.values():
            array.attach_grad()
        with autograd.record(train_mode=self.looker.training):
            results = self.runner({SCALE: mx.nd.full((1,), scale), **inputs, **probes})
        count = len(self.graph.heads)
        heads, summaries = results[:count], results[count:]
        variables = {key: values[self.graph.nodes[key[0]].name] for key in self._variables(values)}
        given = None if head_gradients is None else head_gradients(heads)
        gradients = {} if given is None else _backward(heads, given, scale, probes, trained)
        seen: Dict[Any, Any] = {("output", number): each for number, each in enumerate(summaries[:count])}
        seen.update({("forward", key): each for key, each in zip(self.keys, summaries[count:])})
        others: Dict[Any, Any] = {("forward", key): array for key, array in variables.items()}
        others.update({("given", number): each for number, each in enumerate(given or ()) if each is not None})
        others.update({("backward", key): each for key, each in self._keyed(gradients).items()})
        seen.update(zip(others, self.summaries(list(others.values()))))
        sizes = [others[place].size if place in others else self._size(place) for place in seen]
        ranges = dict(zip(seen, read_ranges([self._name(place) for place in seen], sizes, list(seen.values()))))

        def of(kind: str) -> Dict[Any, ValueRange]:
            return {place: found for (each, place), found in ranges.items() if each == kind}

        heads_given = None if given is None else [of("given").get(number) for number in range(len(given))]
        return Seen(self.graph, self.facts, of("forward"), of("backward"), list(of("output").values()), heads_given)

    def _variables(self, values: Mapping[str, Any]) -> List[Key]:
        nodes = self.graph.nodes
        named = ((i, 0) for i, node in enumerate(nodes) if node.is_variable and node.name in values)
        return [key for key in named if dtypes.canonical(values[nodes[key[0]].name].dtype) in dtypes.PRECISIONS]

    def _keyed(self, gradients: Mapping[str, Any]) -> Dict[Key, Any]:
        places = {node.name: (i, 0) for i, node in enumerate(self.graph.nodes) if node.is_variable}
        probes = self.probed.probes
        return {probes[name].key if name in probes else places[name]: each for name, each in gradients.items()}

    def _name(self, place: Tuple[str, Any]) -> str:
        kind, where = place
        if kind in ("output", "given"):
            return self.graph.entry_name(self.graph.heads[where])
        return self.facts.output_names.get(where) or self.graph.nodes[where[0]].name

    def _size(self, place: Tuple[str, Any]) -> int:
        kind, where = place
        return self.facts.size(self.graph.heads[where] if kind == "output" else Entry(*where)) or 0


def _zeros(probed: Probed, ctx: Any) -> Dict[str, Any]:
    return zeros({name: probe.shape for name, probe in probed.probes.items()}, ctx)


def _looked_at(graph: Graph, facts: Facts) -> List[Key]:
    """Return the visible outputs of operators that hold numbers with a point."""
    keys = ((i, n) for i, node in enumerate(graph.nodes) if not node.is_variable for n in range(node.num_outputs))
    return [
        key
        for key in keys
        if facts.dtypes.get(key) in dtypes.PRECISIONS and graph.nodes[key[0]].get(MARK_ATTR) != SCALE_MARK
    ]


def _backward(
    heads: Sequence[Any], given: Sequence[Any], scale: float, probes: Mapping[str, Any], trained: Mapping[str, Any]
) -> Dict[str, Any]:
    """Run backward and return the gradients of all probes and trained variables by name."""
    pairs = [(head, each) for head, each in zip(heads, given) if each is not None]
    factors = [(each.as_nd_ndarray().astype("float32") * scale).astype(head.dtype) for head, each in pairs]
    autograd.backward([head for head, _ in pairs], factors)
    return {name: array.grad for name, array in (*probes.items(), *trained.items())}
