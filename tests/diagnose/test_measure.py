"""Ranges and gradients of symbols and Gluon nets, against numpy and MXNet; the net is left as it was found."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import Ranges, measure_gradients, measure_ranges
from mxmp.symbol import convert_model, convert_symbol
from symbols import get_symbol
from tests.diagnose.nets import SOFTMAX, block_of, chain, made, split, values_of

RNG = np.random.RandomState(0)
X, WEIGHTS = RNG.randn(6, 4).astype(np.float32), {"a_weight": RNG.randn(5, 4), "b_weight": RNG.randn(3, 5)}
LABELS = np.array([0, 2, 1, 1, 0, 2], np.float32)
PARAMS = {name: mx.nd.array(value) for name, value in WEIGHTS.items()}
SHAPES = {"data": (6, 4)}


def network(factor=1.0):
    """Return two layers with a deliberate factor between them, which leaves float16's range where it is large."""
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, no_bias=True, name="a")
    x = mx.sym.relu(mx.sym._internal._mul_scalar(x, scalar=factor, name="up"), name="act")
    return mx.sym.FullyConnected(x, num_hidden=3, no_bias=True, name="b")


def headed(factor=1.0):
    return mx.sym.SoftmaxOutput(network(factor), name="softmax")


def batch(factor=1):
    return {"data": mx.nd.array(X * factor), "softmax_label": mx.nd.array(LABELS)}


def inputs(*factors):
    return [{"data": mx.nd.array(X * factor)} for factor in factors]


def outputs(factor=1.0, x=X):
    a, b = (value.astype(np.float32) for value in WEIGHTS.values())
    up = x @ a.T * factor
    return {"a_output": x @ a.T, "up_output": up, "act_output": np.maximum(up, 0), "b_output": np.maximum(up, 0) @ b.T}


def gradients(factor=1.0):
    found = outputs(factor)
    shares = np.exp(found["b_output"] - found["b_output"].max(axis=1, keepdims=True))
    error = shares / shares.sum(axis=1, keepdims=True) - np.eye(3)[LABELS.astype(int)]
    act = error @ WEIGHTS["b_weight"]
    up = act * (found["up_output"] > 0)
    return {"a_output": up * factor, "up_output": up, "act_output": act, "b_output": error}


def counts(found):
    return {name: vars(each) for name, each in found.items()}


def largest(array):
    return pytest.approx(np.abs(array).max(), rel=1e-4)


def scaled(factor=1.0):
    """Return the network as a net."""
    return block_of(network(factor), PARAMS)


def labelled(count=1):
    return [(mx.nd.array(X * (number + 1)), mx.nd.array(LABELS)) for number in range(count)]


# ---------------------------------------------------------------------- ranges


def test_ranges_of_a_symbol_are_numpys_over_all_batches():
    expected = {"data": 3 * X, **outputs(10.0, np.concatenate([X, -3 * X]))}
    found = measure_ranges((network(10.0), PARAMS, {}), inputs(1, -3, 2))
    assert dict(found) == {name: largest(array) for name, array in expected.items()}


def test_ranges_and_gradients_of_a_net_are_numpys():
    ranges, found = measure_ranges(scaled(3.0), labelled()), measure_gradients(scaled(3.0), labelled(), loss=SOFTMAX)
    assert dict(ranges) == {"data": largest(X), **{name: largest(array) for name, array in outputs(3.0).items()}}
    for name, gradient in gradients(3.0).items():
        assert (found[name].largest, found[name].total) == (largest(gradient), np.count_nonzero(gradient))


def test_the_largest_finite_value_counts():
    sym = mx.sym.SoftmaxOutput(mx.sym.var("data"), name="softmax")
    found = measure_ranges((sym, {}, {}), [{"data": mx.nd.array([[-np.inf, 3.0]])}, {"data": mx.nd.array([[np.nan, 2.0]])}])
    assert (found["data"], found["softmax_output"]) == (3, 1)


def test_so_many_batches_are_read_and_no_more_of_any_kind():
    net, read = scaled(), []
    loader = (read.append(each) or each for each in labelled(5))
    two = measure_ranges(net, loader, max_batches=2)
    assert len(read) == 2 and two == measure_ranges(net, labelled(2)) != measure_ranges(net, labelled(3))
    iterator = mx.io.NDArrayIter({"data": np.concatenate([X, X * 2])}, batch_size=6)
    several = [{"data": mx.nd.array(X[:2])}, {"data": mx.nd.array(X * 2)}]
    expected = measure_ranges((network(), PARAMS, {}), inputs(1, 2))
    assert measure_ranges((network(), PARAMS, {}), iterator) == expected == measure_ranges((network(), PARAMS, {}), several)


