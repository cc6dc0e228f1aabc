"""What is decided before a graph is edited: a verdict per node, storage of parameters, bodies of control flow."""

from dataclasses import replace

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.graph import Entry, Node
from mxmp.passes import Facts, InsertCasts, classify, make_plan
from mxmp.passes.decide import FLOAT32, FREE, KEEP, LOW
from mxmp.passes.sizes import depends_on_shapes, find_sizes, shape_outcome
from mxmp.symbol import infer_facts, to_graph
from tests.graph.text import from_text
from tests.passes.graphs import with_facts


def decisions_of(text, policy="O1", dtypes=None, shapes=None):
    """Return the verdicts by node of a graph behind a variable ``x``."""
    graph, facts = with_facts("x = null()\n" + text, dtypes, shapes)
    policy = Policy.parse(policy) if isinstance(policy, str) else policy
    return {node.name: decision for node, decision in zip(graph.nodes, classify(graph, policy, facts))}


FUSED = "d = Convolution(x, x)\nm = {}(d, d)\na = elemwise_add(m, d)\nreturn a"

# A graph, a policy, and verdicts by node: a label, or a label and its reason.
DECISIONS = {
    "deny taints infer": ("e = exp(x)\na = elemwise_add(e, x)\nreturn a", "O1", {"a": FLOAT32}),
    "through clear and on": (
        "e = exp(x)\nr = Reshape(e)\nb = elemwise_add(r, x)\nc = _mul_scalar(b) {scalar: 2}\nreturn c", "O1",
        {"b": FLOAT32, "c": FLOAT32}),
    "a trailing clear is not pinned": ("e = exp(x)\nr = Reshape(e)\nreturn r", "O1", {"r": FREE}),
    "allow ends the taint": (
        "e = exp(x)\nd = dot(e, x)\na = elemwise_add(d, x)\nreturn a", "O1", {"d": LOW, "a": FREE}),
    "taint goes through what only lacks a kernel": (
        "e = exp(x)\nt = tile(e) {reps: 2}\na = elemwise_add(t, x)\nreturn a", "mixed_bfloat16",
        {"t": (FLOAT32, "MXNet has no sound bfloat16 kernel for it"), "a": (FLOAT32, "infer behind 't' (tile)")}),
    **{f"{op}, which only lacks a kernel, does not taint": (
        FUSED.format(op), "mixed_bfloat16", {"m": FLOAT32, "a": FREE}) for op in ("elemwise_mul", "sqrt")},
    "pure runs everything low that has a kernel": (
        "s = softmax(x)\ni = InstanceNorm(s, x, x)\na = elemwise_add(i, x)\nreturn a", "O3",
        {"s": LOW, "i": FLOAT32, "a": LOW}),
    "a float32 policy is the reason for all": (
        "d = dot(x, x)\nr = Reshape(d)\ns = SoftmaxOutput(r, x)\nreturn s", "O0",
        dict.fromkeys("drs", (FLOAT32, "the policy computes in float32"))),
    "exact values are carried in float32 to an output": (
        "f = dot(x, x)\ns = slice_axis(x)\nc = Concat(s, f)\nreturn c", "O1", {"s": (FLOAT32, "carries exact values")}),
    "to a deny operator": (
        "f = dot(x, x)\ns = Concat(x, f)\ne = _contrib_box_nms(s)\nreturn e", "O1",
        {"s": (FLOAT32, "carries exact values")}),
    "to an operator without rule": (
        "f = dot(x, x)\ns = Concat(x, f)\ne = Custom(s)\nreturn e", "O1", {"s": (FLOAT32, "carries exact values")}),
    "overrides by operator, name, block and region": (
        "net_a_fwd = dot(x, x)\nnet_b_soft = softmax(net_a_fwd)\n"
        "net_c_fwd = dot(net_b_soft, x) {__mxmp_precision__: float32}\n"
        "net_d_fwd = exp(net_c_fwd) {__mxmp_precision__: low}\nreturn net_d_fwd",
        Policy.parse("O1", ops={"softmax": "float16"}, blocks={"net_a": "float32"}, names={"net_c*": "float16"}),
        {"net_a_fwd": FLOAT32, "net_b_soft": LOW, "net_d_fwd": LOW,
         "net_c_fwd": (FLOAT32, "precision 'float32' (region)")}),
}  # fmt: skip


@pytest.mark.parametrize("text, policy, expected", DECISIONS.values(), ids=DECISIONS)
def test_a_verdict_and_its_reason(text, policy, expected):
    found = decisions_of(text, policy)
    for name, decision in expected.items():
        label, reason = decision if isinstance(decision, tuple) else (decision, found[name].reason)
        assert (found[name].label, found[name].reason) == (label, reason)


