"""The plan of a conversion: precision of every node, storage of every parameter, bodies of control flow included."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import AbstractSet, Dict, FrozenSet, Mapping, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Entry, Graph, Key
from ..policy import Policy
from .control_flow import Body, bodies_of
from .dataflow import classify
from .decide import FLOAT32, FREE, LOW, Decision, Reason, moves
from .facts import Facts
from .place import place

NO_GAIN = "nothing here gains from low precision"
"""The reason given for a free operator of a graph in which no operator is pinned to low precision."""


@dataclass(frozen=True)
class Plan:
    """The decisions on a graph, made before it is edited.

    Attributes:
        low: Positions of the nodes that run in low precision.
        low_params: Positions of the parameters to store in low precision; of a body, of the
            variables that enter it in low precision.
        bodies: The plans of the bodies of control flow nodes, by (node, number of the body).
        any_heads: Of a body, the numbers of its outputs that may have either precision.
    """

    decisions: Tuple[Decision, ...]
    low: FrozenSet[int]
    low_params: FrozenSet[int]
    bodies: Mapping[Key, "Plan"] = field(default_factory=dict)
    any_heads: FrozenSet[int] = frozenset()

    def reads_low(self, position: int, port: int) -> bool:
        """Return whether a node wants one of its inputs in low precision."""
        return self.decisions[position].reads_low(port, position in self.low)

    def gives_low(self, position: int, index: int) -> bool:
        """Return whether a node gives one of its outputs in low precision."""
        decision, low = self.decisions[position], position in self.low
        return index in decision.low_outputs or (low and decision.output_in_precision(index))

    def output_dtype(self, head: Entry, policy: Policy) -> str:
        """Return the dtype of a float32 output of the graph. Positions are float32 under every policy."""
        return dtypes.FLOAT32 if head.index in self.decisions[head.node].index_outputs else policy.output_dtype


def make_plan(
    graph: Graph,
    policy: Policy,
    facts: Facts,
    stored: FrozenSet[str] = frozenset(),
    final: bool = False,
    storable: Optional[FrozenSet[str]] = None,
) -> Plan:
    """Return the plan for a graph without casts of mxmp.

    ``stored`` names parameters that are stored in low precision already, ``storable`` those that may be, all unless it
    is given. ``final`` says whether only this graph decides on the storage of parameters. Otherwise a parameter that a
    free operator reads stays float32, because that operator's label may change with the shapes. The exception is an
    operator that only moves parameters to operators in low precision. An example: ``gluon.rnn`` reshapes and
    concatenates its weights for an RNN in low precision.

    A graph with nothing pinned to low precision is float32 throughout. Casts for its free operators would save bytes.
    They would also lose precision, for example in a loss that is a net of its own.
    """
    decisions = classify(graph, policy, facts)
    if not policy.pure and not any(map(_is_pinned_low, decisions)):
        decisions = tuple(map(_without_gain, decisions))
    decisions, bodies = _plan_bodies(graph, decisions, facts, policy)
    low_params: FrozenSet[int] = frozenset()
    free_params: FrozenSet[int] = frozenset()
    if policy.param_dtype != dtypes.FLOAT32:
        may = facts.params if storable is None else storable
        params = {i for i, n in enumerate(graph.nodes) if n.is_variable and n.name in may}
        pinned = {i for i, decision in enumerate(decisions) if decision.label == LOW}
        own_casts = _own_casts(graph, policy.compute_dtype)
        reading_low = [replace(v, low_ports=frozenset([0])) if i in own_casts else v for i, v in enumerate(decisions)]
        low_params = _carried_low_only(graph, reading_low, pinned, facts, params)
        decisions = tuple(reading_low[i] if own_casts.get(i) in low_params else v for i, v in enumerate(decisions))
        low_params |= {i for i, n in enumerate(graph.nodes) if n.is_variable and n.name in stored}
        free_params = frozenset(params - low_params - {head.node for head in graph.heads}) if final else free_params
    output_low = policy.output_dtype != dtypes.FLOAT32
    low = place(graph, decisions, facts, low_params, output_low, free_params=free_params)
    return Plan(decisions, low, low_params | (low & free_params), bodies)


def _is_pinned_low(decision: Decision) -> bool:
    """Return whether a node, or one in its bodies, is pinned to low precision for another reason than its name."""
    inner = (each for body in decision.bodies for each in body)
    return (decision.label == LOW and Reason.NAMED not in decision.kinds) or any(map(_is_pinned_low, inner))


def _without_gain(decision: Decision) -> Decision:
    """Return a decision, and those in its bodies, with float32 in place of free."""
    if decision.label == FREE:
        return replace(decision, label=FLOAT32, reason=NO_GAIN, kinds=())
    return replace(decision, bodies=tuple(tuple(map(_without_gain, body)) for body in decision.bodies))


def _read_low_only(
    graph: Graph, decisions: Sequence[Decision], low: AbstractSet[int], facts: Facts, candidates: Set[int]
) -> FrozenSet[int]:
    """Return the float32 variables among the candidates that are read in low precision only."""
    low_only = {i for i in candidates if facts.dtype(Entry(i)) == dtypes.FLOAT32}
    read = set()
    for position, node in enumerate(graph.nodes):
        for port, entry in enumerate(node.inputs):
            if decisions[position].reads_low(port, position in low):
                read.add(entry.node)
            else:
                low_only.discard(entry.node)
    return frozenset(low_only & read - {head.node for head in graph.heads})


def _carried_low_only(
    graph: Graph, decisions: Sequence[Decision], low: AbstractSet[int], facts: Facts, params: Set[int]
) -> FrozenSet[int]:
    """Return the float32 parameters that are read in low precision only, at once or through carriers.

    A carrier reads only such parameters and outputs of other carriers. It reads no indices, because gradients of
    gathered rows add up. If the parameters are stored in low precision, low precision is cheapest for the carrier with
    any shapes: no cast is left.
    """
    carriers = {position for position in range(len(graph.nodes)) if _moves_once(graph, position, decisions, facts)}
    while True:
        low_only = _read_low_only(graph, decisions, low | carriers, facts, params | carriers)
        kept = {i for i in carriers if low_only.issuperset({i, *(entry.node for entry in graph.nodes[i].inputs)})}
        if kept == carriers:
            return low_only - carriers
        carriers = kept


def _moves_once(graph: Graph, position: int, decisions: Sequence[Decision], facts: Facts) -> bool:
    """Return whether a free operator moves values and repeats none, so that its gradient sums nothing."""
    node = graph.nodes[position]
    if not moves(decisions[position]):
        return False
    output_sizes = [facts.size(Entry(position, index)) for index in range(node.num_outputs)]
    input_sizes = [facts.size(entry) for entry in node.inputs]
    is_known = None not in output_sizes + input_sizes
    return is_known and sum(size or 0 for size in output_sizes) <= sum(size or 0 for size in input_sizes)


def _own_casts(graph: Graph, dtype: str) -> Dict[int, int]:
    """Return the network's own amp_casts of variables to a dtype: the variable that each reads, by its position.

    They give the same of a variable that is stored in that dtype, as contrib.amp stores it then. A ``Cast`` to bfloat16
    truncates, and does not.
    """
    casts = (i for i, node in enumerate(graph.nodes) if node.op == "amp_cast" and node.get("dtype") == dtype)
    sources = {i: graph.nodes[i].inputs[0].node for i in casts}
    return {i: source for i, source in sources.items() if graph.nodes[source].is_variable}


def _plan_bodies(
    graph: Graph, decisions: Tuple[Decision, ...], facts: Facts, policy: Policy
) -> Tuple[Tuple[Decision, ...], Dict[Key, Plan]]:
    """Return the plans of all bodies, and the decisions completed with their low precision inputs and outputs.

    Variables of a body are float32 at first. An input that all bodies then read only in low precision enters them in
    low precision. It is cast once, not in every iteration, and the bodies are placed again.
    """
    plans: Dict[Key, Plan] = {}
    completed = list(decisions)
    for position, decision in enumerate(decisions):
        if not decision.bodies:
            continue
        bodies = bodies_of(graph.nodes[position])
        named = frozenset(head.index for head in graph.heads if head.node == position)
        inner = {n: (body, facts.bodies[position, n]) for n, body in enumerate(bodies) if decision.bodies[n]}
        plan_of = {n: _plan_body(body, decision.bodies[n], f, named, policy) for n, (body, f) in inner.items()}
        slices = policy.compute_dtype != dtypes.BFLOAT16
        wanted = {n: _entering_low(body, plan_of[n], f, slices) for n, (body, f) in inner.items()}
        read = [(port, v in wanted.get(n, ())) for n, body in enumerate(bodies) for v, port in body.entries()]
        ports = frozenset(port for port, _ in read) - {port for port, low in read if not low}
        outputs: Set[int] = set()
        for n, (body, body_facts) in inner.items():
            entering = frozenset(v for v, port in body.entries() if port in ports)
            if entering:
                low = place(body.graph, plan_of[n].decisions, body_facts, entering, any_heads=plan_of[n].any_heads)
                plan_of[n] = replace(plan_of[n], low=low, low_params=entering)
            plans[position, n] = plan_of[n]
            heads = ((number, body.graph.heads[number]) for number in plan_of[n].any_heads)
            is_float32 = ((number, h) for number, h in heads if body_facts.dtype(h) == dtypes.FLOAT32)
            outputs |= {number for number, head in is_float32 if plan_of[n].gives_low(*head.key)}
        completed[position] = replace(decision, low_ports=ports, low_outputs=frozenset(outputs))
    return tuple(completed), plans


def _plan_body(
    body: Body, decisions: Tuple[Decision, ...], facts: Facts, named: FrozenSet[int], policy: Policy
) -> Plan:
    """Return the plan of a body whose variables are float32.

    Loop states stay float32, because rounding errors add up in them. Outputs that other bodies give too stay float32.
    So do outputs of the whole graph (``named``), because no cast can take their names. The other outputs may stay
    float16. They may not stay bfloat16: each is a slice of the loop's output, and MXNet's bfloat16 kernels cannot write
    to a slice ("storage_type() == kDefaultStorage && IsView() == false", src/ndarray/ndarray.cc at tag 1.9.1).
    """
    decisions, bodies = _plan_bodies(body.graph, decisions, facts, policy)
    any_heads = frozenset(range(len(body.graph.heads))) - body.fixed_heads - named
    if policy.compute_dtype == dtypes.BFLOAT16:
        any_heads = frozenset()
    return Plan(decisions, place(body.graph, decisions, facts, any_heads=any_heads), frozenset(), bodies, any_heads)


def _entering_low(body: Body, plan: Plan, facts: Facts, slices: bool) -> FrozenSet[int]:
    """Return the variables of a body that it reads only in low precision, without a loop's state.

    Without ``slices`` those that hold slices are left out. Their gradients are written to slices, which MXNet's
    bfloat16 kernels cannot do. An example is the gradient of relu, or the sum of the gradients of two readers.
    """
    variables = body.variables()
    candidates = set(variables) - {variables[variable] for variable, _ in body.states}
    if not slices:
        candidates -= {variables[variable] for variable in body.sliced}
    return _read_low_only(body.graph, plan.decisions, plan.low, facts, candidates)
