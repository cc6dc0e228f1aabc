"""Ranges and gradients of Gluon nets: held to numpy and to plain MXNet; the net is left as it was found."""

from __future__ import annotations

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import measure_gradients, measure_ranges
from mxmp.errors import ConvertError

X = np.random.RandomState(0).randn(6, 4).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0, 2], np.float32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def batches(count=1):
    return [(mx.nd.array(X * (number + 1)), mx.nd.array(LABELS)) for number in range(count)]


class Scaled(gluon.HybridBlock):
    """Two dense layers with a factor between them that leaves float16's range."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**{"prefix": "net_", **kwargs})
        self.factor = factor
        with self.name_scope():
            self.a = nn.Dense(5, in_units=4, use_bias=False, prefix="a_")
            self.b = nn.Dense(3, in_units=5, use_bias=False, prefix="b_")

    def hybrid_forward(self, F, x):
        return self.b(F.relu(self.a(x) * self.factor, name="act"))


def make(kind=Scaled, **kwargs):
    mx.random.seed(0)
    net = kind(**kwargs)
    net.initialize(mx.init.Normal(1))
    return net


def trained(policy=None, hybridized=False):
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=4), nn.BatchNorm(in_channels=5), nn.Dropout(0.5), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(1))
    if hybridized:
        net.hybridize()
    if policy:
        mxmp.gluon.convert(net, policy)
    with autograd.record():
        loss = LOSS(net(mx.nd.array(X)), mx.nd.array(LABELS)).sum()
    loss.backward()
    return net


def state(net):
    """Return what can be seen of parameters: arrays, values, gradients, and whether these are fresh."""
    found = {}
    for name, param in net.collect_params().items():
        arrays = [*param.list_data(), *(param.list_grad() if param.grad_req != "null" else ())]
        fresh = [array._fresh_grad for array in param.list_data()]
        found[name] = type(param), str(param.dtype), fresh, [(id(a), a.asnumpy().tobytes()) for a in arrays]
    return found


def numbers(net):
    """Return what numpy computes: activations and the gradients of a batch's sum of losses."""
    a, b = (param.data().asnumpy() for param in net.collect_params().values())
    hidden = X @ a.T * net.factor
    logits = np.maximum(hidden, 0) @ b.T
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = shares / shares.sum(axis=1, keepdims=True) - np.eye(3)[LABELS.astype(int)]
    back = error @ b * (hidden > 0)
    return {"a": X @ a.T, "b": logits}, {"a": back * net.factor, "act": error @ b, "b": error}


def test_ranges_are_those_of_numpy():
    net = make(factor=3.0)
    found = measure_ranges(net, batches())
    values, _ = numbers(net)
    assert found["data"] == pytest.approx(np.abs(X).max())
    assert found["net_a_fwd_output"] == pytest.approx(np.abs(values["a"]).max(), rel=1e-5)
    assert found["net_b_fwd_output"] == pytest.approx(np.abs(values["b"]).max(), rel=1e-5)
    assert not [name for name in found if "weight" in name]


def test_gradients_are_those_of_numpy():
    net = make(factor=0.1)
    found = measure_gradients(net, LOSS, batches())
    _, gradients = numbers(net)
    for name, gradient in gradients.items():
        each = found["net_act_output" if name == "act" else f"net_{name}_fwd_output"]
        assert each.total == np.count_nonzero(gradient)
        assert each.largest == pytest.approx(np.abs(gradient).max(), rel=1e-4)


def test_the_largest_finite_value_counts():
    data = X.copy()
    data[0, 0], data[2, 1] = np.nan, -np.inf
    found = measure_ranges(make(), [mx.nd.array(data), mx.nd.array(X / 2)])
    assert found["data"] == pytest.approx(np.abs(data[np.isfinite(data)]).max())