# Reasons for which an operator `a` is left alone, with a graph behind x and the dtypes of its entries; None is unknown.
SQRT = "a = sqrt(x)\nreturn a"
LEFT_ALONE = {
    "": (SQRT, {}),
    "input 0 is int32 already": (SQRT, {"x": "int32", "a": "int32"}),
    "input 0 is float16 already": (SQRT, {"x": "float16", "a": "float16"}),
    "input 1 is float64 already": ("y = null()\na = dot(x, y)\nreturn a", {"y": "float64"}),
    "output 0 is float64 already": (SQRT, {"a": "float64"}),
    "the dtype of input 0 is unknown": (SQRT, {"x": None}),
    "the dtype of output 0 is unknown": (SQRT, {"a": None}),
    "input 1 is sparse": ("y = null() {__storage_type__: 2}\na = dot(x, y)\nreturn a", {}),
}


@pytest.mark.parametrize("policy", ["O1", "O3"])
@pytest.mark.parametrize("reason", LEFT_ALONE)
def test_an_operator_whose_data_is_not_float32_for_certain_is_left_alone(reason, policy):
    text, dtypes = LEFT_ALONE[reason]
    found = decisions_of(text, policy, dtypes)["a"]
    assert (found.label == KEEP, found.reason if found.label == KEEP else "") == (reason != "", reason)


def test_unknown_dtype_is_left_alone():
    graph = from_text("x = null()\nr = Reshape(x)\nreturn r")
    decision = classify(graph, Policy.parse("O1"), Facts({(0, 0): "float32"}))[1]
    assert (decision.label, decision.reason) == (KEEP, "the dtype of output 0 is unknown")


LAST_LAYERS = {
    "what lies between": (
        "f = dot(x, x)\nr = relu(f)\nd = dot(r, x)\nb = elemwise_add(d, x)\nt = tanh(b)\nreturn t",
        {"d", "b", "t"},
    ),
    "a loss head and its label": (
        "y = null()\nf = dot(x, x)\nd = dot(f, x)\nl = dot(y, y)\ns = SoftmaxOutput(d, l)\nreturn s",
        {"d", "s"},
    ),
    "several outputs": (
        "f = dot(x, x)\na = dot(f, x)\nb = Convolution(f, x)\nr = Reshape(b)\nreturn a, r",
        {"a", "b", "r"},
    ),
    "a branch past a product": (
        "f = dot(x, x)\nr = relu(f)\nd = dot(r, x)\ns = elemwise_add(d, r)\nreturn s",
        {"f", "r", "d", "s"},
    ),
    "an output in the middle": ("f = dot(x, x)\nr = relu(f)\nd = dot(r, x)\nreturn d, r", {"f", "r", "d"}),
    "an input that lends its shape": (
        "f = dot(x, x)\nd = dot(f, x)\nz = zeros_like(f)\ns = broadcast_add(d, z)\nreturn s",
        {"d", "z", "s"},
    ),
    "no product at all": ("r = relu(x)\ns = square(r)\nreturn s", {"r", "s"}),
}


@pytest.mark.parametrize("policy", ["O1", "O3"])
@pytest.mark.parametrize("text, expected", LAST_LAYERS.values(), ids=LAST_LAYERS)
def test_the_last_layer_in_float32(text, expected, policy):
    found = decisions_of(text, Policy.parse(policy, last_layer_fp32=True))
    assert {name for name, decision in found.items() if decision.reason == "last layer"} == expected
    assert all(found[name].label == FLOAT32 for name in expected)


@pytest.mark.parametrize(
    "changes", [{"names": {"net_d": "float16"}}, {"ops": {"dot": "float16"}}, {"blocks": {"net": "float16"}}, {}]
)
def test_overrides_and_regions_overrule_the_last_layer(changes):
    region = "" if changes else " {__mxmp_precision__: low}"
    policy = Policy.parse("O1", last_layer_fp32=True, **changes)
    found = decisions_of(f"net_d = dot(x, x){region}\nr = relu(net_d)\nreturn r", policy)
    assert (found["net_d"].label, found["r"].label) == (LOW, FLOAT32)


