"""Networks of every kind under search: left as they were, and refused by name where they cannot be searched."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.errors import ConvertError, TuneError
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


@pytest.mark.parametrize("policy", [None, "O1", "O2"])
def test_the_net_is_as_it_was_found_also_if_evaluate_trains_it(policy):
    net = make()
    evaluate = error_of(net, DATA)
    if policy:
        mxmp.gluon.convert(net, policy)
    with autograd.record():
        value = net(DATA / 100).sum()
    value.backward()
    params = net.collect_params().values()
    before = [(id(p.data()), p.data().asnumpy().tobytes(), str(p.dtype)) for p in params]
    gradients = [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"]
    text = repr(net)

    def trains(net):
        result = evaluate(net)
        with autograd.record():
            loss = net(DATA).sum()
        loss.backward()  # moves BatchNorm's statistics too
        for param in net.collect_params().values():
            param.set_data(param.data() * 0 + 1)
        return result

    result = find(net, trains)
    assert result.kept == ("net__mul0", "net_dense1_fwd")
    assert [(id(p.data()), p.data().asnumpy().tobytes(), str(p.dtype)) for p in params] == before
    assert [p.grad().asnumpy().tobytes() for p in params if p.grad_req != "null"] == gradients
    assert repr(net) == text


@pytest.mark.parametrize("call", [1, 2, 3, 5])
def test_the_net_is_as_it_was_found_if_evaluate_fails(call):
    net = make()
    mxmp.gluon.convert(net, "O1")
    evaluate, calls, output = error_of(net, DATA / 100), [], net(DATA / 100).asnumpy()

    def fails(net):
        calls.append(net)
        if len(calls) == call:
            raise ZeroDivisionError
        return evaluate(net) + (np.nan if "float16" in repr(net) else 0)

    with pytest.raises(ZeroDivisionError if call < 5 else TuneError):
        find(net, fails)
    assert "compute=float16" in repr(net) and np.array_equal(net(DATA / 100).asnumpy(), output)
    assert not net._forward_pre_hooks


def test_evaluate_gets_the_same_net():
    net, given = make(), []
    evaluate = error_of(net, DATA)
    find(net, lambda candidate: given.append(candidate) or evaluate(candidate))
    assert all(candidate is net for candidate in given)


def test_a_plain_block_with_several_graphs_is_searched_as_a_whole():
    class Plain(gluon.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.a = nn.HybridSequential()
                self.a.add(nn.Dense(8, in_units=8), nn.HybridLambda(lambda F, x: F.elemwise_mul(x, x) * 1e-3))
                self.b = nn.Dense(4, in_units=8)

        def forward(self, x):
            return self.b(self.a(x))

    net = make(Plain)
    result = find(net, error_of(net, DATA))
    assert {row.op for row in result.rows if row.kept == "yes"} == {"elemwise_mul", "_mul_scalar"}
    assert result.operators == 4 and {row.name for row in result.rows} >= {"net_dense0_fwd"}


def test_the_calls_of_a_shared_block_are_kept_together():
    class Shared(gluon.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.twice = nn.Dense(8, in_units=8, use_bias=False)

        def hybrid_forward(self, F, x):
            return self.twice(self.twice(self.twice(x))) * 1e-4

    net = make(Shared, spread=8.0)
    result = find(net, error_of(net, DATA))
    assert result.kept == ("net_dense0_fwd", "net__mulscalar0")
    assert sum(row.kept == "yes" for row in result.rows) == 4
    assert "4 operators by 2 names" in str(result)


def test_operators_in_the_body_of_a_loop_are_kept_by_name():
    class Loop(gluon.HybridBlock):
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

    net = make(Loop)
    data = mx.nd.array(np.random.RandomState(0).randn(3, 16, 8) * 100)
    evaluate = error_of(net, data)
    result = find(net, evaluate)
    assert set(result.kept) == {"net__mul0", "net__mulscalar1"} and result.is_minimal
    assert evaluate(mxmp.gluon.convert(net, result.policy)) == result.metric


def test_a_symbol_block_is_searched():
    source = make()
    expected = error_of(source, DATA)
    net = gluon.SymbolBlock(source(mx.sym.var("data")), mx.sym.var("data"), params=source.collect_params())
    assert find(net, expected).kept == ("net__mul0", "net_dense1_fwd")


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


def bound(kind=mx.mod.Module, **kwargs):
    """Return a module with values, and what it says in float32 of all batches."""
    batches = iterator()
    module = mx.mod.Module(network())
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(0)
    module.init_params(mx.init.Normal(1))
    expected = module.predict(batches).asnumpy()
    if kind is not mx.mod.Module:
        values = module.get_params()
        module = kind(network(), **kwargs)
        module.bind(batches.provide_data, batches.provide_label)
        module.set_params(*values)
    return module, expected


def errors_of(expected):
    """Return a function that says how far what a module predicts is off, and one that says it of a model."""

    def of_module(module):
        return float(np.abs(module.predict(iterator()).asnumpy() - expected).max())

    def of_model(model):
        module = mx.mod.Module(model.symbol)
        batches = iterator()
        module.bind(batches.provide_data, batches.provide_label, for_training=False)
        module.set_params(model.arg_params, model.aux_params)
        return of_module(module)

    return of_module, of_model


def frozen(arrays):
    return {name: (id(array), array.asnumpy().tobytes()) for name, array in arrays.items()}


def test_a_model_is_searched_and_left_as_it_is():
    module, expected = bound()
    args, aux = module.get_params()
    before, given = (frozen(args), frozen(aux)), []
    _, evaluate = errors_of(expected)

    def spoils(model):
        result = evaluate(model)
        given.append(model)
        for array in (*model.arg_params.values(), *model.aux_params.values()):
            array[:] = 7
        return result

    result = search((network(), args, aux), spoils, 1e-2, "O2", iterator(), higher_is_better=False)
    assert set(result.kept) == NEEDED and result.is_minimal
    assert (frozen(args), frozen(aux)) == before
    assert all(isinstance(model, ConvertedModel) for model in given) and len(given) == result.evaluations


def test_a_converted_model_is_searched_as_the_network_that_it_was():
    module, expected = bound()
    _, evaluate = errors_of(expected)
    model = convert_model(network(), *module.get_params(), "O1", {"data": (16, 8)})
    result = search(model, evaluate, 1e-2, "O2", iterator(), higher_is_better=False)
    assert set(result.kept) == NEEDED


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
def test_a_module_is_searched_and_left_as_it_is(kind):
    module, expected = bound(kind)
    before, given = module.predict(iterator()).asnumpy(), []
    evaluate, _ = errors_of(expected)

    def trains(candidate):
        result = evaluate(candidate)
        given.append(candidate)
        batch = next(iter(iterator()))
        candidate.init_optimizer(optimizer_params=(("learning_rate", 1.0),))
        candidate.forward_backward(batch)
        return result

    result = search(module, trains, 1e-2, "O2", iterator(), higher_is_better=False)
    assert set(result.kept) == NEEDED and result.is_minimal
    assert np.array_equal(module.predict(iterator()).asnumpy(), before, equal_nan=True)
    assert all(type(each) is mxmp.module.Module and each is not module for each in given)
    assert given[0].data_shapes == module.data_shapes and given[0].label_shapes == module.label_shapes


def unbound():
    return mx.mod.Module(network())


def deferred():
    net = nn.Dense(4, prefix="dense_")
    net.initialize()
    return net


REFUSED = {
    "not called": (make, None, r"evaluate did not call block 'net' \(Square\)"),
    "no values": (deferred, None, "block 'dense': parameter 'dense_weight' has no values; load or train the net"),
    "not bound": (unbound, [], "the Module is not bound, or has no parameters"),
    "no batches": (lambda: bound()[0], None, "batches is a NoneType; expected a DataLoader, a list of batches"),
    "no input": (lambda: bound()[0], [{}], "a batch lacks the input 'data'"),
    "a number": (lambda: 3, None, "net_or_model is a int; expected a Gluon net"),
    "a pair": (lambda: (1, 2), None, "net_or_model is a tuple of 2; expected a Gluon net"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused(case):
    make_network, batches, message = REFUSED[case]
    with pytest.raises(ConvertError, match=message):
        search(make_network(), lambda candidate: 0.0, 0.1, batches=batches)