def test_all_kinds_of_batches_are_taken():
    net = make()
    data, label = batches()[0]
    dataset = gluon.data.ArrayDataset(X, LABELS)
    kinds = [
        [data],
        [(data,)],
        [[data, label]],
        [(data, None)],
        [mx.io.DataBatch([data], [label])],
        mx.io.NDArrayIter(X, LABELS, 6),
        gluon.data.DataLoader(dataset, 6),
        iter([(data, label)]),
    ]
    expected = measure_ranges(net, batches())
    assert all(measure_ranges(net, kind) == expected for kind in kinds)
    measured = measure_gradients(net, LOSS, batches())
    labelled = (measure_gradients(net, LOSS, kind) for kind in [*kinds[4:7], [[data, label]]])
    assert all({n: vars(e) for n, e in each.items()} == {n: vars(e) for n, e in measured.items()} for each in labelled)


def test_so_many_batches_are_read_and_no_more():
    net = make()
    read = []

    def loader():
        for batch in batches(5):
            read.append(batch)
            yield batch

    two = measure_ranges(net, loader(), batches=2)
    assert len(read) == 2
    assert two == measure_ranges(net, batches(2)) != measure_ranges(net, batches(3))


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("policy", [None, "O1", "O2"])
def test_the_net_is_as_it_was_found(policy, hybridized):
    net = trained(policy, hybridized)
    output, before, text = net(mx.nd.array(X)).asnumpy(), state(net), repr(net)
    ranges = measure_ranges(net, batches(2))
    measure_gradients(net, LOSS, batches(2))
    assert state(net) == before and repr(net) == text
    assert np.array_equal(net(mx.nd.array(X)).asnumpy(), output)
    assert set(ranges) == set(measure_ranges(trained(), batches()))


def test_a_converted_net_is_measured_in_float32():
    net = make(factor=1e5)
    plain = measure_ranges(net, batches())
    assert plain["net_act_output"] > 65504
    assert measure_ranges(mxmp.gluon.convert(net, "O2"), batches()) == pytest.approx(plain, rel=1e-3)


def test_each_graph_is_built_once_whatever_the_shapes(monkeypatch):
    built = []
    original = mx.nd.CachedOp
    monkeypatch.setattr(mx.nd, "CachedOp", lambda *args, **kwargs: built.append(args) or original(*args, **kwargs))
    sizes = [mx.nd.ones((rows, 4)) for rows in (1, 2, 3, 2)]
    measure_ranges(make(), sizes)
    assert len(built) == 1
    measure_ranges(make(), [*sizes, mx.nd.ones((2, 4)) * np.inf, *sizes])
    assert len(built) == 1 + 1
    measure_gradients(make(), LOSS, [(each, mx.nd.zeros(each.shape[0])) for each in sizes])
    assert len(built) == 1 + 1 + 1


class Chain(gluon.Block):
    """A plain block: two graphs with eager operators between them."""

    def __init__(self):
        super().__init__(prefix="chain_")
        with self.name_scope():
            self.first = nn.Dense(5, in_units=4, use_bias=False)
            self.second = nn.Dense(3, in_units=5, use_bias=False)

    def forward(self, x):
        return self.second(self.first(x).tanh() * 2)


def test_a_net_of_several_graphs_is_measured_along_its_whole_chain():
    net = make(Chain)
    found, ranges = measure_gradients(net, LOSS, batches()), measure_ranges(net, batches())
    data, label = batches()[0]
    first = net.first(data)
    first.attach_grad()
    with autograd.record():
        hidden = first.tanh() * 2
        loss = LOSS(net.second(hidden), label)
    loss.backward()
    assert found["chain_dense0_fwd_output"].largest == pytest.approx(np.abs(first.grad.asnumpy()).max(), rel=1e-5)
    assert ranges["chain_dense0_fwd_output"] == pytest.approx(np.abs(first.asnumpy()).max(), rel=1e-5)
    assert set(found) == {"chain_dense0_fwd_output", "chain_dense1_fwd_output"}


def test_frozen_layers_have_no_gradients():
    net = make()
    net.a.collect_params().setattr("grad_req", "null")
    assert set(measure_gradients(net, LOSS, batches())) == {"net_b_fwd_output"}


def test_ranges_keep_layers_of_a_net_in_float32():
    """Nothing in the graph tells that a factor of 1e5 is too much; the data does."""
    net, data = make(factor=1e5), mx.nd.array(X)
    exact, ranges = net(data).asnumpy(), measure_ranges(net, batches())
    assert not np.isfinite(mxmp.gluon.convert(net, "O1")(data).asnumpy()).all()
    mxmp.gluon.convert(net, "O1", ranges=ranges)
    np.testing.assert_allclose(net(data).asnumpy(), exact, rtol=0.05, atol=0.01 * np.abs(exact).max())
    precisions = {row.name: row.precision for row in mxmp.gluon.report(net).rows}
    assert precisions["net_a_fwd"] == "float16" and precisions["net_act"] == precisions["net_b_fwd"] == "float32"


