"""Search by accuracy: on networks that fail in float16, against all subsets; its ends, its errors, its report."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon import nn

import mxmp
from mxmp.errors import PolicyError, TuneError
from mxmp.symbol import convert_model, on_cpu
from mxmp.tune import SearchResult, search
from tests.tune.networks import FAILING, Task, trained_digits

TOLERANCE = 0.01


def low_names(net, policy, evaluate):
    """Return the names of the operators that a policy has in low precision."""
    mxmp.gluon.convert(net, policy)
    evaluate(net)
    found = {row.name for row in mxmp.gluon.report(net).rows if row.precision == "float16"}
    mxmp.gluon.restore(net)
    return sorted(found)


def metric_of(task, policy, kept, names):
    """Return the metric with some of the operators in float32 and all others in float16."""
    overrides = {name: "float32" if name in kept else "float16" for name in names}
    try:
        return task.evaluate(mxmp.gluon.convert(task.net, mxmp.Policy.parse(policy, names=overrides)))
    finally:
        mxmp.gluon.restore(task.net)


def fewest(task, policy, tolerance):
    """Return how many operators have to be in float32, by trying all sets, the smallest first."""
    names, reference = low_names(task.net, policy, task.evaluate), task.evaluate(task.net)
    for count in range(len(names) + 1):
        for kept in itertools.combinations(names, count):
            if metric_of(task, policy, kept, names) >= reference - tolerance:
                return count
    raise AssertionError("not even all of them")


@pytest.mark.parametrize("policy", ["O1", "O2", pytest.param("O3", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAILING)
def test_the_fewest_operators_are_found_where_float16_fails(name, policy):
    task = FAILING[name]()
    names = low_names(task.net, policy, task.evaluate)
    result = search(task.net, task.evaluate, TOLERANCE, policy)
    assert not result.given >= result.reference - TOLERANCE, "it does not fail, so nothing is shown"
    assert result.metric >= result.reference - TOLERANCE and result.is_minimal
    assert len(result.kept) == fewest(task, policy, TOLERANCE)
    # What the rules keep in float32 stays there: overrides are of what was low, and ask for no less.
    assert dict(result.policy.names).keys() <= set(names) and set(dict(result.policy.names).values()) == {"float32"}
    # The policy holds afterwards, printed and parsed.
    assert task.evaluate(mxmp.gluon.convert(task.net, str(result.policy))) == result.metric
    precisions = {row.name: row.precision for row in mxmp.gluon.report(task.net).rows}
    assert all(precisions[name] == "float32" for name in result.kept)


def test_what_a_trained_classifier_needs_is_found():
    task = trained_digits()
    result = search(task.net, task.evaluate, 0.005, "O2")
    assert result.reference > 0.9 and math.isnan(result.given)
    assert result.metric >= result.reference - 0.005
    # The squares of filtered pixels, up to the root that brings them back into float16's range.
    assert set(result.kept) == {"digits__mul0", "digits__plusscalar0", "digits_sqrt0"}
    assert result.evaluations <= 12 and result.operators == 13


def deep(layers=4):
    """Return a net whose operators all round alike, and how far it is off, lower is better."""
    np.random.seed(0)
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="deep_")
    with net.name_scope():
        for _ in range(layers):
            net.add(nn.Dense(32, in_units=32, activation="relu"))
    net.initialize(mx.init.Xavier(magnitude=4))
    data = mx.nd.random.normal(shape=(64, 32))
    expected = net(data).asnumpy()
    return net, lambda net: float(np.abs(net(data).asnumpy() - expected).mean() / np.abs(expected).mean())


def test_where_all_operators_round_alike_the_set_is_1_minimal_though_a_smaller_one_may_be_there():
    """On 12 layers one with 5 operators has been seen, where the search finds 7."""
    net, evaluate = deep(12)
    result = search(net, evaluate, 1e-3, "O2", higher_is_better=False)
    assert result.given > 1e-3 >= result.metric and result.is_minimal
    needed = [row for row in result.rows if row.kept == "yes"]
    assert 1 <= len(needed) <= 12 and all(row.metric_without > 1e-3 for row in needed)


def test_the_operators_that_follow_are_counted_and_not_called_kept():
    task = FAILING["long_sum"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2")
    states = {row.name: row.kept for row in result.rows}
    assert states["longsum_relu0"] == "follows"  # it reads what float32 reads: one cast less
    assert "longsum_relu0" not in str(result.policy)
    mxmp.gluon.convert(task.net, result.policy)
    task.evaluate(task.net)
    assert result.float32_operators == (0, mxmp.gluon.report(task.net).count["float32"]) == (0, 3)


def test_nothing_is_kept_where_nothing_is_needed():
    net, evaluate = deep(1)
    result = search(net, evaluate, 0.1, "O2", higher_is_better=False)
    assert result.policy == mxmp.Policy.parse("O2") and result.kept == () and result.evaluations == 3
    assert result.is_minimal and result.metric == result.given


def test_what_the_policy_asks_for_by_name_stays_in_low_precision():
    task = FAILING["normalised"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2,name:*_dense?_fwd=float16")
    assert dict(result.policy.names)["*_dense?_fwd"] == "float16"
    fixed = {row.name for row in result.rows if row.kept == "cannot"}
    assert fixed == {"normalised_dense0_fwd", "normalised_dense1_fwd"} and not fixed & set(result.kept)


class Twice(gluon.HybridBlock):
    """Calls one activation twice, the second time behind an exponential, where the rules want float32."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.last = nn.Dense(8, in_units=8), nn.Dense(4, in_units=8)
            self.act = nn.LeakyReLU(0.5)

    def hybrid_forward(self, F, x):
        return self.last(self.act(F.exp(-self.act(self.first(x)))))


