"""What is decided before a graph is edited: storage of parameters, and the bodies of control flow."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp.passes import make_plan
from mxmp.passes.decide import FLOAT32, LOW
from mxmp.policy import Policy
from mxmp.symbol import infer_facts, to_graph
from tests.passes.graphs import with_facts

O1, O2 = Policy.parse("O1"), Policy.parse("O2")


class Planned:
    """A plan with its graph, asked by name."""

    def __init__(self, text, policy=O2, params=(), dtypes=None, shapes=None, out_of_range=(), **options):
        self.graph, facts = with_facts(text, dtypes, shapes, params=params, out_of_range=out_of_range)
        self.at = {node.name: i for i, node in enumerate(self.graph.nodes)}
        self.plan = make_plan(self.graph, policy, facts, **options)

    def stored_low(self):
        return {self.graph.nodes[position].name for position in self.plan.low_params}

    def low(self):
        """Return the names of the operators that run in low precision."""
        names = {self.graph.nodes[position].name for position in self.plan.placement.low}
        return {name for name in names if not self.graph.nodes[self.at[name]].is_variable}

    def label(self, name):
        return self.plan.verdicts[self.at[name]].label


LAYER = "x = null()\nw = null()\nd = dot(x, w)\n"


def test_ports_that_are_never_cast_are_read_as_they_are():
    found = Planned("i = null()\nw = null()\ne = Embedding(i, w)\nd = dot(e, w)\nreturn d", params=["w"])
    assert "e" in found.low()
    assert not found.plan.reads_low(found.at["e"], 0) and found.plan.reads_low(found.at["e"], 1)


@pytest.mark.parametrize("policy, stored, casts", [(O1, set(), 3), (O2, {"w"}, 2)], ids=["O1", "O2"])
def test_storage_is_the_policys_choice(policy, stored, casts):
    found = Planned(LAYER + "return d", policy, params=["w"])
    assert (found.stored_low(), found.plan.casts()) == (stored, casts)


NOT_STORED = {
    "a float32 operator reads it too": LAYER + "e = exp(w)\nreturn d, e",
    "a float32 operator reads it alone": "w = null()\ne = exp(w)\nreturn e",
    "an operator without rule reads it too": LAYER + "c = Custom(w)\nreturn d, c",
    "a port that stays float32 reads it too": LAYER + "bn = BatchNorm(d, w, w, w, w) x3\nreturn bn",
    "a port for indices reads it too": LAYER + "e = Embedding(w, x)\nf = dot(e, x)\nreturn d, f",
    "it is an output": LAYER + "return d, w",
    "nothing reads it": "x = null()\nw = null()\nr = relu(x)\nreturn r",
}


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("text", NOT_STORED.values(), ids=NOT_STORED.keys())
def test_a_parameter_stays_float32_if(text, final):
    assert "w" not in Planned(text, params=["w"], final=final).stored_low()


def test_parameters_beyond_the_range_stay_float32_with_their_readers():
    found = Planned(LAYER + "f = dot(d, x)\nreturn f", params=["w"], out_of_range=["w"])
    assert (found.label("d"), found.label("f")) == (FLOAT32, LOW)
    assert found.stored_low() == set()


@pytest.mark.parametrize("final, stored", [(False, {"w"}), (True, {"w", "s"})])
def test_a_parameter_of_free_operators_is_stored_once_and_for_all_or_not(final, stored):
    """The label of ``m`` depends on shapes, which other calls may change; where none will come, it is settled."""
    found = Planned(
        LAYER + "s = null()\nm = elemwise_mul(d, s)\nf = dot(m, m)\nreturn f", params=["w", "s"], final=final
    )
    assert "m" in found.low() and found.stored_low() == stored
    assert found.plan.casts() == 2 + (not final)


CARRIED = "x = null()\nw = null()\nv = null()\n{}\nd = dot(x, c)\nreturn d"
CONCAT = "a = Reshape(w) {shape: -1}\nb = Reshape(v) {shape: -1}\nc = Concat(a, b) {dim: 0; num_args: 2}"
SHAPES = {"x": (2, 8), "w": (2, 2), "v": (4,), "a": (4,), "b": (4,), "c": (8,), "d": (2,)}


def test_parameters_that_are_carried_to_low_operators_alone_are_stored():
    """As gluon.rnn carries its weights to the RNN operator."""
    found = Planned(CARRIED.format(CONCAT), params=["w", "v"], shapes=SHAPES)
    assert found.stored_low() == {"w", "v"} and found.low() == {"a", "b", "c", "d"}
    assert found.plan.casts() == 2  # x, and d back


NOT_CARRIED = {
    "another input": (CARRIED.format(CONCAT), ["w"], {}),  # v is data
    "float32 reads it": (CARRIED.format(CONCAT).replace("return d", "e = exp(c)\nreturn d, e"), ["w", "v"], {}),
    "it is an output": (CARRIED.format(CONCAT).replace("return d", "return d, a"), ["w", "v"], {}),
    "its gradients add up": (CARRIED.format("c = tile(w) {reps: 2}"), ["w"], {"c": (2, 4)}),
    "it is gathered by an index": (CARRIED.format("c = Embedding(v, w)"), ["w"], {"c": (2, 2)}),
    "shapes are unknown": (CARRIED.format(CONCAT), ["w", "v"], {"c": (0,)}),
}


@pytest.mark.parametrize("text, params, shapes", NOT_CARRIED.values(), ids=NOT_CARRIED.keys())
def test_a_parameter_is_not_stored_through_a_carrier_if(text, params, shapes):
    shapes = {name: shape for name, shape in {**SHAPES, **shapes}.items() if f"{name} = " in text}
    assert Planned(text, params=params, shapes=shapes).stored_low() == set()


def test_what_is_stored_low_already_stays_so():
    found = Planned("w = null()\ne = exp(w)\nreturn e", params=["w"], stored=frozenset(["w"]))
    assert found.stored_low() == {"w"}
    assert found.plan.casts() == 1 and not found.plan.reads_low(found.at["e"], 0)  # to float32, in front of exp


def plan_of(symbol, policy=O1, shapes=None, params=()):
    """Return (plan, graph, position of the control flow node)."""
    graph = to_graph(symbol)
    types = dict.fromkeys(symbol.list_arguments(), "float32")
    facts = infer_facts(symbol, graph, shapes or {}, types, frozenset(params))
    position = next(i for i, node in enumerate(graph.nodes) if node.subgraphs)
    return make_plan(graph, policy, facts), graph, position


def dense(data, weight, name):
    return mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=4, name=name)


def recurrent(read=True):
    """Return a loop whose output is read by another layer, or is the graph's; all that reads its state is low."""
    weight = mx.sym.var("w")

    def step(x, state):
        hidden = dense(x, weight, "inside")
        return hidden, dense(state, weight, "again")

    out, _ = mx.sym.contrib.foreach(step, mx.sym.var("seq"), mx.sym.var("s"))
    after = mx.sym.FullyConnected(out, mx.sym.var("v"), no_bias=True, num_hidden=4, name="after", flatten=False)
    return after if read else out


def names_of(graph, position, ports):
    return {graph.entry_name(graph.nodes[position].inputs[port]) for port in ports}


def test_an_output_that_only_layers_read_comes_low():
    plan, _, position = plan_of(recurrent())
    assert plan.verdicts[position].low_outputs == {0} and plan.gives_low(position, 0)


def test_an_output_of_the_network_comes_in_float32():
    """Its name, '<node>_output0', can be no cast's."""
    plan, _, position = plan_of(recurrent(read=False))
    assert plan.verdicts[position].low_outputs == frozenset()


def test_casts_of_bodies_are_counted():
    """Outside: seq, w, v, the last layer's output; inside: the state, down and up."""
    plan, _, position = plan_of(recurrent())
    assert (plan.placement.casts, plan.bodies[position, 0].casts(), plan.casts()) == (4, 2, 6)