def test_ranges_are_part_of_a_conversion():
    net, data = make(factor=1e5), mx.nd.array(X)
    ranges = measure_ranges(net, batches())
    mxmp.gluon.convert(net, "O1", ranges=ranges)
    again = mxmp.gluon.convert(net, "O1", ranges=ranges)
    assert np.isfinite(again(data).asnumpy()).all()
    assert np.isfinite(copy.deepcopy(net)(data).asnumpy()).all()
    mxmp.gluon.convert(net, "O1")
    assert not np.isfinite(net(data).asnumpy()).all()


def test_ranges_hold_where_batchnorm_is_folded(tmp_path):
    net = nn.HybridSequential(prefix="fold_")
    with net.name_scope():
        net.add(nn.Dense(5, in_units=4), nn.BatchNorm(in_channels=5), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(1))
    net[1].gamma.set_data(mx.nd.ones(5) * 1e6)
    data = mx.nd.array(X)
    exact, ranges = net(data).asnumpy(), measure_ranges(net, [data])
    mxmp.gluon.convert(net, "O1", ranges=ranges)(data)
    symbol, params = mxmp.gluon.export(net, str(tmp_path / "net"), for_inference=True)
    folded = gluon.SymbolBlock.imports(symbol, ["data"], params)
    np.testing.assert_allclose(folded(data).asnumpy(), exact, rtol=0.01, atol=0.01 * np.abs(exact).max())


def test_a_range_of_another_net_is_refused():
    net = make(factor=1e5)
    with pytest.raises(ConvertError, match="ranges: the net has no output 'other_output'"):
        mxmp.gluon.convert(net, "O1", ranges={"other_output": 1e6})(mx.nd.array(X))
    with pytest.raises(ConvertError, match="none of these outputs, such as 'other_output'; measure the net that is"):
        mxmp.gluon.convert(net, "O1", ranges={"other_output": 1.0, "data": 3.0})(mx.nd.array(X))
    mxmp.gluon.convert(net, "O1", ranges={"data": 3.0})(mx.nd.array(X))
    with pytest.raises(ConvertError, match="ranges is a str; expected what mxmp.diagnose.measure_ranges returns"):
        mxmp.gluon.convert(net, "O1", ranges="ranges.json")
    with pytest.raises(ConvertError, match="give the part of it that it calls 'ranges'"):
        mxmp.gluon.convert(net, "O1", ranges={"data": "random numbers", "ranges": {"net_act_output": 1.0}})
    with pytest.raises(ConvertError, match="ranges: 'net_act_output' is 'large'"):
        mxmp.gluon.convert(net, "O1", ranges={"net_act_output": "large"})


@pytest.mark.parametrize(
    "loader, message",
    [
        ([], "loader is empty"),
        (mx.nd.ones((6, 4)), "loader is a NDArray; expected a DataLoader"),
        ({"data": mx.nd.ones((6, 4))}, "loader is a dict"),
        ([{"data": mx.nd.ones((6, 4))}], "a batch is a dict, which is for a symbol or Module; a Gluon net takes an array"),
        ([("text", LABELS)], "a batch holds a str"),
        (batches()[0], r"loader is a tuple of 2 arrays, of shapes \(6, 4\), \(6\), which is one batch; give a list of b"),
        (3, "loader is a int"),
    ],
)
def test_bad_loaders_are_refused(loader, message):
    with pytest.raises(ConvertError, match=message):
        measure_ranges(make(), loader)


