"""How large values may be, by the graph: sums of sums, products of scalars, and the decisions that depend on shapes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import AbstractSet, Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import dtypes
from ..graph import Graph, Key, Node
from ..rules import ALLOW, RULES, Call, Rule
from ..rules.conditions import MAX_REDUCTION, SHAPE_CONDITIONS, value_of
from ..rules.core import ADDS, MULTIPLIES, OVER, RESTARTS, TIMES
from .base import rule_of
from .control_flow import Body, bodies_of
from .cpu.written_out import is_shaped, shape_choice
from .facts import Facts


class Size(NamedTuple):
    """How large values may be, relative to those of a layer, which count as 1.

    Attributes:
        terms: How many values each is the sum of.
        factor: The product of the scalars that each was multiplied by.
    """

    terms: float = 1.0
    factor: float = 1.0

    def at_least(self, other: "Size") -> "Size":
        """Return the larger number of terms and the larger factor of both sizes."""
        return Size(max(self.terms, other.terms), max(self.factor, other.factor))


_ONE = Size()

_UNIT = 64  # about the largest value of a layer: MAX_REDUCTION of them are float16's range


class Sizes(NamedTuple):
    """The sizes of a graph's outputs, and the operators that leave the range of a dtype.

    Attributes:
        reasons: The operators whose results are too large or too small for the dtype, by position, with the reason.
        heads: The sizes of the outputs.
        products: The allow operators that multiply no weight, by position.
        bodies: The same of the bodies of control flow nodes, by (node, number of the body); none for a condition.
    """

    reasons: Dict[int, str]
    products: Set[int]
    heads: List[Size]
    bodies: Dict[Key, "Sizes"]

    def pinned(self) -> Tuple[Any, ...]:
        """Return which operators leave the range, those in bodies included, as a key."""
        return (*sorted(self.reasons), *((key, body.pinned()) for key, body in sorted(self.bodies.items())))


def find_sizes(graph: Graph, facts: Facts, dtype: str, entering: Sequence[Size] = ()) -> Sizes:
    """Return the sizes of a graph's outputs, and the operators that leave the range of a dtype.

    The terms of sums multiply along sums and products, and scalars multiply too. Their product is to be within the
    range. Both counts begin anew behind a layer or a norm. A mean is as large as its input. A matrix product without a
    weight counts as a sum, not as a layer. An example: ``sum(sum(x, axis=3), axis=2)`` of 512 x 512 values has 262,144
    terms. A layer that reads such a sum is among the operators too, unless a scalar has made the sum small again.

    Args:
        graph: The graph, or the body of a control flow node.
        facts: Facts on the graph; ``inputs`` names its variables that are no weights.
        dtype: The dtype whose range is asked for.
        entering: Of a body, the sizes of its variables in order.
    """
    variables = [position for position, node in enumerate(graph.nodes) if node.is_variable]
    sizes: Dict[Key, Size] = {(position, 0): size for position, size in zip(variables, entering)}
    reasons: Dict[int, str] = {}
    products: Set[int] = set()
    bodies: Dict[Key, Sizes] = {}
    limits = dtypes.limits(dtype) if dtype in dtypes.LOW_PRECISION else None
    weights = find_weights(graph, facts.inputs)
    for position, node in enumerate(graph.nodes):
        for number, body in enumerate(bodies_of(node)):
            if body.is_condition or (position, number) not in facts.bodies:
                continue
            inner_facts = replace(facts.bodies[position, number], inputs=data_of_body(node, body, weights))
            read = [sizes.get(node.inputs[port].key, _ONE) for port in body.ports]
            inner = _find_in_body(body, inner_facts, dtype, read, _rounds(node, body, facts))
            bodies[position, number] = inner
            for index, size in enumerate(inner.heads):
                sizes[position, index] = sizes.get((position, index), _ONE).at_least(size)
        rule = rule_of(node)
        if rule is None or (rule.size == RESTARTS and rule.sums is None) or node.subgraphs:
            continue
        read = [sizes.get(entry[:2], _ONE) for port, entry in enumerate(node.inputs) if rule.reads(port)]
        if rule.category == ALLOW and is_layer(node, rule, weights):
            beyond = [size for size in read if limits is not None and _leaves(size, limits)]
            if beyond:
                times = beyond[0].terms * beyond[0].factor
                reasons[position] = f"it reads values that are {times:g} times as large as those of a layer"
            continue
        if rule.category == ALLOW:
            products.add(position)
        if not read or (not rule.size and rule.sums is None and all(size is _ONE for size in read)):
            continue
        size = _size(node, rule, read, facts)
        if size != _ONE:
            sizes.update(((position, index), size) for index in range(node.num_outputs))
        if limits is None or not (rule.size or rule.sums) or 0 in rule.keep_outputs:  # its results have another dtype
            continue
        if size.terms == math.inf:
            reasons[position] = f"it may sum more than {MAX_REDUCTION} terms in all"
        elif size.terms > MAX_REDUCTION:
            reasons[position] = f"it sums {size.terms:g} terms in all, more than {MAX_REDUCTION}"
        elif size.factor < limits.tiny or size.terms * size.factor > limits.max:
            factor = size.factor if size.factor < limits.tiny else size.terms * size.factor
            reasons[position] = f"with all terms and scalars, it multiplies by {factor:g}: out of {dtype}'s range"
    return Sizes(reasons, products, [sizes.get(head.key, _ONE) for head in graph.heads], bodies)


def _find_in_body(
    body: Body, facts: Facts, dtype: str, entering: Sequence[Size], rounds: float
) -> Sizes:
    """Return the sizes in a body. A loop's state has the size that it has in the last round.

    A state that grows by as many terms in each round is a sum over the rounds, such as ``state + sum(slice)``. A state
    that grows faster, or by a scalar, is without a bound.
    """
    sizes = find_sizes(body.graph, facts, dtype, entering)
    growth = {state: sizes.heads[head].terms - entering[state].terms for state, head in body.states}
    last = list(entering)
    for state, head in body.states:
        terms, factor = entering[state].terms + max(growth[state], 0) * (rounds - 1), sizes.heads[head].factor
        last[state] = Size(terms if growth[state] > 0 else entering[state].terms, entering[state].factor)
        if factor != entering[state].factor:
            last[state] = last[state]._replace(factor=math.inf if factor > entering[state].factor else 0.0)
    if last == list(entering):
        return sizes
    sizes = find_sizes(body.graph, facts, dtype, last)
    faster = [state for state, head in body.states if sizes.heads[head].terms > last[state].terms + growth[state]]
    for state in faster:
        last[state] = last[state]._replace(terms=math.inf)
    return find_sizes(body.graph, facts, dtype, last) if faster else sizes


def _rounds(node: Node, body: Body, facts: Facts) -> float:
    """Return how often a loop runs its body at most, infinity if unknown."""
    rounds = value_of(dict(node.attrs), "max_iterations")
    slices = (facts.shape(node.inputs[body.ports[variable]]) for variable in body.sliced)
    return next((shape[0] for shape in slices if shape), math.inf) if rounds is None else float(rounds)


def _size(node: Node, rule: Rule, read: Sequence[Size], facts: Facts) -> Size:
    """Return the size of an operator's results."""
    if rule.size == ADDS:
        return Size(sum(size.terms for size in read), max(size.factor for size in read))
    if rule.size == MULTIPLIES or rule.category == ALLOW:
        length = _length(node, rule, facts) if rule.category == ALLOW else 1
        return Size(length * math.prod(size.terms for size in read), math.prod(size.factor for size in read))
    if rule.size == RESTARTS:
        return Size(_length(node, rule, facts))
    terms, factor = max(size.terms for size in read), max(size.factor for size in read)
    if rule.size in (TIMES, OVER):
        scalar = value_of(dict(node.attrs), "scalar")
        size = abs(scalar) if isinstance(scalar, (int, float)) and scalar and math.isfinite(scalar) else 1.0
        return Size(terms, factor * size if rule.size == TIMES else factor / size)
    return Size(terms * _length(node, rule, facts), factor)