@pytest.mark.parametrize("policy", ["O2", "mixed_bfloat16"])
def test_a_converted_network_is_measured_in_float32(policy):
    converted = convert_model(headed(1000.0), PARAMS, {}, policy)
    found = measure_ranges(converted, [batch(1000)])
    assert found == pytest.approx(measure_ranges((headed(1000.0), PARAMS, {}), [batch(1000)]), rel=1e-2)
    assert found["up_output"] > 65504
    net = mxmp.gluon.convert(scaled(1e5), policy)
    assert measure_ranges(net, labelled()) == pytest.approx(measure_ranges(scaled(1e5), labelled()), rel=1e-2)


def test_ranges_are_a_record_the_largest_first():
    found = measure_ranges((network(1e6), PARAMS, {}), inputs(1))
    assert list(found.values()) == sorted(found.values(), reverse=True) and Ranges.from_json(found.to_json()) == found
    assert "beyond float16" in str(found)


def test_nodes_of_one_name_are_measured_together():
    x = mx.sym.var("data")
    net = mx.sym.Group([mx.sym.relu(x * factor, name="twin") for factor in (2, 3)])
    assert measure_ranges((net, {}, {}), [{"data": mx.nd.ones((2, 2))}])["twin_output"] == 3


def test_a_net_of_several_graphs_is_measured_along_its_whole_chain():
    """With eager operators between them."""
    layers = [nn.Dense(n, in_units=m, use_bias=False, prefix=f"dense{n}_") for n, m in ((5, 4), (3, 5))]
    net, (data, label) = made(chain(layers[0], nn.Lambda(lambda x: x.tanh() * 2), layers[1])), labelled()[0]
    found, ranges, first = measure_gradients(net, labelled(), loss=SOFTMAX), measure_ranges(net, labelled()), layers[0](data)
    first.attach_grad()
    with autograd.record():
        loss = SOFTMAX(layers[1](first.tanh() * 2), label)
    loss.backward()
    assert found["dense5_fwd_output"].largest == largest(first.grad.asnumpy())
    assert ranges["dense5_fwd_output"] == largest(first.asnumpy()) and set(found) == {"dense5_fwd_output", "dense3_fwd_output"}


def test_each_graph_is_built_once_whatever_the_shapes(monkeypatch):
    net, built, original = scaled(), [], mx.nd.CachedOp
    monkeypatch.setattr(mx.nd, "CachedOp", lambda *args, **kwargs: built.append(args) or original(*args, **kwargs))
    sizes = [mx.nd.ones((rows, 4)) for rows in (1, 2, 3, 2)]
    measure_ranges(net, [(each,) for each in (*sizes, sizes[1] * np.inf, *sizes)])
    measure_gradients(net, [(each, mx.nd.zeros(each.shape[0])) for each in sizes], loss=SOFTMAX)
    assert len(built) == 4  # the net's own, and one that is measured, twice


# ---------------------------------------------------------------------- what a conversion makes of ranges


def test_ranges_keep_what_overflows_in_float32():
    """Nothing in the graph tells that a factor of 1000 is too much; the data does."""
    ranges = measure_ranges((network(1e3), PARAMS, {}), inputs(100))
    rows = {row.name: row for row in convert_model(network(1e3), PARAMS, {}, "O1", SHAPES, ranges=ranges).report.rows}
    assert rows["up"].reason == "its values are beyond float16's range" and ranges["up_output"] > 65504
    assert [rows[name].precision for name in ("a", "up", "act", "b")] == ["float16", "float32", "float32", "float32"]


def test_ranges_are_part_of_the_conversion_of_a_net():
    net, data = scaled(1e3), mx.nd.array(X * 100)
    exact, ranges = net(data).asnumpy(), measure_ranges(net, (data, mx.nd.array(LABELS)))
    for _ in range(2):
        mxmp.gluon.convert(net, "O1", ranges={**ranges, "data": 300.0})  # of an input too, which no operator gives
    for each in (net, copy.deepcopy(net)):
        np.testing.assert_allclose(each(data).asnumpy(), exact, rtol=0.05, atol=0.01 * np.abs(exact).max())
    precisions = {row.name: row.precision for row in mxmp.gluon.report(net).rows}
    assert precisions["a"] == "float16" and precisions["act"] == precisions["b"] == "float32"
    assert not np.isfinite(mxmp.gluon.convert(net, "O1")(data).asnumpy()).all()


