"""Search by accuracy: on networks that fail in float16, against all subsets; its ends, its report; nets of many kinds."""

import itertools
import json
import math
import sys
from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.errors import TuneError
from mxmp.symbol import ConvertedModel, convert_model
from mxmp.tune import SearchResult, search
from tests.diagnose.nets import state
from tests.tune.networks import FAILING, chain, error_of, function, make_module

TOLERANCE = 0.01
DATA = mx.nd.array(np.random.RandomState(0).randn(16, 8) * 100)


def rows_of(net, policy, run):
    """Return the report's rows of a net that is run under a policy, and is float32 again."""
    run(mxmp.gluon.convert(net, policy))
    rows = mxmp.gluon.report(net).rows
    mxmp.gluon.restore(net)
    return rows


def fewest(task, policy, names, least):
    """Return how many operators have to be in float32, by trying all sets, the smallest first."""
    for kept in (set(each) for count in range(9) for each in itertools.combinations(names, count)):
        overrides = {name: "float32" if name in kept else "float16" for name in names}
        metric = task.evaluate(mxmp.gluon.convert(task.net, mxmp.Policy.parse(policy, names=overrides)))
        mxmp.gluon.restore(task.net)
        if metric >= least:
            return len(kept)


@pytest.mark.parametrize("name, policy", [("energy", "O1"), ("long_sum", "O2"), ("normalised", "O1"), ("normalised", "O2")])
def test_the_fewest_operators_are_found_where_float16_fails(name, policy):
    task = FAILING[name]()
    before = rows_of(task.net, policy, task.evaluate)
    names = sorted({row.name for row in before if row.precision == "float16"})
    result = search(task.net, task.evaluate, TOLERANCE, policy)
    least = result.reference - TOLERANCE
    assert not result.given >= least, "it does not fail, so nothing is shown"
    assert result.metric >= least and result.is_minimal
    assert len(result.kept) == fewest(task, policy, names, least)
    # What the rules keep in float32 stays there: overrides are of what was low, and ask for no less.
    assert dict(result.policy.names).keys() <= set(names) and set(dict(result.policy.names).values()) == {"float32"}
    # The policy holds afterwards, printed and parsed. What follows is counted, but not called kept.
    assert task.evaluate(mxmp.gluon.convert(task.net, str(result.policy))) == result.metric
    wide = {row.name for row in mxmp.gluon.report(task.net).rows if row.precision == "float32"}
    assert set(result.kept) <= wide
    if name == "long_sum":
        states = {row.name: row.kept for row in result.rows}
        assert states["longsum_relu0"] == "follows"  # it reads what float32 reads: one cast less
        assert result.float32_operators == (0, len(wide)) == (0, 4)


def test_nothing_is_kept_where_nothing_is_needed(monkeypatch, capsys):
    """And a terminal shows what is tried."""
    net = chain("deep_", lambda: [nn.Dense(8, in_units=8, activation="relu")], mx.init.Xavier())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    search(net, error_of(net, DATA), 0.1, "O2", higher_is_better=False, progress=False)
    assert capsys.readouterr().err == ""
    result = search(net, error_of(net, DATA), 0.1, "O2", higher_is_better=False)
    assert result.policy == mxmp.Policy.parse("O2") and result.kept == () and result.evaluations == 3
    assert result.is_minimal and result.metric == result.given
    assert "evaluation 3: 0 of 2 in float32" in capsys.readouterr().err