def twice():
    net = Twice(prefix="net_")
    net.initialize()
    return Task(net, None)


@pytest.mark.parametrize(
    "build, policy",
    [(FAILING["normalised"], "O2"), (twice, "O1"), (twice, "O1,op:exp=float16,block:net_dense0=float16")],
)
def test_an_operator_that_alone_is_needed_is_found_whatever_follows_it(build, policy):
    """In each trial just those that are kept are in float32, and what the rules have there."""
    net, data = build().net, mx.nd.ones((4, 8))
    names = low_names(net, policy, lambda net: net(data))
    mxmp.gluon.convert(net, policy)(data)
    wide = [row.precision == "float32" for row in mxmp.gluon.report(net).rows]
    mxmp.gluon.restore(net)

    def needs(name):
        def evaluate(net):
            net(data)
            if "converted" not in repr(net):
                return 1.0
            rows = mxmp.gluon.report(net).rows
            assert all(row.precision == "float32" for row, is_wide in zip(rows, wide) if is_wide)
            return float(all(row.precision == "float32" for row in rows if row.name == name))

        return evaluate

    assert len(names) >= 4
    assert [search(net, needs(name), 0.5, policy).kept for name in names] == [(name,) for name in names]


def test_what_cannot_be_reached_is_an_error_that_says_what_is_left_in_float16():
    task = FAILING["energy"]()
    with pytest.raises(
        TuneError,
        match=r"the metric is nan; it has to be at least -0\.01, as it is 0 in float32\. What is left: float16 is asked for by "
        r"name of 'energy__mul0' \(elemwise_mul\)\.",
    ):
        search(task.net, task.evaluate, TOLERANCE, "O2,name:*_mul0=float16")


@pytest.mark.parametrize("higher, bound", [(True, "least 399999"), (False, r"most 400001")])
def test_outputs_in_float16_are_named_where_they_cannot_hold_the_result(higher, bound):
    net = nn.Dense(1, in_units=4, prefix="big_")
    net.initialize(mx.init.Constant(1e5))
    data = mx.nd.ones((1, 4))
    match = rf"it has to be at {bound}, as it is 400000 in float32\. What is left: the outputs come in float16\."
    with pytest.raises(TuneError, match=match):
        search(net, lambda net: float(net(data).asnumpy()[0, 0]), 1.0, "float16", higher_is_better=higher)


def test_the_search_ends_with_the_best_found_if_it_may_not_evaluate_more_often():
    task = FAILING["normalised"]()
    calls = []
    result = search(task.net, lambda net: calls.append(0) or task.evaluate(net), TOLERANCE, "O3", max_evaluations=6)
    assert len(calls) == result.evaluations <= 6
    assert not result.is_minimal and result.metric >= result.reference - TOLERANCE
    assert len(result.kept) >= 4  # the fewest
    assert "the best found before the search was ended" in str(result)


def interrupted(task, call):
    """Return the result of a search whose evaluation of this number is interrupted."""
    calls = itertools.count(1)

    def evaluate(net):
        if next(calls) == call:
            raise KeyboardInterrupt
        return task.evaluate(net)

    return search(task.net, evaluate, TOLERANCE, "O3")