@pytest.mark.parametrize(
    "ranges, policy, changes",
    [
        ("measured", "O1", False),
        ({"a_output": 65504 / 2}, "O1", False),
        ({"a_output": 65504 / 2 + 1}, "O1", True),
        ({"data": 1e6}, "O1", True),
        ({"act_output": 1e9}, "mixed_bfloat16", False),
    ],
)
def test_values_within_the_range_change_nothing_and_a_factor_of_two_is_kept_in_hand(ranges, policy, changes):
    ranges = measure_ranges((network(2.0), PARAMS, {}), inputs(1)) if ranges == "measured" else ranges
    plain, found = (convert_symbol(network(2.0), policy, SHAPES, ranges=each) for each in (None, ranges))
    assert (plain.tojson() != found.tojson()) == changes


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("policy", [None, "O1"])
def test_gradients_of_a_symbol_are_numpys_by_exponent_converted_or_not(policy):
    model = tuple(convert_model(headed(), PARAMS, {}, policy))[:2] if policy else (headed(), PARAMS)
    found, expected = measure_gradients((*model, {}), [batch()]), gradients()
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        size = np.abs(gradient)
        exponents, sizes = np.unique(np.ceil(np.log2(size[size > 0])), return_counts=True)
        assert (found[name].zeros, found[name].total, found[name].largest) == ((size == 0).sum(), (size > 0).sum(), largest(size))
        assert found[name].counts == {int(e): c for e, c in zip(exponents, sizes)}


def test_batches_are_counted_together_and_an_iterator_brings_its_labels():
    once, twice = (measure_gradients((headed(), PARAMS, {}), [batch()] * count) for count in (1, 2))
    assert {name: 2 * each.total for name, each in once.items()} == {name: each.total for name, each in twice.items()}
    assert counts(measure_gradients((headed(), PARAMS, {}), mx.io.NDArrayIter(X, LABELS, 6))) == counts(once)


def test_gradients_that_mxnet_leaves_unwritten_are_left_out():
    """MultiBoxTarget writes none for the anchors: what is found there was in memory before."""
    data = {"data": mx.nd.array(RNG.randn(1, 3, 32, 32)), "label": mx.nd.array([[[1, 0.1, 0.1, 0.6, 0.7]]])}
    symbol = get_symbol("ssd96_resnet8", num_classes=3)
    args, states, _ = split(symbol, {**values_of(symbol, 0.1, **{k: v.shape for k, v in data.items()}), **data}, tuple(data))
    found = measure_gradients((symbol, args, states), [data])
    assert {"cls_preds_output", "loc_preds_output"} < set(found) and all((each == 1).asnumpy().all() for each in states.values())
    assert not [name for name in found if "anchors" in name or "target" in name]


def test_what_has_no_gradient_is_left_out():
    softmax = headed()
    aside = mx.sym.FullyConnected(softmax.get_internals()["data"], num_hidden=4, no_bias=True, name="c")
    both = mx.sym.Group([softmax, mx.sym.BlockGrad(aside), mx.sym.BlockGrad(softmax * 2)])
    found = measure_gradients((both, {**PARAMS, "c_weight": mx.nd.ones((4, 4))}, {}), [batch()])
    assert set(found) == set(gradients())
    net = scaled()
    net.collect_params("a_.*").setattr("grad_req", "null")
    assert set(measure_gradients(net, labelled(), loss=SOFTMAX)) == {"b_output"}


def test_nan_is_counted_and_said(caplog):
    data, net = X.copy(), scaled()
    data[0, 0] = data[0, 1] = np.nan
    measure_ranges(net, labelled()), measure_gradients(net, labelled(), loss=SOFTMAX)
    assert not caplog.text
    assert measure_ranges(net, [(mx.nd.array(each),) for each in (data, X, data)])["data"] == np.abs(X).max()
    assert "measure_ranges: NaN in 'data' (4 elements), 'a_output' (10 " in caplog.text and "and 2 more" in caplog.text
    measure_gradients(net, (mx.nd.array(data), mx.nd.array(LABELS)), loss=SOFTMAX)
    assert "measure_gradients: inf or NaN in the gradients of" in caplog.text


def test_what_depends_on_trained_parameters_only_through_blockgrad_is_left_out():
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, no_bias=True, name="a")
    product = mx.sym.elemwise_mul(mx.sym.tanh(mx.sym.BlockGrad(x, name="cut"), name="behind"), x, name="product")
    model = mx.sym.MakeLoss(product, name="loss"), {"a_weight": PARAMS["a_weight"]}, {}
    assert set(measure_gradients(model, inputs(1))) == {"a_output", "product_output"}