def test_what_the_policy_asks_for_by_name_stays_in_low_precision():
    task = FAILING["normalised"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2,name:*_dense?_fwd=float16")
    assert dict(result.policy.names)["*_dense?_fwd"] == "float16"
    fixed = {row.name for row in result.rows if row.kept == "cannot"}
    assert fixed == {"normalised_dense0_fwd", "normalised_dense1_fwd"} and not fixed & set(result.kept)


def twice():
    """Return a net that calls an activation twice, then behind an exponential, where the rules want float32."""
    act = nn.LeakyReLU(0.5, prefix="net_act_")
    return chain("net_", lambda: [
        nn.Dense(8, in_units=8), act, function(lambda F, x: F.exp(-x)), act, nn.Dense(4, in_units=8)
    ])  # fmt: skip


@pytest.mark.parametrize("policy", ["O1", "O1,op:exp=float16,block:net_dense0=float16"])
def test_an_operator_that_alone_is_needed_is_found_whatever_follows_it(policy):
    """In each trial just those that are kept are in float32, and what the rules have there."""
    net, data = twice(), mx.nd.ones((4, 8))
    before = rows_of(net, policy, lambda net: net(data))
    names = sorted({row.name for row in before if row.precision == "float16"})

    def needs(name):
        def evaluate(net):
            net(data)
            rows = mxmp.gluon.report(net).rows if "converted" in repr(net) else []
            assert all(row.precision == "float32" for row, was in zip(rows, before) if was.precision == "float32")
            return float(all(row.precision == "float32" for row in rows if row.name == name))

        return evaluate

    assert len(names) >= 4
    kept = [search(net, needs(name), 0.5, policy).kept for name in names]
    # The rules have the second call of the activation in float32, so that no trial puts its name low: the first call
    # follows the layer before it.
    follows = {"net_act_fwd": "net_dense0_fwd"} if policy == "O1" else {}
    assert kept == [(follows.get(name, name),) for name in names]


@pytest.mark.parametrize("call", [4, 7, None])
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


def test_the_result_is_a_table_with_the_errors_of_a_comparison_and_json():
    task = FAILING["energy"]()
    result = search(task.net, task.evaluate, TOLERANCE, "O2")
    first = result.rows[0]
    assert (first.name, first.op, first.kept) == ("energy__mul0", "elemwise_mul", "yes") and math.isnan(first.metric_without)
    assert [row.name for row in result.rows if math.isinf(row.local_error)] == ["energy__mul0", "energy_dense1_fwd"]
    assert math.isinf(next(row for row in result.rows if row.name == "energy_dense2_fwd").accumulated_error)
    assert all(row.name in str(result) for row in result.rows)
    assert result.summary[1] == "kept in float32: 2 operators by 2 names, each of them is needed"
    assert result.summary[2] == "operators in float32: 4 of 6, under the policy given 2"
    again = SearchResult.from_json(result.to_json())
    assert (again.kept, again.policy) == (result.kept, result.policy)


# ------------------------------------------------------------------ nets of every kind, left as they were


def squares(prefix="net_", layer=nn.Dense):
    """Return a dense layer, its square, which leaves float16's range, and another layer."""
    return chain(prefix, lambda: [
        nn.Dense(8, in_units=8), function(lambda F, x: x * x), layer(4, in_units=8),
        function(lambda F, x: x * 1e-5), nn.BatchNorm(in_channels=4),
    ], mx.init.Normal(1.0))  # fmt: skip


def find(net, evaluate, policy="O2"):
    return search(net, evaluate, 0.01, policy, higher_is_better=False)


def train(net, data):
    with autograd.record():
        loss = net(data).sum()
    loss.backward()  # moves BatchNorm's statistics too


@pytest.mark.parametrize("policy, call", [(None, None), ("O2", None), ("O1", 1), ("O1", 3), ("O1", "all")])
def test_evaluate_gets_the_net_itself_which_is_as_it_was_found_also_if_it_trains_or_fails(policy, call):
    net, given = squares(), []
    error = error_of(net, DATA)
    if policy:
        mxmp.gluon.convert(net, policy)
    train(net, DATA / 100)
    before = state(net)

    def trains(candidate):
        given.append(candidate)
        if len(given) == call:
            raise ZeroDivisionError
        result = error(candidate) + (np.nan if call == "all" and "float16" in repr(candidate) else 0)
        train(candidate, DATA)
        for param in candidate.collect_params().values():
            param.set_data(param.data() * 0 + 1)
        return result

    if call is None:
        assert find(net, trains).kept == ("net__mul0", "net_dense1_fwd")
    else:
        with pytest.raises(TuneError if call == "all" else ZeroDivisionError):
            find(net, trains)
    assert all(candidate is net for candidate in given) and state(net) == before


def several_graphs():
    return chain("net_", lambda: [
        chain("a_", lambda: [nn.Dense(8, in_units=8), function(lambda F, x: x * x * 1e-3)], mx.init.Normal(1.0)),
        nn.Dense(4, in_units=8),
    ], mx.init.Normal(1.0), nn.Sequential)  # fmt: skip


def shared():
    """Return a net that calls a layer three times; its calls are kept together."""
    layer = nn.Dense(8, in_units=8, use_bias=False, prefix="net_dense0_")
    return chain("net_", lambda: [layer, layer, layer, function(lambda F, x: x * 1e-4)], mx.init.Normal(8.0))


def loop():
    """Return a net with a loop, whose body's operators are kept by name."""

    def steps(F, x):
        def body(data, state):
            products = F.dot(data, data, transpose_b=True)
            state = state * 0.5 + products * products * 1e-6
            return state, state

        return F.mean(F.contrib.foreach(body, x, F.zeros((16, 16)))[0], axis=0)

    return chain("net_", lambda: [function(steps), nn.Dense(4, in_units=16)], mx.init.Normal(1.0))


def symbol_block():
    """Return the squares' net as an imported one."""
    source = squares()
    return gluon.SymbolBlock(source(mx.sym.var("data")), mx.sym.var("data"), params=source.collect_params())


STEPS = mx.nd.array(np.random.RandomState(0).randn(3, 16, 8) * 40)
FORMS = {
    "several graphs": (several_graphs, DATA, {"net_a__mul0": 1, "net_a__mulscalar0": 1}),
    "shared": (shared, DATA, {"net_dense0_fwd": 3, "net__mulscalar0": 1}),
    "loop": (loop, STEPS, {"net__mul0": 1}),
    "imported": (symbol_block, DATA, {"net__mul0": 1, "net_dense1_fwd": 1}),
}


@pytest.mark.parametrize("build, data, needed", FORMS.values(), ids=FORMS)
def test_nets_of_many_forms_are_searched_as_a_whole(build, data, needed):
    net = build()
    evaluate = error_of(net, data)
    result = find(net, evaluate)
    assert Counter(row.name for row in result.rows if row.kept == "yes") == needed and result.is_minimal
    assert f"{sum(needed.values())} operators by {len(needed)} names" in str(result)
    assert evaluate(mxmp.gluon.convert(net, result.policy)) == result.metric


def test_a_net_is_searched_for_the_shapes_that_evaluate_uses():
    """The rules keep a long sum and its reader in float32, and leave a short one in float16."""
    net = chain("net_", lambda: [
        nn.Dense(8, in_units=8, flatten=False), function(lambda F, x: F.sum(x, axis=1)), nn.Dense(4, in_units=8)
    ])  # fmt: skip
    for length, low in ((4, 3), (20_000, 1)):
        result = search(net, error_of(net, mx.nd.ones((2, length, 8))), 0.1, "O1", higher_is_better=False)
        assert result.kept == () and len(result.rows) == low


class _Region(nn.Dense):
    """A layer in low precision whatever the policy says."""

    def hybrid_forward(self, F, x, **params):
        with mxmp.gluon.precision("low"):
            return super().hybrid_forward(F, x, **params)


def test_regions_hold_and_names_overrule_the_policies_of_blocks():
    net = squares(layer=_Region)
    with pytest.raises(TuneError, match=r"float16 is asked for by name of 'net__region0_fwd' \(FullyConnected\)"):
        find(net, error_of(net, DATA))
    net = squares()
    needed = find(net, error_of(net, DATA)).kept
    mxmp.gluon.set_policy(net[2], "low")
    assert find(net, error_of(net, DATA)).kept == needed
    mxmp.gluon.set_policy(net[2], "float32")
    assert find(net, error_of(net, DATA)).kept == ("net__mul0",)


# ------------------------------------------------------------------ symbols and Modules

NEEDED = {"squares", "scores", "norm"}
"""What computes or reads values beyond float16's range."""


def network():
    features = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=16, name="features")
    squares = mx.sym.elemwise_mul(features, features, name="squares")
    scores = mx.sym.FullyConnected(squares, num_hidden=4, name="scores")
    return mx.sym.SoftmaxOutput(mx.sym.BatchNorm(scores, name="norm", fix_gamma=False), name="softmax")