@pytest.mark.parametrize("call", [5, 7, 10])
def test_an_interrupt_gives_the_best_so_far_and_is_passed_on_before_there_is_one(call):
    task = FAILING["normalised"]()
    with pytest.raises(KeyboardInterrupt):
        interrupted(task, 4)
    result = interrupted(task, call)
    assert not result.is_minimal and result.metric >= result.reference - TOLERANCE
    assert "converted" not in repr(task.net)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"policy": "float32"}, "is float32, so there is nothing to search"),
        ({"policy": "O2,name:nothing=float32"}, "'nothing' matches no node"),
        ({"max_evaluations": 3}, "max_evaluations=3: expected a whole number from 4 on"),
        ({"max_evaluations": 10.0}, "max_evaluations=10.0: expected a whole number"),
        ({"tolerance": -1}, "tolerance=-1: expected a finite number from 0 on"),
        ({"tolerance": math.nan}, "tolerance=nan: expected a finite number from 0 on"),
        ({"tolerance": "1%"}, "tolerance='1%': expected a finite number from 0 on"),
        ({"evaluate": 0.5}, "evaluate is a float; expected a function of the network"),
        ({"higher_is_better": "lower"}, "higher_is_better='lower': expected True or False"),
        ({"for_inference": "yes"}, "for_inference='yes': expected True or False"),
        ({"for_inference": True}, "for_inference: BatchNorm is folded in models, not in a Dense; give its symbol"),
        ({"batches": []}, "batches is for a symbol with parameters or a Module; a net's are what evaluate"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    net = nn.Dense(1, in_units=4)
    net.initialize()
    given = {"evaluate": lambda net: net(mx.nd.ones((2, 4))).shape[0], "tolerance": 0.1, **arguments}
    with pytest.raises((TuneError, PolicyError), match=message):
        search(net, **given)


def test_the_result_is_json_and_a_table():
    task = FAILING["energy"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2")
    read = json.loads(result.to_json())
    assert read["policy"] == str(result.policy) and read["given"] == "nan" and read["is_minimal"] is True
    assert [row["name"] for row in read["rows"]] == [row.name for row in result.rows]
    assert read["rows"][0] == {
        "name": "energy__mul0", "op": "elemwise_mul", "own": "inf", "carried": "inf", "kept": "yes",
        "metric_without": "nan",
    }  # fmt: skip
    assert [row.name for row in result.rows if math.isinf(row.own)] == ["energy__mul0", "energy_dense1_fwd"]
    assert math.isinf(next(row for row in result.rows if row.name == "energy_dense2_fwd").carried)
    text = str(result)
    assert all(row.name in text for row in result.rows)
    assert result.summary[1] == "kept in float32: 2 operators by 2 names, each of them is needed"
    assert result.summary[3] == f"evaluations: {result.evaluations}" and "each of them is needed" in text
    again = SearchResult.from_json(result.to_json())
    assert (again.kept, again.policy) == (result.kept, result.policy)


def test_a_terminal_shows_what_is_tried(monkeypatch, capsys):
    net, evaluate = deep(1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    search(net, evaluate, 0.1, "O2", higher_is_better=False, progress=False)
    assert capsys.readouterr().err == ""
    search(net, evaluate, 0.1, "O2", higher_is_better=False)
    assert "evaluation 3: 0 of 2 in float32" in capsys.readouterr().err


def test_a_folded_model_needs_what_it_needs_itself():
    """Of a convolution beyond float16's range, BatchNorm, which brings it back, and squares that leave it again.

    The oracle: all sets of operators, each converted with its BatchNorm folded.
    """
    conv = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv")
    features = mx.sym.BatchNorm(conv, fix_gamma=False, name="norm") * 300
    symbol = mx.sym.FullyConnected(features * features * 1e-4, num_hidden=3, name="scores")
    mx.random.seed(0)
    data = mx.nd.random.normal(shape=(4, 3, 8, 8)) * 8e3
    sizes = dict(zip(symbol.list_arguments(), symbol.infer_shape(data=data.shape)[0]))
    args = {name: mx.nd.random.uniform(-1, 1, size) for name, size in sizes.items() if name != "data"}
    values = conv.eval(data=data, conv_weight=args["conv_weight"], conv_bias=args["conv_bias"])[0].asnumpy()
    assert np.abs(values).max() > 65504 > np.abs(data.asnumpy()).max()
    aux = {f"norm_moving_{name}": mx.nd.array(each((0, 2, 3))) for name, each in (("mean", values.mean), ("var", values.var))}

    def output(model):
        sym, args, aux = model
        return sym.bind(mx.cpu(), {**args, "data": data}, aux_states=aux).forward()[0].asnumpy()

    exact, seen = output((symbol, args, aux)), []

    def evaluate(model):
        seen.append({node["op"] for node in json.loads(model.symbol.tojson())["nodes"]})
        return float(np.abs(output(model) - exact).max() / np.abs(exact).max())

    options = {"batches": [{"data": data}], "higher_is_better": False}
    result = search((symbol, args, aux), evaluate, 0.02, "O2", for_inference=True, **options)
    names = [row.name for row in result.rows]
    assert not any("BatchNorm" in ops for ops in seen) and "norm" not in names and result.operators == len(names) == 5
    passing = []
    for kept in (set(kept) for count in range(6) for kept in itertools.combinations(names, count)):
        policy = mxmp.Policy.parse("O2", names={name: "float32" if name in kept else "float16" for name in names})
        model = convert_model(symbol, args, aux, policy, {"data": data.shape}, for_inference=True)
        passing += [kept] if evaluate(dataclasses.replace(model, symbol=on_cpu(model.symbol))) <= 0.02 else []
    assert set(result.kept) in [kept for kept in passing if len(kept) == len(passing[0])]
    plain = search((symbol, args, aux), evaluate, 0.02, "O2", **options)
    assert "conv" in set(plain.kept) - set(result.kept)
