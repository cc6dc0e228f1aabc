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
from mxmp.symbol import convert_model, on_cpu
from mxmp.tune import SearchResult, search
from tests.tune.networks import FAILING, Task

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


@pytest.mark.parametrize("policy", ["O1", "O2"])
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


def deep(layers):
    """Return a net whose operators all round alike, and how far it is off, lower is better."""
    net = nn.HybridSequential(prefix="deep_")
    with net.name_scope():
        net.add(*(nn.Dense(32, in_units=32, activation="relu") for _ in range(layers)))
    mx.random.seed(0)
    net.initialize(mx.init.Xavier(magnitude=4))
    data = mx.nd.random.normal(shape=(64, 32))
    expected = net(data).asnumpy()
    return net, lambda net: float(np.abs(net(data).asnumpy() - expected).mean() / np.abs(expected).mean())


def test_the_operators_that_follow_are_counted_and_not_called_kept():
    task = FAILING["long_sum"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2")
    states = {row.name: row.kept for row in result.rows}
    assert states["longsum_relu0"] == "follows"  # it reads what float32 reads: one cast less
    assert "longsum_relu0" not in str(result.policy)
    mxmp.gluon.convert(task.net, result.policy)
    task.evaluate(task.net)
    assert result.float32_operators == (0, mxmp.gluon.report(task.net).count["float32"]) == (0, 3)


def test_nothing_is_kept_where_nothing_is_needed(monkeypatch, capsys):
    """And a terminal shows what is tried."""
    net, evaluate = deep(1)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    search(net, evaluate, 0.1, "O2", higher_is_better=False, progress=False)
    assert capsys.readouterr().err == ""
    result = search(net, evaluate, 0.1, "O2", higher_is_better=False)
    assert result.policy == mxmp.Policy.parse("O2") and result.kept == () and result.evaluations == 3
    assert result.is_minimal and result.metric == result.given
    assert "evaluation 3: 0 of 2 in float32" in capsys.readouterr().err


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


@pytest.mark.parametrize("call", [4, 5, 7, 10, None])
def test_a_search_that_is_ended_gives_the_best_so_far(call):
    """By an interrupt, which is passed on where nothing was found yet, or by the number of evaluations."""
    task, calls = FAILING["normalised"](), itertools.count(1)

    def evaluate(net):
        if next(calls) == call:
            raise KeyboardInterrupt
        return task.evaluate(net)

    if call == 4:
        with pytest.raises(KeyboardInterrupt):
            search(task.net, evaluate, TOLERANCE, "O3")
    else:
        result = search(task.net, evaluate, TOLERANCE, "O3", **({} if call else {"max_evaluations": 6}))
        assert not result.is_minimal and result.metric >= result.reference - TOLERANCE and len(result.kept) >= 4
        assert "the best found before the search was ended" in str(result)
        assert call or result.evaluations == next(calls) - 1 <= 6
    assert "converted" not in repr(task.net)


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
