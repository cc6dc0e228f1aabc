"""Networks of every kind under search: left as they were, and refused by name where they cannot be searched."""

from __future__ import annotations

from collections import Counter

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.errors import TuneError
from mxmp.symbol import ConvertedModel, convert_model
from mxmp.tune import search

DATA = mx.nd.array(np.random.RandomState(0).randn(16, 8) * 100)


class Square(gluon.HybridBlock):
    """A dense layer, its square, which leaves float16's range, and another layer."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Dense(8, in_units=8)
            self.norm = nn.BatchNorm(in_channels=4)
            self.last = nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        features = self.first(x)
        return self.norm(self.last(features * features) * 1e-5)


def make(kind=Square, spread=1.0, **kwargs):
    mx.random.seed(0)
    net = kind(**{"prefix": "net_", **kwargs})
    net.initialize(mx.init.Normal(spread))
    return net


def error_of(net, *inputs):
    """Return a function that says how far a net is from what it is now."""
    expected = net(*inputs).asnumpy()
    return lambda net: float(np.abs(net(*inputs).asnumpy() - expected).max() / np.abs(expected).max())


def find(net, evaluate, policy="O2"):
    return search(net, evaluate, 0.01, policy, higher_is_better=False)


def state(net):
    """Return all that a search may not change: values and gradients, the arrays that hold them, how the net is shown."""
    params = net.collect_params().values()
    values = [(id(p.data()), p.data().asnumpy().tobytes(), str(p.dtype)) for p in params]
    gradients = [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"]
    return values, gradients, repr(net), len(net._forward_pre_hooks)


@pytest.mark.parametrize("policy", [None, "O2"])
def test_evaluate_gets_the_net_itself_which_is_as_it_was_found_also_if_it_trains(policy):
    net, given = make(), []
    evaluate = error_of(net, DATA)
    if policy:
        mxmp.gluon.convert(net, policy)
    with autograd.record():
        value = net(DATA / 100).sum()
    value.backward()
    before = state(net)

    def trains(candidate):
        given.append(candidate)
        result = evaluate(candidate)
        with autograd.record():
            loss = candidate(DATA).sum()
        loss.backward()  # moves BatchNorm's statistics too
        for param in candidate.collect_params().values():
            param.set_data(param.data() * 0 + 1)
        return result

    assert find(net, trains).kept == ("net__mul0", "net_dense1_fwd")
    assert all(candidate is net for candidate in given) and state(net) == before


@pytest.mark.parametrize("call", [1, 3, 5])
def test_the_net_is_as_it_was_found_if_evaluate_fails(call):
    net, calls = make(), []
    mxmp.gluon.convert(net, "O1")
    evaluate = error_of(net, DATA / 100)
    before = state(net)

    def fails(candidate):
        calls.append(candidate)
        if len(calls) == call:
            raise ZeroDivisionError
        return evaluate(candidate) + (np.nan if "float16" in repr(candidate) else 0)

    with pytest.raises(ZeroDivisionError if call < 5 else TuneError):
        find(net, fails)
    assert "compute=float16" in repr(net) and state(net) == before


class Plain(gluon.Block):
    """A plain block with two graphs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.a = nn.HybridSequential()
            self.a.add(nn.Dense(8, in_units=8), nn.HybridLambda(lambda F, x: F.elemwise_mul(x, x) * 1e-3))
            self.b = nn.Dense(4, in_units=8)

    def forward(self, x):
        return self.b(self.a(x))


class Shared(gluon.HybridBlock):
    """A block that is called three times; its calls are kept together."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.thrice = nn.Dense(8, in_units=8, use_bias=False)

    def hybrid_forward(self, F, x):
        return self.thrice(self.thrice(self.thrice(x))) * 1e-4


class Loop(gluon.HybridBlock):
    """A loop, whose body's operators are kept by name."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features, self.scores = nn.Dense(8, in_units=8), nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        def body(data, state):
            features = self.features(data)
            state = state * 0.5 + features * features * 1e-4
            return state, state

        return self.scores(F.mean(F.contrib.foreach(body, x, F.zeros((16, 8)))[0], axis=0))


def symbol_block():
    """Return the squares' net as an imported one."""
    source = make()
    source(DATA)
    return gluon.SymbolBlock(source(mx.sym.var("data")), mx.sym.var("data"), params=source.collect_params())


STEPS = mx.nd.array(np.random.RandomState(0).randn(3, 16, 8) * 100)
FORMS = {
    "several graphs": (lambda: make(Plain), DATA, {"net_hybridlambda0_elemwise_mul0": 1, "net_hybridlambda0__mulscalar0": 1}),
    "shared": (lambda: make(Shared, spread=8.0), DATA, {"net_dense0_fwd": 3, "net__mulscalar0": 1}),
    "loop": (lambda: make(Loop), STEPS, {"net__mul0": 1, "net__mulscalar1": 1}),
    "imported": (symbol_block, DATA, {"net__mul0": 1, "net_dense1_fwd": 1}),
}