def test_equal_outcomes_of_shapes_are_equal_verdicts():
    found = {}
    text = "w = null()\ndot = dot(x, w)\nrows = sum(dot) {axis: 0}\nall = sum(dot)\nreturn rows, all"
    assert depends_on_shapes(from_text("x = null()\n" + text), "float16")
    for rows in (1, 8, 1000, 1024, 1025, 4000, None):
        for columns in (1, 2, 600):
            shapes = {} if rows is None else {"dot": (rows, columns, 32, 8)}
            graph, facts = with_facts("x = null()\n" + text, shapes=shapes)
            labels = tuple(decision.label for decision in decisions_of(text, shapes=shapes).values())
            assert found.setdefault(shape_outcome(graph, "float16", facts), labels) == labels
    assert len(found) == len(set(found.values())) > 2


def loop(rounds):
    """Return a graph and facts on a foreach that adds each row to a state, and the state's node within."""
    body = "d = null()\ns = null()\nt = elemwise_add(s, d)\nreturn d, t"
    node = Node(
        "_foreach",
        "loop",
        (("in_data_locs", "[0]"), ("in_state_locs", "[1]"), ("num_out_data", "1"), ("remain_locs", "[]")),
        (Entry(0), Entry(1)),
        num_outputs=2,
        subgraphs=(from_text(body),),
    )
    graph = from_text("x = null()\nz = null()\nreturn x")
    graph = replace(graph, nodes=(*graph.nodes, node), heads=(Entry(2, 0), Entry(2, 1)))
    shapes = {(0, 0): (rounds, 4), (1, 0): (4,)} if rounds else {}
    facts = replace(Facts.assume_float32(graph), shapes=shapes, bodies={(2, 0): Facts.assume_float32(from_text(body))})
    return graph, facts


@pytest.mark.parametrize(
    "rounds, reason",
    [
        (1023, None),
        (1024, "it sums 1025 terms in all, more than 1024"),
        (None, "it may sum more than 1024 terms in all"),
    ],
)
def test_a_state_that_a_loop_adds_to_is_the_sum_of_all_rounds(rounds, reason):
    graph, facts = loop(rounds)
    assert find_sizes(graph, facts, "float16").bodies[2, 0].reasons.get(2) == reason
    assert depends_on_shapes(graph, "float16")
    short, short_facts = loop(2)
    is_alike = shape_outcome(graph, "float16", facts) == shape_outcome(short, "float16", short_facts)
    assert is_alike == (reason is None)


# Storage of parameters.


def count_casts(graph):
    return sum(node.op == "Cast" for node in graph.nodes)


class Planned:
    """A plan with its graph, asked by name."""

    def __init__(self, text, policy="O2", params=(), shapes=None, out_of_range=(), **options):
        self.graph, self.facts = with_facts(text, None, shapes, params=params, out_of_range=out_of_range)
        self.policy = Policy.parse(policy)
        self.at = {node.name: i for i, node in enumerate(self.graph.nodes)}
        self.plan = make_plan(self.graph, self.policy, self.facts, **options)

    def stored_low(self):
        return {self.graph.nodes[position].name for position in self.plan.low_params}

    def casts(self):
        """Return the number of casts that the plan leads to."""
        return count_casts(InsertCasts(self.policy, self.facts, self.plan)(self.graph).graph)

    def low(self):
        """Return the names of the operators that run in low precision."""
        nodes = [self.graph.nodes[position] for position in self.plan.low]
        return {node.name for node in nodes if not node.is_variable}


LAYER = "x = null()\nw = null()\nd = dot(x, w)\n"


CARRIED = "x = null()\nw = null()\nv = null()\n{}\nd = dot(x, c)\nreturn d"
CONCAT = "a = Reshape(w) {shape: -1}\nb = Reshape(v) {shape: -1}\nc = Concat(a, b) {dim: 0; num_args: 2}"
SHAPES = {"x": (2, 8), "w": (2, 2), "v": (4,), "a": (4,), "b": (4,), "c": (8,), "d": (2,)}

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
@pytest.mark.parametrize("text", NOT_STORED.values(), ids=NOT_STORED)
def test_a_parameter_stays_float32_if(text, final):
    assert "w" not in Planned(text, params=["w"], final=final).stored_low()


NOT_CARRIED = {
    "another input": (CARRIED.format(CONCAT), "w", {}),  # v is data
    "float32 reads it": (CARRIED.format(CONCAT).replace("return d", "e = exp(c)\nreturn d, e"), "wv", {}),
    "it is an output": (CARRIED.format(CONCAT).replace("return d", "return d, a"), "wv", {}),
    "its gradients add up": (CARRIED.format("c = tile(w) {reps: 2}"), "w", {"c": (2, 4)}),
    "it is gathered by an index": (CARRIED.format("c = Embedding(v, w)"), "w", {"c": (2, 2)}),
    "shapes are unknown": (CARRIED.format(CONCAT), "wv", {"c": (0,)}),
}