def test_bad_arguments_are_refused():
    net = make()
    with pytest.raises(ConvertError, match="batches is 0; expected how many"):
        measure_ranges(net, batches(), batches=0)
    with pytest.raises(ConvertError, match="a batch has no label"):
        measure_gradients(net, LOSS, [mx.nd.array(X)])
    with pytest.raises(ConvertError, match=r"loss or the loader of a Gluon net is missing; call .*\(net, loss, loader\)"):
        measure_gradients(net, batches())
    with pytest.raises(ConvertError, match="loss is a list"):
        measure_gradients(net, batches(), LOSS)
    with pytest.raises(ConvertError, match="parameter 'dense.*_weight' has no values"):
        measure_ranges(nn.Dense(2), batches())
    net.collect_params().setattr("grad_req", "null")
    with pytest.raises(ConvertError, match="no parameter to train"):
        measure_gradients(net, LOSS, batches())


def test_a_batch_that_does_not_fit_is_named():
    wrong = mx.nd.ones((6, 3))
    said = r"'data' has shape \(6, 3\): parameter 'net_a_weight' of shape \(5, 4\) would have to be \(5, 3\)"
    with pytest.raises(ConvertError, match=said):
        measure_ranges(make(), [wrong])
    with pytest.raises(ConvertError, match=said):
        measure_gradients(make(), LOSS, [(wrong, mx.nd.ones(6))])


def test_a_batch_of_too_many_arrays_is_said_to_be():
    three = [(mx.nd.array(X), mx.nd.array(X), mx.nd.array(LABELS))]
    with pytest.raises(ConvertError, match=r"block 'net' cannot be called with 'data0' .* are a list of tuples\.$"):
        measure_ranges(make(), three)


def test_a_label_or_a_loss_that_does_not_fit_is_named():
    data = mx.nd.array(X)
    with pytest.raises(ConvertError, match=r"the loss fails on an output of shape \(6, 3\) and a label of shape \(3,"):
        measure_gradients(make(), LOSS, [(data, mx.nd.ones(3))])
    with pytest.raises(ConvertError, match="the loss fails on an output of shape .* and no label"):
        measure_gradients(make(), LOSS, [(data, None)])
    with pytest.raises(ConvertError, match="loss gave float; expected the loss of the batch"):
        measure_gradients(make(), lambda output, label: 3.0, [(data, None)])


def test_nan_is_counted_and_said(caplog):
    data = X.copy()
    data[0, 0] = data[0, 1] = np.nan
    found = measure_ranges(make(), [mx.nd.array(data), mx.nd.array(X), mx.nd.array(data)])
    assert found["data"] == np.abs(X).max()
    assert "measure_ranges: NaN in 'data' (4 elements), 'net_a_fwd_output' (10 " in caplog.text and "and 2 more" in caplog.text
    caplog.clear()
    measure_gradients(make(), LOSS, [(mx.nd.array(data), mx.nd.array(LABELS))])
    assert "measure_gradients: inf or NaN in the gradients of" in caplog.text
    caplog.clear()
    measure_ranges(make(), batches())
    measure_gradients(make(), LOSS, batches())
    assert not caplog.text


def test_a_call_that_lacks_something_is_told_by_its_own_name():
    with pytest.raises(TypeError, match=r"measure_ranges\(\) missing 1 required positional argument: 'loader'"):
        measure_ranges(make())
    with pytest.raises(ConvertError, match="found a Module; give module.symbol"):
        measure_ranges(mx.mod.Module(mx.sym.relu(mx.sym.var("data")), label_names=None), batches())


def test_an_imported_network_is_measured(tmp_path):
    net = make()
    net.hybridize()
    net(mx.nd.array(X))
    net.export(str(tmp_path / "net"))
    block = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    found = measure_ranges(block, batches())
    assert found == measure_ranges(net, batches())
    assert set(measure_gradients(block, LOSS, batches())) == set(measure_gradients(net, LOSS, batches()))


def test_recurrent_nets_are_measured():
    mx.random.seed(0)
    net = gluon.rnn.LSTM(3, input_size=4, prefix="lstm_")
    net.initialize(mx.init.Normal(1))
    steps = mx.nd.array(X).reshape((3, 2, 4))
    output = np.abs(net(steps).asnumpy()).max()
    ranges = measure_ranges(net, [steps])
    assert pytest.approx(output) in [value for name, value in ranges.items() if name.startswith("lstm_")]
    gradients = measure_gradients(net, lambda output, label: (output**2).sum(), [(steps, None)])
    assert pytest.approx(2 * output) in [each.largest for each in gradients.values()]
