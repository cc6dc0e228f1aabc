"""How the values of control flow nodes enter and leave their bodies."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.passes.control_flow import bodies_of
from mxmp.symbol import to_graph


def loop_of(symbol):
    graph = to_graph(symbol)
    node = next(node for node in graph.nodes if node.subgraphs)
    return graph, node


def variables(graph, node, body):
    """Return, per variable of a body, its name and that of what the node reads for it."""
    names = [body.graph.nodes[i].name for i in body.variables()]
    read = [graph.entry_name(node.inputs[port]) for port in body.ports]
    return dict(zip(names, read))


def test_foreach_binds_data_states_and_the_rest():
    data, state, weight = (mx.sym.var(name) for name in ("data", "state", "weight"))

    def step(x, states):
        new = mx.sym.dot(x, weight) + states[0]
        return [new, mx.sym.relu(x)], [new]

    outputs, states = mx.sym.contrib.foreach(step, data, [state])
    graph, node = loop_of(mx.sym.Group([*outputs, *states]))
    (body,) = bodies_of(node)
    found = variables(graph, node, body)
    assert {name.split("-")[0]: read for name, read in found.items()} == {n: n for n in ("data", "state", "weight")}
    names = list(found)
    assert [names[variable].split("-")[0] for variable in body.sliced] == ["data"]
    ((variable, head),) = body.states
    assert names[variable].startswith("state") and head == 2
    assert body.fixed_heads == {2} and not body.is_condition


def test_while_loop_has_a_condition_and_a_function():
    i, total, weight = (mx.sym.var(name) for name in ("i", "total", "weight"))
    outputs, _ = mx.sym.contrib.while_loop(
        lambda i, total: i < 5, lambda i, total: (mx.sym.dot(total, weight), [i + 1, total * 2]), [i, total], 7
    )
    graph, node = loop_of(outputs[0])
    condition, function = bodies_of(node)
    assert condition.is_condition and list(variables(graph, node, condition).values()) == ["i"]
    found = variables(graph, node, function)
    assert sorted(found.values()) == ["i", "total", "weight"]
    names = list(found.values())
    assert {names[variable]: head for variable, head in function.states} == {"i": 1, "total": 2}
    assert function.fixed_heads == {1, 2}


def test_cond_has_two_branches_that_agree():
    data = mx.sym.var("data")
    out = mx.sym.contrib.cond(mx.sym.sum(data) < 3, lambda: mx.sym.relu(data), lambda: data * 2)
    graph, node = loop_of(out)
    condition, then, otherwise = bodies_of(node)
    assert condition.is_condition and not then.is_condition and not otherwise.is_condition
    for body in (then, otherwise):
        assert list(variables(graph, node, body).values()) == ["data"]
        assert body.fixed_heads == {0} and body.states == ()


@pytest.mark.parametrize("op", [mx.sym.relu, lambda x: mx.sym.FullyConnected(x, num_hidden=2)])
def test_other_operators_have_none(op):
    assert bodies_of(to_graph(op(mx.sym.var("x"))).nodes[-1]) == ()