@pytest.mark.parametrize("text, params, shapes", NOT_CARRIED.values(), ids=NOT_CARRIED)
def test_a_parameter_is_not_stored_through_a_carrier_if(text, params, shapes):
    known = {name: shape for name, shape in {**SHAPES, **shapes}.items() if f"{name} = " in text}
    assert Planned(text, params=params, shapes=known).stored_low() == set()


READ_TWICE = LAYER + "s = null()\nm = elemwise_mul(d, s)\nf = dot(m, m)\nreturn f"

# A graph, options of its plan, and the parameters that are stored low, operators that run low, and casts.
STORED = {
    "where the policy keeps them in float32": (LAYER + "return d", {"policy": "O1", "params": "w"}, "", "d", 3),
    "where it stores them low": (LAYER + "return d", {"params": "w"}, "w", "d", 2),
    "beyond the range, float32 with their readers": (
        LAYER + "f = dot(d, x)\nreturn f", {"params": "w", "out_of_range": "w"}, "", "f", 3),
    # The label of m depends on shapes, which other calls may change; where none will come, it is settled.
    "of free operators": (READ_TWICE, {"params": "ws"}, "w", "dmf", 3),
    "of free operators once and for all": (READ_TWICE, {"params": "ws", "final": True}, "ws", "dmf", 2),
    "that are carried to low operators alone, as those of gluon.rnn": (
        CARRIED.format(CONCAT), {"params": "wv", "shapes": SHAPES}, "wv", "abcd", 2),
    "that are low already": ("w = null()\ne = exp(w)\nreturn e", {"params": "w", "stored": frozenset("w")}, "w", "", 1),
}  # fmt: skip


@pytest.mark.parametrize("text, options, stored, low, casts", STORED.values(), ids=STORED)
def test_parameters_are_stored(text, options, stored, low, casts):
    found = Planned(text, **options)
    assert (found.stored_low(), found.low(), found.casts()) == (set(stored), set(low), casts)


def dense(data, weight, name):
    return mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=4, name=name, flatten=False)


@pytest.mark.parametrize("read, low_outputs", [(True, {0}), (False, frozenset())])
def test_an_output_of_a_loop_comes_low_if_only_layers_read_it(read, low_outputs):
    """That of the network cannot: its name, '<node>_output0', can be no cast's."""
    seq, s, w, v = (mx.sym.var(name) for name in ("seq", "s", "w", "v"))
    out, _ = mx.sym.contrib.foreach(lambda x, state: (dense(x, w, "inside"), dense(state, w, "again")), seq, s)
    symbol = dense(out, v, "after") if read else out
    graph = to_graph(symbol)
    types = dict.fromkeys(symbol.list_arguments(), "float32")
    policy, facts = Policy.parse("O1"), infer_facts(symbol, graph, {}, types, frozenset())
    plan = make_plan(graph, policy, facts)
    position = next(i for i, node in enumerate(graph.nodes) if node.subgraphs)
    assert plan.decisions[position].low_outputs == low_outputs and plan.gives_low(position, 0) == read
    if read:  # outside: seq, w, v, the last layer's output; inside: the state, down and up
        after = InsertCasts(policy, facts, plan)(graph).graph
        (loop,) = (node for node in after.nodes if node.subgraphs)
        assert (count_casts(after), *map(count_casts, loop.subgraphs)) == (4, 2)


def test_a_position_that_is_an_output_is_counted_as_float32_whatever_the_output_dtype():
    """The casts are of x and of what argmax reads."""
    assert Planned("x = null()\nd = dot(x, x)\na = argmax(d)\nreturn a, d", policy="O1,output=float16").casts() == 2


def test_what_scales_a_product_of_too_many_terms_is_float32():
    """The product may be beyond float16's range, and what is behind it within."""
    shapes = {"x": (1, 2048, 2048), "d": (1, 2048, 2048)}
    found = decisions_of("d = batch_dot(x, x)\nm = _mul_scalar(d) {scalar: 0.001}\nreturn m", shapes=shapes)
    assert (found["m"].label, found["m"].reason) == (FLOAT32, "infer behind 'd' (batch_dot)")


def test_the_parameters_of_a_sampler_need_not_be_exact():
    found = decisions_of("d = dot(x, x)\nr = relu(d)\ns = _sample_normal(r, r)\nreturn s")
    assert found["r"].label == FREE