@pytest.mark.parametrize("form", FORMS)
def test_nets_of_many_forms_are_searched_as_a_whole(form):
    build, data, needed = FORMS[form]
    net = build()
    evaluate = error_of(net, data)
    result = find(net, evaluate)
    assert Counter(row.name for row in result.rows if row.kept == "yes") == needed and result.is_minimal
    assert f"{sum(needed.values())} operators by {len(needed)} names" in str(result)
    assert evaluate(mxmp.gluon.convert(net, result.policy)) == result.metric


def test_a_net_is_searched_for_the_shapes_that_evaluate_uses():
    """The rules keep a long sum in float32, and leave a short one in float16."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(8, in_units=8, flatten=False), nn.HybridLambda(lambda F, x: F.sum(x, axis=1)))
        net.add(nn.Dense(4, in_units=8))
    net.initialize()
    for length, low in ((4, 3), (20_000, 2)):
        result = search(net, error_of(net, mx.nd.ones((2, length, 8))), 0.1, "O1", higher_is_better=False)
        assert result.kept == () and len(result.rows) == low


def test_regions_hold():
    net = make()
    mxmp.gluon.set_policy(net.last, "low")
    with pytest.raises(TuneError, match=r"float16 is asked for by name of 'net_dense1_fwd' \(FullyConnected\)"):
        find(net, error_of(net, DATA))
    mxmp.gluon.set_policy(net.last, "float32")
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


@pytest.fixture(scope="module")
def model():
    """Return a symbol with its parameters."""
    module, batches = mx.mod.Module(network()), iterator()
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(0)
    module.init_params(mx.init.Normal(1))
    return (network(), *module.get_params())


def bound(model, kind=mx.mod.Module):
    module, batches = kind(tuple(model)[0]), iterator()
    module.bind(batches.provide_data, batches.provide_label)
    module.set_params(*tuple(model)[1:])
    return module


def predicted(module):
    return module.predict(iterator()).asnumpy()


def search_of(given, evaluate):
    return search(given, evaluate, 1e-2, "O2", iterator(), higher_is_better=False)


@pytest.mark.parametrize("converted", [False, True])
def test_a_model_is_searched_as_the_network_that_it_was_and_left_as_it_is(model, converted):
    source = convert_model(*model, "O1", {"data": (16, 8)}) if converted else model
    expected, given = predicted(bound(model)), []
    frozen = [(array, array.asnumpy().tobytes()) for params in tuple(source)[1:] for array in params.values()]

    def spoils(candidate):
        given.append(candidate)
        result = float(np.abs(predicted(bound(candidate)) - expected).max())
        for array in (*candidate.arg_params.values(), *candidate.aux_params.values()):
            array[:] = 7
        return result

    result = search_of(source, spoils)
    assert set(result.kept) == NEEDED and result.is_minimal
    assert all(array.asnumpy().tobytes() == before for array, before in frozen)
    assert all(isinstance(each, ConvertedModel) for each in given) and len(given) == result.evaluations


def test_inputs_that_are_no_float32_keep_their_dtype():
    table = mx.sym.Embedding(mx.sym.var("words", dtype="int32"), input_dim=5, output_dim=8, name="table")
    sym = mx.sym.elemwise_mul(table, table, name="squares")
    args = {"table_weight": mx.nd.ones((5, 8)) * 300}
    words = mx.nd.array([[0, 1], [2, 4]], dtype="int32")

    def evaluate(model):
        values = {**model.arg_params, "words": words}
        return float(mx.nd.CachedOp(model.symbol)(*[values[n] for n in model.symbol.list_inputs()]).asnumpy().max())

    result = search((sym, args, {}), evaluate, 1.0, "O3", [{"words": words}])
    assert result.kept == ("squares",) and result.metric == 90000


@pytest.mark.parametrize("kind", [mx.mod.Module, mxmp.module.Module])
def test_a_module_is_searched_and_left_as_it_is(model, kind):
    module, expected, given = bound(model, kind), predicted(bound(model)), []
    before = predicted(module)

    def trains(candidate):
        given.append(candidate)
        result = float(np.abs(predicted(candidate) - expected).max())
        candidate.init_optimizer(optimizer_params=(("learning_rate", 1.0),))
        candidate.forward_backward(next(iter(iterator())))
        return result

    result = search_of(module, trains)
    assert set(result.kept) == NEEDED and result.is_minimal
    assert np.array_equal(predicted(module), before, equal_nan=True)
    assert all(type(each) is mxmp.module.Module and each is not module for each in given)
    assert given[0].data_shapes == module.data_shapes and given[0].label_shapes == module.label_shapes