def _leaves(size: Size, limits: dtypes.FloatLimits) -> bool:
    """Return whether a layer that reads values of a size loses them. Sums of unknown length are taken to be short."""
    value = size.terms * size.factor
    return math.ceil(limits.max / _UNIT) < value < math.inf or max(value, size.factor) < limits.tiny


def _length(node: Node, rule: Rule, facts: Facts) -> float:
    """Return of how many values each result is the sum."""
    length = rule.sums(Call(dict(node.attrs), tuple(map(facts.shape, node.inputs)), "")) if rule.sums else 1
    unknown = 1.0 if rule.category == ALLOW or rule.size else math.inf  # a sum of unknown length is in float32 anyhow
    return unknown if length is None else length


def find_weights(graph: Graph, data: AbstractSet[str]) -> FrozenSet[int]:
    """Return the nodes whose values are weights, or computed only from weights: variables that are no input data."""
    weights: Set[int] = set()
    constants: Set[int] = set()  # nodes that read no variable, such as ones
    for position, node in enumerate(graph.nodes):
        sources = [entry.node for entry in node.inputs]
        if node.is_variable:
            is_weight = node.name not in data
        else:
            is_weight = any(i in weights for i in sources) and all(i in weights or i in constants for i in sources)
        if is_weight:
            weights.add(position)
        elif not node.is_variable and constants.issuperset(sources):
            constants.add(position)
    return frozenset(weights)


