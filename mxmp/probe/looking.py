"""Runs a graph forward and backward and looks at each output and each gradient: ranges, inf and NaN."""

from __future__ import annotations

import math
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
from ..symbol import Converted
from ..symbol.inference import from_graph, infer_facts
from .gradient_probes import Probed, add_probes
from .value_range import Summaries, ValueRange, read_ranges, summarize

HeadGradients = Callable[[List[Any]], Optional[List[Any]]]
"""Gives the gradients of a graph's outputs, one each, for these; None where they are not known."""

SCALE = "loss_scale"


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
            values = {name: array.as_nd_ndarray().as_in_context(self.context) for name, array in values.items()}
            if self._built is None:
                self._built = _Built.of(self, values)
            return self._built.run(values, head_gradients, scale)


@dataclass
class _Built:
    graph: Graph
    facts: Facts
    probed: Probed
    keys: Sequence[Key]  # the outputs that are looked at
    names: List[str]  # of the variables that it reads
    states: FrozenSet[str]
    operator: Any
    trained: FrozenSet[str]
    training: bool
    summaries: Summaries = field(default_factory=Summaries)

    @classmethod
    def of(cls, looker: Looker, values: Mapping[str, Any]) -> _Built:
        graph, facts = looker.graph, _facts(looker.graph, values)
        if any(is_loss_head(node) or node.name in looker.loss_heads for node in graph.nodes):
            known = looker.loss_heads & {node.name for node in graph.nodes}
            graph = in_written_order(ScaleLoss(facts, SCALE, frozenset(known))(graph).graph)
            values = {**values, SCALE: mx.nd.ones(1)}
            facts = _facts(graph, values)
        probed = add_probes(graph, facts, dtypes.PRECISIONS, heads=True)
        keys = _looked_at(graph, facts)
        heads = (*probed.graph.heads, *(probed.places[key] for key in keys))
        watched = in_written_order(replace(probed.graph, heads=heads))
        shapes = {name: probe.shape for name, probe in probed.probes.items()}
        symbol = from_graph(watched)
        converted = Converted(
            symbol,
            watched,
            _facts(watched, values, shapes),
            frozenset(),
            replace(looker.decisions, after=watched),
        )
        runs = symbol if looker.context.device_type == "gpu" else converted.on_cpu(trains=True)
        count = len(graph.heads)
        outputs = [runs[number] for number in range(count + len(keys))]
        group = mx.sym.Group([*outputs[:count], *(summarize(mx.sym, each) for each in outputs)])
        states = frozenset(group.list_auxiliary_states())
        operator, names = mx.nd.CachedOp(group), group.list_inputs()
        return cls(graph, facts, probed, keys, names, states, operator, looker.trained, looker.training)

    def run(self, values: Mapping[str, Any], head_gradients: Optional[HeadGradients], scale: float) -> Seen:
        inputs, zeros, trained = self._inputs(values, scale)
        with autograd.record(train_mode=self.training):
            results = self.operator(*inputs)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        count = len(self.graph.heads)
        heads, summaries = results[:count], results[count:]
        variables = {key: values[self.graph.nodes[key[0]].name] for key in self._variables(values)}
        given = None if head_gradients is None else head_gradients(heads)
        gradients = {} if given is None else _backward(heads, given, scale, zeros, trained)
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

    def _inputs(self, values: Mapping[str, Any], scale: float) -> Tuple[List[Any], Dict[str, Any], Dict[str, Any]]:
        """Return the operator's inputs, and which of them have gradients: probes, and variables that are trained."""
        sizes = {name: math.prod(probe.shape) for name, probe in self.probed.probes.items()}
        memory = mx.nd.zeros(max(sizes.values(), default=1))  # which all zeros share
        zeros = {name: memory[: sizes[name]].reshape(probe.shape) for name, probe in self.probed.probes.items()}
        given = {name: array.copy() if name in self.states else array.detach() for name, array in values.items()}
        trained = {name: given[name] for name in self.names if name in self.trained and name in given}
        for array in (*zeros.values(), *trained.values()):
            array.attach_grad()
        given = {SCALE: mx.nd.full((1,), scale), **given, **zeros}
        return [given[name] for name in self.names], zeros, trained

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


def _facts(graph: Graph, values: Mapping[str, Any], zeros: Optional[Mapping[str, Tuple[int, ...]]] = None) -> Facts:
    """Return what is known of a graph whose variables have these values, but for ``zeros`` of these shapes."""
    symbol, zeros = from_graph(graph), zeros or {}
    read = {name: values[name] for name in symbol.list_inputs() if name in values}
    types = {**{name: dtypes.canonical(array.dtype) for name, array in read.items()}, **dict.fromkeys(zeros, "float32")}
    return infer_facts(symbol, graph, {**{n: array.shape for n, array in read.items()}, **zeros}, types, frozenset())


def _looked_at(graph: Graph, facts: Facts) -> List[Key]:
    """Return the visible outputs of operators that hold numbers with a point."""
    keys = ((i, n) for i, node in enumerate(graph.nodes) if not node.is_variable for n in range(node.num_outputs))
    return [
        key
        for key in keys
        if facts.dtypes.get(key) in dtypes.PRECISIONS and graph.nodes[key[0]].get(MARK_ATTR) != SCALE_MARK
    ]


def _backward(
    heads: Sequence[Any], given: Sequence[Any], scale: float, zeros: Mapping[str, Any], trained: Mapping[str, Any]
) -> Dict[str, Any]:
    """Run backward and return the gradients of all probes and trained variables by name."""
    pairs = [(head, each) for head, each in zip(heads, given) if each is not None]
    factors = [(each.as_nd_ndarray().astype("float32") * scale).astype(head.dtype) for head, each in pairs]
    autograd.backward([head for head, _ in pairs], factors)
    return {name: array.grad for name, array in (*zeros.items(), *trained.items())}
