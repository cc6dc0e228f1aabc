"""The minimum cut, against brute force over all labellings."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmp.graph import Entry, Graph, Node
from mxmp.passes import Facts, Verdict, place
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.rules import CLEAR, Rule

# A rule with one input that is never cast and one that takes either dtype, so that every kind of
# port is part of the random problems.
RULE = Rule("op", CLEAR, keep=(3,), any=(4,), keep_outputs=(1,))


@st.composite
def problems(draw, max_nodes=11):
    """Return (graph, verdicts, sizes, low parameters, whether outputs are wanted low)."""
    count = draw(st.integers(2, max_nodes))
    nodes, verdicts, sizes = [], [], {}
    numbers = random.Random(
        draw(st.integers(0, 2**16))
    )  # of sizes: a draw for each of them would cost more than the cut
    for position in range(count):
        fan_in = draw(st.integers(0 if position < 4 else 1, min(position, 5)))
        drawn = (divmod(draw(st.integers(0, 4 * position - 1)), 4) for _ in range(fan_in))
        inputs = tuple(Entry(node, int(port == 3)) for node, port in drawn)
        if fan_in == 0:
            nodes.append(Node("null", f"v{position}", num_outputs=2))
            verdicts.append(Verdict(KEEP, "variable"))
        else:
            nodes.append(Node("op", f"n{position}", inputs=inputs, num_outputs=2))
            label = draw(st.sampled_from([FREE, FREE, FREE, FREE, FLOAT32, LOW, LOW, KEEP]))
            verdicts.append(Verdict(label, "", RULE))
        for index in range(2):
            sizes[position, index] = numbers.randint(1, 60)
    heads = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2))
    return Graph(tuple(nodes), tuple(Entry(h) for h in heads)), tuple(verdicts), sizes, draw(st.booleans())


def facts_of(sizes, known=True):
    return Facts({key: "float32" for key in sizes}, {key: (n,) for key, n in sizes.items()} if known else {})


def price(graph, verdicts, sizes, output_low, low, in_bytes, params=frozenset()):
    """Return (objective, casts) of a labelling, straight from the definition."""
    readers = {}
    for position, node in enumerate(graph.nodes):
        for port, entry in enumerate(node.inputs):
            verdict = verdicts[position]
            readers.setdefault((entry.node, entry.index), [])
            if verdict.label != KEEP and port == 4 or verdict.label == KEEP and verdict.rule and port == 4:
                continue
            is_low = verdict.label != KEEP and port != 3 and position in low
            readers.setdefault((entry.node, entry.index), []).append((position, port, is_low))
    for head in graph.heads:
        readers.setdefault((head.node, head.index), []).append((None, None, output_low))
    cost = casts = 0
    for (node, index), demands in readers.items():
        size = sizes[node, index]
        made_low = (verdicts[node].label != KEEP and index == 0 or node in params) and node in low
        if any(is_low != made_low for _, _, is_low in demands):
            casts += 1
            cost += 6 * size if in_bytes else 1
        if in_bytes:
            users = {p for p, port, _ in demands if p is not None and port != 3 and verdicts[p].label == FREE}
            if verdicts[node].label == FREE and index == 0:
                users.add(node)
            cost += sum(2 * size for user in users if user not in low)
    return cost, casts


def brute_force(graph, verdicts, sizes, output_low, in_bytes, params=frozenset()):
    """Return the best (objective, casts) and, among those labellings, the smallest low side."""
    free = [i for i, v in enumerate(verdicts) if v.label == FREE] + sorted(params)
    pinned = {i for i, v in enumerate(verdicts) if v.label == LOW}
    best, sides = None, []
    for bits in itertools.product([False, True], repeat=len(free)):
        low = pinned | {node for node, bit in zip(free, bits) if bit}
        found = price(graph, verdicts, sizes, output_low, low, in_bytes, params)
        if best is None or found < best:
            best, sides = found, []
        if found == best:
            sides.append(frozenset(low))
    return best, sides


@settings(max_examples=500, deadline=None)
@given(problems())
def test_bytes_are_minimal(problem):
    graph, verdicts, sizes, output_low = problem
    found = place(graph, verdicts, facts_of(sizes), output_low=output_low)
    (cost, casts), sides = brute_force(graph, verdicts, sizes, output_low, True)
    assert (found.cost, found.casts) == (cost, casts)
    assert price(graph, verdicts, sizes, output_low, found.low, True) == (cost, casts)
    assert found.low == min(sides, key=len)  # ties go to float32
    assert all(found.low <= side for side in sides)
    assert found.flow == cost  # the certificate


@settings(max_examples=300, deadline=None)
@given(problems(), st.booleans())
def test_storage_of_parameters_is_part_of_the_optimum(problem, in_bytes):
    graph, verdicts, sizes, output_low = problem
    params = frozenset(i for i, node in enumerate(graph.nodes) if node.is_variable)
    found = place(graph, verdicts, facts_of(sizes, known=in_bytes), output_low=output_low, free_params=params)
    (cost, casts), sides = brute_force(graph, verdicts, sizes, output_low, in_bytes, params)
    assert (found.cost, found.casts) == (cost, casts) and found.flow == cost
    assert found.low == min(sides, key=len)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_without_shapes_casts_are_minimal(problem):
    graph, verdicts, sizes, output_low = problem
    found = place(graph, verdicts, facts_of(sizes, known=False), output_low=output_low)
    (_, casts), sides = brute_force(graph, verdicts, sizes, output_low, False)
    assert not found.in_bytes and found.cast_bytes is None or found.casts == 0
    assert found.casts == found.cost == found.flow == casts
    assert found.low in sides and all(found.low <= side for side in sides)


def chain(*labels, sizes=None):
    """Return a problem: a variable and one node per label, each reading the one before."""
    nodes = [Node("null", "data")] + [Node("op", f"n{i}", inputs=(Entry(i),)) for i in range(len(labels))]
    verdicts = [Verdict(KEEP, "variable")] + [Verdict(label, "", RULE) for label in labels]
    sizes = sizes or [8] * len(nodes)
    facts = facts_of({(i, 0): size for i, size in enumerate(sizes)})
    return Graph(tuple(nodes), (Entry(len(labels)),)), tuple(verdicts), facts


def test_one_low_operator_costs_two_casts():
    found = place(*chain(LOW))
    assert (found.casts, found.cost, found.cast_bytes) == (2, 2 * 6 * 8, 2 * 6 * 8)


def test_free_operators_between_low_ones_join_them():
    assert place(*chain(LOW, FREE, FREE, LOW)).low == {1, 2, 3, 4}


def test_free_operators_alone_stay_float32():
    assert place(*chain(FREE, FREE, FREE)).low == frozenset()


def test_the_cast_goes_where_the_tensor_is_smallest():
    # low -> free (shrinks to 1 element) -> free -> output
    found = place(*chain(LOW, FREE, FREE, sizes=[64, 64, 1, 64]))
    assert found.low == {1, 2}


def test_pins_are_never_moved():
    found = place(*chain(LOW, FLOAT32, LOW))
    assert found.low == {1, 3} and found.casts == 4


@pytest.mark.behaviour("one cast of a weight")
def test_a_shared_tensor_is_cast_once():
    nodes = [Node("null", "data"), *(Node("op", f"n{i}", inputs=(Entry(0),)) for i in range(3))]
    verdicts = (Verdict(KEEP, "variable"), *(Verdict(LOW, "", RULE) for _ in range(3)))
    graph = Graph(tuple(nodes), (Entry(1), Entry(2), Entry(3)))
    found = place(graph, verdicts, facts_of({(i, 0): 10 for i in range(4)}))
    assert found.casts == 1 + 3  # the input once, three outputs


def test_a_parameter_stored_low_needs_no_cast():
    graph, verdicts, facts = chain(LOW)
    assert place(graph, verdicts, facts, low_params=frozenset({0})).casts == 1


def test_integer_tensors_are_not_placed():
    graph, verdicts, _ = chain(FREE)
    facts = Facts({(0, 0): "int32", (1, 0): "float32"}, {(0, 0): (4,), (1, 0): (4,)})
    assert place(graph, verdicts, facts).casts == 0


def test_a_size_that_no_placement_depends_on_is_asked_for_too():
    graph, verdicts, facts = chain(FLOAT32, FLOAT32, LOW)
    assert place(graph, verdicts, facts).in_bytes
    unknown = Facts(facts.dtypes, {key: shape for key, shape in facts.shapes.items() if key != (0, 0)})
    found = place(graph, verdicts, unknown)
    assert (found.in_bytes, found.casts, found.cost) == (False, 2, 2)


def test_thousands_of_free_nodes_are_placed():
    labels = ([LOW] + [FREE] * 3 + [FLOAT32]) * 1667
    found = place(*chain(*labels, sizes=[1 + i % 97 for i in range(len(labels) + 1)]))
    assert found.cost == found.flow > 0
