"""Symbols with parameters and Modules under search: what evaluate gets, and that what is given does not change."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.diagnose.networks.symbols import BoundModule
from mxmp.errors import ConvertError, TuneError
from mxmp.symbol import ConvertedModel, convert_model
from mxmp.tune import search

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


def error_of(expected):
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
    _, evaluate = error_of(expected)

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


def test_the_policy_found_serves_a_conversion_for_a_gpu():
    """The model that is deployed is in float16, where the one that was judged emulates it."""
    module, expected = bound()
    _, evaluate = error_of(expected)
    args, aux = module.get_params()
    result = search((network(), args, aux), evaluate, 1e-2, "O2", iterator(), higher_is_better=False)
    model = convert_model(network(), args, aux, result.policy, {"data": (16, 8)})
    assert result.policy.names and str(model.arg_params["features_weight"].dtype) == "<class 'numpy.float16'>"
    assert str(model.arg_params["scores_weight"].dtype) == "<class 'numpy.float32'>"


def test_a_converted_model_is_searched_as_the_network_that_it_was():
    module, expected = bound()
    _, evaluate = error_of(expected)
    model = convert_model(network(), *module.get_params(), "O1", {"data": (16, 8)})
    result = search(model, evaluate, 1e-2, "O2", iterator(), higher_is_better=False)
    assert set(result.kept) == NEEDED


def test_batches_may_be_dicts_and_leave_labels_out():
    module, expected = bound()
    _, evaluate = error_of(expected)
    batches = [{"data": batch.data[0]} for batch in iterator()]
    result = search((network(), *module.get_params()), evaluate, 1e-2, "O2", batches, higher_is_better=False)
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
    evaluate, _ = error_of(expected)

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


def test_a_module_that_is_not_bound_is_refused():
    with pytest.raises(ConvertError, match="the Module is not bound, or has no parameters"):
        search(mx.mod.Module(network()), lambda module: 0.0, 0.1, batches=iterator())


def test_batches_are_asked_for():
    module, _ = bound()
    for given in (module, (network(), *module.get_params())):
        with pytest.raises(ConvertError, match="batches is missing: give a few batches of inputs"):
            search(given, lambda candidate: 0.0, 0.1)


def test_a_batch_without_an_input_is_refused():
    module, _ = bound()
    with pytest.raises(ConvertError, match="a batch lacks the input 'data'"):
        search(module, lambda candidate: 0.0, 0.1, batches=[{}])


@pytest.mark.parametrize("given", ["model", None, 3, (1, 2)])
def test_anything_else_is_refused_by_its_type(given):
    with pytest.raises(TuneError, match=rf"net_or_model is a {type(given).__name__}; expected a Gluon net, a bound"):
        search(given, lambda candidate: 0.0, 0.1)


def test_buckets_are_refused_with_what_to_give():
    buckets = mx.mod.BucketingModule(lambda key: (network(), ("data",), ("softmax_label",)), default_bucket_key=1)
    with pytest.raises(TuneError, match="Of a BucketingModule give one bucket as a Module"):
        search(buckets, lambda candidate: 0.0, 0.1)


def test_modules_are_made_and_bound_as_the_one_given():
    state = mx.sym.var("state", shape=(2, 5))
    symbol = mx.sym.MakeLoss(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc") + state)
    module = mx.mod.Module(symbol, ["data"], [], fixed_param_names=["fc_bias"], state_names=["state"])
    module.bind([("data", (2, 3))], None, inputs_need_grad=True, grad_req="add")
    module.init_params()
    network = BoundModule(module, [{"data": mx.nd.ones((2, 3)), "state": mx.nd.zeros((2, 5))}])
    with network.under(mxmp.Policy.parse("O2")) as made:
        assert {**made._exec_group.grad_req, **module._exec_group.grad_req} == made._exec_group.grad_req
        made.forward(mx.io.DataBatch([mx.nd.ones((2, 3))], None))
        assert made.get_outputs()[0].shape == (2, 5)
