"""A network of residual units whose times are known: those of its operators, of its casts, and of pairs of neighbours.

Nothing of it is run. The pairs are what makes costs not additive, as layouts do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, List, Tuple

from mxmp.graph import Entry, Graph, GraphBuilder, Node
from mxmp.passes import Facts
from mxmp.passes.plan import make_plan
from mxmp.policy import Policy
from mxmp.tune.speed.choices import find_choices
from mxmp.tune.speed.moves import Moves
from mxmp.tune.speed.problem import low_nodes
from mxmp.tune.speed.suspects import Account

POLICY = Policy.parse("mixed_bfloat16")


def residual_network(stages=((4, 16, 32), (4, 32, 16)), units=2) -> Tuple[Graph, Facts]:
    """Return a float32 network of stages (batch, channels, size), in training."""
    builder = GraphBuilder(Graph((), ()))
    shapes: Dict[Tuple[int, int], Tuple[int, ...]] = {}

    def add(op, name, inputs, *outputs, **attrs):
        position = builder.add(Node(op, name, tuple(sorted(attrs.items())), tuple(inputs), max(len(outputs), 1)))
        shapes.update({(position, index): shape for index, shape in enumerate(outputs)})
        return Entry(position)

    def convolution(data, name, channels, size, batch):
        read = shapes[data.key][1]
        weight = add("null", f"{name}_weight", (), (channels, read, 3, 3))
        stride = shapes[data.key][2] // size
        attrs = {"kernel": "(3, 3)", "num_filter": str(channels), "no_bias": "True", "stride": str((stride, stride))}
        return add("Convolution", name, (data, weight), (batch, channels, size, size), **attrs)

    def norm(data, name):
        shape = shapes[data.key]
        params = [add("null", f"{name}_{each}", (), shape[1:2]) for each in ("gamma", "beta", "mean", "var")]
        return add("BatchNorm", name, (data, *params), shape, shape[1:2], shape[1:2])

    def activation(data, name):
        return add("Activation", name, (data,), shapes[data.key], act_type="relu")

    batch, channels, size = stages[0]
    data = add("null", "data", (), (batch, 3, size, size))
    data = convolution(data, "first", channels, size, batch)
    for stage, (batch, channels, size) in enumerate(stages):
        for unit in range(units):
            name = f"s{stage}u{unit}"
            inner = activation(
                norm(convolution(data, f"{name}_conv1", channels, size, batch), f"{name}_bn1"), f"{name}_r1"
            )
            inner = norm(convolution(inner, f"{name}_conv2", channels, size, batch), f"{name}_bn2")
            if shapes[data.key] != shapes[inner.key]:
                data = convolution(data, f"{name}_side", channels, size, batch)
            data = add("elemwise_add", f"{name}_sum", (data, inner), shapes[inner.key])
            data = activation(data, f"{name}_r2")
    graph = builder.finish([data])
    params = frozenset(node.name for node in graph.nodes if node.is_variable and node.name != "data")
    return graph, Facts(dict.fromkeys(shapes, "float32"), shapes, params=params)


@dataclass
class Times:
    """Seconds of operators, (float32, low precision), of a cast, and of reads of one operator by another.

    ``operators`` are by name, or by name and number of channels, which comes first. ``pairs`` is asked for the operators of the two and whether each runs in low precision.
    """

    operators: Dict[object, Tuple[float, float]]
    cast: float = 0.05
    pairs: Callable[[str, bool, str, bool], float] = lambda op, low, other, other_low: 0.0

    def of(self, graph: Graph, shapes, low: FrozenSet[int]) -> float:
        """Return the seconds of the network with some nodes in low precision."""
        operators = (position for position, node in enumerate(graph.nodes) if not node.is_variable)
        total = sum(self.of_node(graph, shapes, position, low) for position in operators)
        readers: Dict[int, set] = {}
        for position, node in enumerate(graph.nodes):
            for port, entry in enumerate(node.inputs):
                if node.op != "BatchNorm" or port == 0:
                    readers.setdefault(entry.node, set()).add(position in low)
        for head in graph.heads:
            readers.setdefault(head.node, set()).add(False)
        return total + self.cast * sum((found - {node in low}) != set() for node, found in readers.items())

    def of_node(self, graph: Graph, shapes, position: int, low: FrozenSet[int]) -> float:
        """Return the seconds of one operator, and of its reads of others."""
        node = graph.nodes[position]
        key = node.op, shapes[position, 0][1]
        total = self.operators.get(key, self.operators[node.op])[position in low]
        for entry in node.inputs:
            source = graph.nodes[entry.node]
            if not source.is_variable:
                total += self.pairs(source.op, entry.node in low, node.op, position in low)
        return total


@dataclass
class FakeProblem:
    """The problem of a network of which only the clock is a fake: a lap moves it by what it takes.

    ``builds`` counts the networks that were built.
    """

    graph: Graph
    facts: Facts
    times: Times
    moves_of: Callable[["FakeProblem"], Callable] = lambda problem: problem.ordered()
    clock: float = 0.0
    builds: List[tuple] = field(default_factory=list)

    def __post_init__(self):
        self.plan = make_plan(self.graph, POLICY, self.facts)
        self.choices = find_choices([(self.graph, self.facts, self.plan)], POLICY)
        self._keys: Dict[tuple, object] = {}
        self.moves = self.moves_of(self)

    def ordered(self, **options):
        parts = [(self.graph, self.facts, self.plan)]
        return Moves(parts, self.choices, self.state, **options).near

    def state(self, choice):
        key = self.key(choice)
        return None if key is None else (key.nodes,)

    def accounts(self, choices, seconds):
        """Return what oneDNN would say of choices: the times of operators, those of pairs at the second one."""
        return [self._account(self.key(choice).nodes) for choice in choices]

    def _account(self, low):
        seconds, reference = {}, {}
        for number, group in enumerate(self.choices.groups):
            for position, node in enumerate(self.graph.nodes):
                if node.name in group.names:
                    own = self.times.of_node(self.graph, self.facts.shapes, position, low)
                    seconds[number] = seconds.get(number, 0.0) + own
                    if own > 3 * self.times.of_node(self.graph, self.facts.shapes, position, frozenset()):
                        reference[number] = reference.get(number, 0.0) + own
        return Account(seconds, reference)

    def now(self):
        return self.clock

    def key(self, choice):
        if choice not in self._keys:
            self._keys[choice] = low_nodes(make_plan(self.graph, self.choices.policy_of(choice), self.facts))
        return self._keys[choice]

    def seconds(self, choice):
        return self.times.of(self.graph, self.facts.shapes, self.key(choice).nodes)

    def allows(self, choice):
        return True

    def build(self, choice):
        self.builds.append(choice)
        seconds = self.seconds(choice)

        def lap():
            self.clock += seconds
            return seconds

        return lap

    def fastest(self):
        """Return the least seconds of all ways to put each group in one precision: brute force."""
        nodes = {
            number: frozenset(i for i, node in enumerate(self.graph.nodes) if node.name in group.names)
            for number, group in enumerate(self.choices.groups)
        }
        best = float("inf")
        for bits in itertools.product([False, True], repeat=len(nodes)):
            low = frozenset().union(*(nodes[number] for number, bit in enumerate(bits) if bit))
            best = min(best, self.times.of(self.graph, self.facts.shapes, low))
        return best