def is_layer(node: Node, rule: Rule, weights: AbstractSet[int]) -> bool:
    """Return whether an allow operator multiplies by a weight, or by one that was normalized, masked or reshaped."""
    if rule.sums is None:
        return True
    return any(entry.node in weights for port, entry in enumerate(node.inputs) if rule.reads(port))


def data_of_body(node: Node, body: Body, weights: AbstractSet[int]) -> FrozenSet[str]:
    """Return the names of a body's variables that hold no weight: loop states, and inputs that are no weights."""
    states = {state for state, _ in body.states}
    names = [body.graph.nodes[position].name for position in body.variables()]
    is_data = (i in states or node.inputs[port].node not in weights for i, port in enumerate(body.ports))
    return frozenset(name for name, each in zip(names, is_data) if each)


def depends_on_shapes(graph: Graph, dtype: str, data: AbstractSet[str] = frozenset()) -> bool:
    """Return whether the decisions on a graph, or the operators that run it, may change with shapes of its inputs.

    ``data`` has the names of inputs and constants, which are no weights.
    """
    weights = find_weights(graph, data)
    if any(_reads_shapes(node, rule_of(node), dtype, weights) for node in graph.nodes):
        return True
    bodies = ((node, body) for node in graph.nodes for body in bodies_of(node) if not body.is_condition)
    return any(
        (body.states and body.sliced and dtype in dtypes.LOW_PRECISION)  # how many terms add up in a state
        or depends_on_shapes(body.graph, dtype, data_of_body(node, body, weights))
        for node, body in bodies
    )


def shape_outcome(graph: Graph, dtype: str, facts: Facts) -> Tuple[Any, ...]:
    """Return a key of the decisions that depend on shapes. Shapes with equal keys share one converted graph.

    Gluon converts a net once per outcome, not once per shape of its inputs. The graph is one without casts of mxmp; of
    the facts, those on bodies included, only shapes are looked at, and which variables are data.
    """
    return (find_sizes(graph, facts, dtype).pinned(), *_outcome_by_node(graph, dtype, facts))


def _outcome_by_node(graph: Graph, dtype: str, facts: Facts) -> Tuple[Any, ...]:
    outcome: List[Any] = []
    weights = find_weights(graph, facts.inputs)
    for position, node in enumerate(graph.nodes):
        rule = rule_of(node)
        if rule is not None and _reads_shapes(node, rule, dtype, weights):
            shapes = tuple(facts.shape(entry) for entry in node.inputs)
            call = Call(dict(node.attrs), shapes, dtype)
            written = shape_choice(node, shapes) if dtype == dtypes.BFLOAT16 else None
            outcome.append((rule.forbids(call) is None, RULES.substitute(rule, call), written))
        for number, body in enumerate(bodies_of(node)):
            if (position, number) in facts.bodies:
                inner = replace(facts.bodies[position, number], inputs=data_of_body(node, body, weights))
                outcome += _outcome_by_node(body.graph, dtype, inner)
    return tuple(outcome)


def _reads_shapes(node: Node, rule: Optional[Rule], dtype: str, weights: AbstractSet[int]) -> bool:
    """Return whether shapes decide whether an operator runs in a dtype, or as which operators it is written out."""
    if rule is None:
        return False
    if RULES.has_substitutes(rule, dtype) or (dtype == dtypes.BFLOAT16 and is_shaped(node)):
        return True
    if rule.category == ALLOW:
        sums = not is_layer(node, rule, weights)
    else:
        sums = rule.sums is not None and rule.size != RESTARTS
    is_conditional = rule.condition is not None and dtype in SHAPE_CONDITIONS.get(rule.condition, ())
    return dtype in rule.dtypes and (sums or is_conditional)