def iterator():
    draw = np.random.RandomState(0)
    return mx.io.NDArrayIter(draw.randn(48, 8) * 300, draw.randint(0, 4, 48).astype("float32"), batch_size=16)


def bound(model, kind=mx.mod.Module):
    """Return a module that is bound, with a model's parameters."""
    symbol, *params = model
    return make_module(symbol, data=(16, 8), kind=kind, params=params)


@pytest.fixture(scope="module")
def model():
    """Return a symbol with its parameters."""
    return (network(), *make_module(network(), data=(16, 8), init=mx.init.Normal(1)).get_params())


def predicted(module):
    return module.predict(iterator()).asnumpy()


def output_of(model, batch):
    symbol, args, aux = model
    return symbol.bind(mx.cpu(), {**args, "data": batch.data[0]}, aux_states=aux).forward()[0].asnumpy()


KINDS = {
    "model": lambda model: model,
    "converted model": lambda model: convert_model(*model, "O1", {"data": (16, 8)}),
    "Module of MXNet": bound,
    "Module": lambda model: bound(model, mxmp.module.Module),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_model_or_module_is_searched_as_the_network_that_it_was_and_left_as_it_is(make, model):
    source, expected, given = make(model), predicted(bound(model)), []
    is_module = isinstance(source, mx.mod.BaseModule)

    def state():
        params = source.get_params() if is_module else tuple(source)[1:]
        return [array.asnumpy().tobytes() for each in params for array in each.values()]

    def spoils(candidate):
        given.append(candidate)
        result = float(np.abs(predicted(candidate if is_module else bound(candidate)) - expected).max())
        if is_module:
            candidate.init_optimizer(optimizer_params=(("learning_rate", 1.0),))
            candidate.forward_backward(next(iter(iterator())))
        else:
            for array in (*candidate.arg_params.values(), *candidate.aux_params.values()):
                array[:] = 7
        return result

    before = state()
    result = search(source, spoils, 1e-2, "O2", iterator(), higher_is_better=False)
    assert set(result.kept) == NEEDED and result.is_minimal and len(given) == result.evaluations
    assert state() == before and not any(each is source for each in given)
    assert {type(each) for each in given} == {mxmp.module.Module if is_module else ConvertedModel}
    if is_module:
        assert given[0].data_shapes == source.data_shapes and given[0].label_shapes == source.label_shapes


def test_a_folded_model_is_searched_without_its_norm(model):
    """The network without its loss head, for inference."""
    symbol, args, aux = model
    scores = mx.sym.FullyConnected(symbol.get_internals()["norm_output"], num_hidden=3, no_bias=True, name="last")
    given, (batch, *_) = (scores, {**args, "last_weight": mx.nd.ones((3, 4))}, aux), iterator()
    expected, ops = output_of(given, batch), set()

    def evaluate(model):
        ops.update(node["op"] for node in json.loads(model.symbol.tojson())["nodes"])
        return float(np.abs(output_of(model, batch) - expected).max())

    kept = search(given, evaluate, 1e-2, "O2", iterator(), higher_is_better=False, for_inference=True).kept
    assert "BatchNorm" not in ops and {"squares", "scores"} <= set(kept)


def test_inputs_that_are_no_float32_keep_their_dtype():
    table = mx.sym.Embedding(mx.sym.var("words", dtype="int32"), input_dim=5, output_dim=8, name="table")
    words = mx.nd.array([[0, 1], [2, 4]], dtype="int32")

    def evaluate(model):
        values = {**model.arg_params, "words": words}
        return float(mx.nd.CachedOp(model.symbol)(*[values[n] for n in model.symbol.list_inputs()]).asnumpy().max())

    net = mx.sym.elemwise_mul(table, table, name="squares"), {"table_weight": mx.nd.ones((5, 8)) * 300}, {}
    result = search(net, evaluate, 1.0, "O3", [{"words": words}])
    assert result.kept == ("squares",) and result.metric == 90000
