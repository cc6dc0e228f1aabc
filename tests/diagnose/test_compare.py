"""``mxmp.diagnose.compare``: networks of every front, batches, losses, and what is left as it was."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import compare
from mxmp.errors import ConvertError, PolicyError

DATA = mx.nd.array(np.random.RandomState(0).randn(4, 5))
LABEL = mx.nd.array([0, 1, 2, 0])
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


def make(**kwargs):
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_", **kwargs)
    with net.name_scope():
        net.add(nn.Dense(6, in_units=5, activation="relu", use_bias=False), nn.BatchNorm(in_channels=6))
        net.add(nn.Dropout(0.5), nn.Dense(3, in_units=6, use_bias=False))
    net.initialize(mx.init.Normal(1.0))
    return net


def model():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    scores = mx.sym.FullyConnected(data, num_hidden=3, no_bias=True, name="second")
    draw = np.random.RandomState(1)
    args = {"first_weight": mx.nd.array(draw.randn(6, 5)), "second_weight": mx.nd.array(draw.randn(3, 6))}
    return mx.sym.SoftmaxOutput(scores, name="softmax"), args, {}


def half(array):
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def ratio(low, exact):
    return np.linalg.norm(low - exact) / np.linalg.norm(exact)


def rows(found):
    return {row.name: row for row in found.rows}


def test_a_model_is_compared_as_numpy_does():
    sym, args, aux = model()
    found = compare((sym.get_internals()["second_output"], args, aux), {"data": DATA}, "O2")
    x, w, v = DATA.asnumpy(), args["first_weight"].asnumpy(), args["second_weight"].asnumpy()
    first, exact = half(half(x) @ half(w).T), x @ w.T @ v.T
    assert rows(found)["first"].own == pytest.approx(ratio(first, x @ w.T), rel=0.02)
    (output,) = found.outputs
    assert output.name == "second_output"
    assert output.error == pytest.approx(ratio(half(first @ half(v).T), exact), rel=0.02)
    assert rows(found)["second"].carried == output.error
    assert not found.has_gradients and {row.precision for row in found.rows} == {"float16"}


def test_rows_are_in_the_order_of_what_they_contribute():
    found = compare(make(), DATA, "O3")
    contributions = [row.contribution for row in found.rows]
    assert contributions == sorted(contributions, reverse=True) and contributions[0] > 1e-5
    assert f"'{found.rows[0].name}' ({found.rows[0].op}) contributes most" in str(found)


def test_operators_in_float32_make_no_error():
    sym, args, aux = model()
    found = rows(compare((sym, args, aux), {"data": DATA}, "O1"))
    assert found["softmax"].precision == "float32" and found["softmax"].own == found["softmax"].contribution == 0
    assert found["softmax"].carried > 0


def test_a_symbol_has_gradients_if_its_labels_are_given():
    given = {"data": DATA, "softmax_label": LABEL}
    assert not compare(model(), {"data": DATA}).has_gradients
    found = compare(model(), given)
    assert found.has_gradients and 1e-5 < rows(found)["first"].gradient_carried < 1e-2


def test_the_worst_of_several_batches_counts():
    large = {"data": DATA * 1000}
    one, other, both = (compare(model(), batches, "O2") for batches in ({"data": DATA}, large, [{"data": DATA}, large]))
    for name, row in rows(both).items():
        assert row.own == max(rows(one)[name].own, rows(other)[name].own)
        assert row.contribution == max(rows(one)[name].contribution, rows(other)[name].contribution)
    assert both.outputs[0].error == max(one.outputs[0].error, other.outputs[0].error)


def test_an_overflow_is_found_where_it_begins():
    found = compare(model(), {"data": DATA * 20_000}, "O1")
    worst = found.rows[0]
    assert worst.name == "first" and math.isinf(worst.own) and math.isinf(worst.contribution)
    assert "Not finite forward, where float32 is, by itself: 'first' (FullyConnected)" in str(found)
    assert found.outputs[0].name == "softmax_output" and found.outputs[0].error == math.inf


def test_a_net_with_a_loss_is_compared_as_the_symbol_with_its_head():
    """Cross entropy by SoftmaxOutput has the same gradients, of the sum over the batch."""
    sym, args, aux = model()
    net = gluon.SymbolBlock(sym.get_internals()["second_output"], mx.sym.var("data"))
    for name, param in net.collect_params().items():
        param._load_init(args[name], mx.cpu())
    found = rows(compare(net, (DATA, LABEL), "O1", loss=LOSS, loss_scale=64))
    expected = rows(compare((sym, args, aux), {"data": DATA, "softmax_label": LABEL}, "O1", loss_scale=64))
    for name in ("first", "second"):
        for what in ("own", "carried", "gradient_own", "gradient_carried"):
            assert getattr(found[name], what) == pytest.approx(getattr(expected[name], what), rel=0.02), (name, what)


class Two(gluon.HybridBlock):
    """Two inputs, two outputs, one of them in a list."""

    def __init__(self, **kwargs):
        super().__init__(prefix="two_", **kwargs)
        with self.name_scope():
            self.a, self.b = nn.Dense(3, in_units=5), nn.Dense(2, in_units=5)

    def hybrid_forward(self, F, x, y):
        return self.a(x), [self.b(y), self.b(x)]


def test_a_net_with_several_inputs_and_outputs_gives_its_loss_what_it_returns():
    net, given = Two(), []
    net.initialize()

    def loss(output, label):
        given.append([output[0].shape, [each.shape for each in output[1]]])
        return [LOSS(output[0], label), output[1][0].sum() + output[1][1].sum()]

    found = compare(net, [(DATA, DATA * 2, LABEL)], "O1", loss=loss)
    assert given == [[(4, 3), [(4, 2), (4, 2)]]] * 2
    assert len(found.outputs) == 3 and found.has_gradients


class Plain(gluon.Block):
    """Two HybridBlocks, which a function of Python lies between."""

    def __init__(self):
        super().__init__(prefix="plain_")
        with self.name_scope():
            self.a, self.b = nn.Dense(4, in_units=5), nn.Dense(3, in_units=4)

    def forward(self, x):
        return self.b(self.a(x) if x.asnumpy().sum() > -1e9 else x)


def test_blocks_of_a_plain_block_are_compared_one_by_one():
    net = Plain()
    net.initialize()
    found = compare(net, DATA, "O1")
    assert [each.name for each in found.outputs] == ["plain_dense0_fwd_output", "plain_dense1_fwd_output"]


def test_a_block_that_a_plain_block_does_not_record_has_no_gradients():
    class Frozen(Plain):
        def forward(self, x):
            with autograd.pause():
                x = self.a(x)
            return self.b(x)

    net = Frozen()
    net.initialize(mx.init.Normal(1.0))
    found = rows(compare(net, (DATA, LABEL), "O1", loss=LOSS))
    assert found["plain_dense0_fwd"].gradient_own == 0 and found["plain_dense1_fwd"].gradient_own > 0


def test_gradients_go_through_the_blocks_of_a_plain_block_as_through_one_graph():
    """Each block gets float32's inputs and gradients, so that own errors are those of the net as one graph."""
    mx.random.seed(0)
    net = Plain()
    net.initialize(mx.init.Normal(1.0))
    whole = nn.HybridSequential()
    whole.add(net.a, net.b)
    before = [param.grad().asnumpy().tobytes() for param in net.collect_params().values()]
    batches = [(DATA, LABEL), (DATA * 3, LABEL)]
    found, expected = (rows(compare(each, batches, "O1", loss=LOSS)) for each in (net, whole))
    assert set(found) == {"plain_dense0_fwd", "plain_dense1_fwd"} and set(found) == set(expected)
    for name, row in found.items():
        assert row.gradient_own == pytest.approx(expected[name].gradient_own, rel=0.02) and row.gradient_own > 1e-5
    assert found["plain_dense1_fwd"].gradient_carried > 1e-5
    assert [param.grad().asnumpy().tobytes() for param in net.collect_params().values()] == before


def test_an_operator_without_a_gradient_is_named():
    data = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    sym = mx.sym.multi_sum_sq(data, num_arrays=1, name="norm")
    with pytest.raises(ConvertError, match="Operator multi_sum_sq is non-differentiable"):
        compare((sym, {"first_weight": mx.nd.ones((6, 5))}, {}), {"data": DATA}, "O1")


def test_an_operator_that_fails_backward_leaves_contributions_out(monkeypatch):
    def fails(*args, **kwargs):
        raise mx.MXNetError("not implemented")

    monkeypatch.setattr(autograd, "backward", fails)
    found = compare(model(), {"data": DATA})
    assert rows(found)["first"].own > 0 and rows(found)["first"].contribution is None
    assert rows(found)["softmax"].contribution == 0 and "contributes" not in str(found)


@pytest.mark.parametrize(
    "net_or_model, batches, options, match",
    [
        (make, DATA, {"policy": "O0"}, "policy '.*' is float32, so there is nothing to compare"),
        (make, None, {}, "batches is a NoneType; expected a DataLoader, a list of batches"),
        (make, [], {}, "batches is empty"),
        (make, {"data": DATA}, {}, "batches: a batch is a dict, which is for a symbol or Module; a Gluon net takes an array"),
        (make, [("text",)], {}, "a batch holds a str; expected an array"),
        (
            make,
            DATA[:, :4],
            {},
            r"'data' has shape \(4, 4\): parameter 'net_dense0_weight' of shape \(\d, 5\) would have",
        ),
        (make, (DATA, DATA), {"loss": LOSS}, "the loss fails on an output of shape|loss gave"),
        (model, {"data": DATA[:, :4]}, {}, r"'data' has shape \(4, 4\), for which 'first_weight' of shape \(\d, 5\) would"),
        (make, DATA, {"ctx": mx.cpu()}, "ctx is for a symbol"),
        (make, DATA, {"loss": LOSS}, "a batch has no label for loss"),
        (make, [DATA, DATA], {}, r"takes.*given\. Arrays of a .*list of tuples\. A label is read only with loss=\.$"),
        (make, [DATA, DATA, LABEL], {"loss": LOSS}, r"given\. Arrays of a tuple or list .* are a list of tuples\.$"),
        (make, (DATA, LABEL), {"loss": 3}, "loss is a int"),
        (make, (DATA, LABEL), {"loss": lambda output, label: 1.0}, "loss gave float; expected the loss"),
        (model, None, {}, "batches is a NoneType"),
        (model, [], {}, "batches is empty"),
        (model, {"data": DATA[:0]}, {}, r"an array has shape \(0, 5\), so that there is nothing to run"),
        (model, {"data": np.array([["a"] * 5])}, {}, "an array has dtype <U1; expected numbers"),
        (lambda: None, (DATA, LABEL), {"loss": LOSS}, "net_or_model is a NoneType"),
        (model, {"data": DATA}, {"loss": LOSS}, "loss is for a Gluon net"),
        (model, {"softmax_label": LABEL}, {}, "a batch lacks the input 'data'"),
        (model, {"data": DATA, "other": DATA}, {}, "other"),
        (lambda: 3, {"data": DATA}, {}, "net_or_model is a int; expected a Gluon net"),
        (lambda: mx.mod.Module(model()[0]), {"data": DATA}, {}, "not bound"),
        (lambda: nn.Dense(3), DATA, {}, "has no values"),
    ],
)
def test_what_cannot_be_compared_is_refused(net_or_model, batches, options, match):
    with pytest.raises(ConvertError, match=match):
        compare(net_or_model(), batches, **options)


def test_a_policy_that_does_not_parse_is_refused():
    with pytest.raises(PolicyError, match="unknown policy"):
        compare(make(), DATA, "O9")


@pytest.mark.bfloat16
def test_bfloat16_is_compared_too():
    assert 1e-4 < compare(make(), DATA, "mixed_bfloat16").outputs[0].error < 1e-1


def test_nan_in_a_batch_is_refused_and_not_taken_for_no_error():
    net = gluon.nn.Dense(3, in_units=4, prefix="net_")
    net.initialize()
    with pytest.raises(ConvertError, match="batches: 'data' holds NaN"):
        compare(net, mx.nd.full((2, 4), np.nan))


@pytest.fixture
def numpy_semantics():
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def plain():
    return Plain()


def whole():
    net = nn.HybridSequential(prefix="whole_")
    with net.name_scope():
        net.add(nn.Dense(4, in_units=5, activation="relu"), nn.Dense(3, in_units=4))
    return net


def with_values(net):
    net.initialize()
    for number, param in enumerate(net.collect_params().values()):
        values = np.random.RandomState(number).randn(*param.shape)
        param.set_data((mx.np if mx.util.is_np_array() else mx.nd).array(values, dtype="float32"))
    return net


@pytest.fixture(params=[plain, whole])
def net_and_expected(request):
    """What makes a net, and what is found of it with MXNet's older arrays."""
    return request.param, compare(with_values(request.param()), (DATA, LABEL), "O1", loss=LOSS)


@pytest.mark.parametrize("given", ["mx.np", "numpy"])
def test_a_net_of_numpy_semantics_is_compared_as_with_older_arrays(net_and_expected, numpy_semantics, given):
    make_net, expected = net_and_expected
    batch = DATA.asnumpy(), LABEL.asnumpy()
    batch = tuple(map(mx.np.array, batch)) if given == "mx.np" else batch
    found = compare(with_values(make_net()), batch, "O1", loss=LOSS)
    assert found.has_gradients and rows(found) == rows(expected)


@pytest.mark.parametrize("bad", [0, 1])
def test_an_output_that_is_nan_in_float32_is_said_to_be(bad):
    net = nn.HybridLambda(lambda F, x: F.log(x, name="logarithm"), prefix="net_")
    batches = [(mx.nd.array([[1, 2]]),), (mx.nd.array([[1, 2]]),)]
    batches[bad] = (mx.nd.array([[-1, 2]]),)
    (output,) = compare(net, batches, "O3").outputs
    assert not output.is_finite and output.error < 1e-2
    assert compare(net, batches[1 - bad], "O3").outputs[0].is_finite


def of_linear_loss(factor, loss_scale=None):
    """Return a comparison in which the largest scaled gradient is that of the bias: 4 * factor * scale."""
    net = nn.Dense(3, in_units=5, prefix="net_", bias_initializer="zeros")
    net.initialize(mx.init.Constant(0.5))
    return compare(
        net, (DATA * 0.1, LABEL), "O1", loss=lambda output, _: (output * factor).sum(), loss_scale=loss_scale
    )


@pytest.mark.parametrize("factor, scale", [(1.0, 1024), (1000.0, 16), (16_000.0, 1), (1e6, 1)])
def test_a_loss_scale_that_is_not_given_falls_to_the_largest_at_which_gradients_are_finite(factor, scale):
    found = of_linear_loss(factor)
    assert found.loss_scale == scale and (found.lowered_from == 1024) == (scale < 1024)
    assert (f"Gradients are compared at a loss scale of {scale}: at 1024" in str(found)) == (scale < 1024)
    assert math.isfinite(found.rows[0].gradient_own) == (factor < 1e6)
    assert ("Not finite backward at a loss scale of 1," in str(found)) == (factor == 1e6)


def test_a_loss_scale_that_is_given_is_kept_and_named():
    found = of_linear_loss(1000.0, 1024)
    assert found.loss_scale == 1024 and found.lowered_from is None
    assert "Not finite backward at a loss scale of 1024, where float32 is, by itself: 'net_fwd'" in str(found)


def test_the_bias_of_a_convolution_before_batch_norm_has_no_large_error():
    mx.random.seed(0)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.Dense(3, in_units=4 * 36))
    net.initialize(mx.init.Xavier())
    found = compare(net, (mx.nd.random.uniform(shape=(4, 3, 8, 8)), LABEL), "O1", loss=LOSS)
    assert all(row.gradient_own < 2e-3 and row.gradient_carried < 0.1 for row in found.rows)


def test_a_block_that_a_net_calls_twice_is_compared_on_all_batches():
    class Twice(gluon.Block):
        def __init__(self):
            super().__init__(prefix="twice_")
            with self.name_scope():
                self.part = gluon.nn.Dense(2, in_units=2, weight_initializer="ones")

        def forward(self, x):
            return self.part(self.part(x))

    net = Twice()
    net.initialize()
    small, large = mx.nd.ones((1, 2)), mx.nd.full((1, 2), 60000)
    for batches in ([(small,), (large,)], [(large,), (small,)]):
        assert max(row.own for row in compare(net, batches, "O1").rows) == math.inf


class Reshaped(gluon.HybridBlock):
    """A layer whose bias, of equal values, is exact in float16: its own error is 0."""

    def __init__(self):
        super().__init__(prefix="reshaped_")
        with self.name_scope():
            self.bias = self.params.get("bias", shape=(2, 2), init="ones")
            self.weight = self.params.get("weight", shape=(4, 5), init="xavier")

    def hybrid_forward(self, F, x, bias, weight):
        return F.FullyConnected(x, weight, F.reshape(bias, (-1,)), num_hidden=4)


def test_an_operator_without_an_own_error_has_finite_gradients():
    net = Reshaped()
    net.initialize()
    found = compare(net, (DATA, LABEL), "O1", loss=LOSS)
    assert {row.op: row.own for row in found.rows}["Reshape"] == 0.0
    assert all(row.gradient_own < 1e-2 for row in found.rows) and found.loss_scale == 1024.0


@pytest.mark.parametrize("calls", [0, 1])
def test_a_recurrent_layer_gives_its_loss_what_it_returns_called_before_or_not(calls):
    net = gluon.rnn.LSTM(3, input_size=5, prefix="lstm_")
    net.initialize(mx.init.Xavier())
    data, label = mx.nd.random.normal(shape=(2, 4, 5)), mx.nd.zeros((2, 4, 3))
    for _ in range(calls):
        net(data)
    assert compare(net, (data, label), "O1,op:RNN=float16", loss=gluon.loss.L2Loss()).has_gradients


@pytest.mark.parametrize("worst", [0, -1, 1.5, "a", True])
def test_a_text_lists_one_operator_or_more(worst):
    with pytest.raises(ConvertError, match=f"worst={worst!r}: expected a whole number from 1 on, or None for all"):
        compare(model(), {"data": DATA}).text(worst)


def test_ranges_that_a_network_was_converted_with_hold_for_what_looks_at_it():
    data = mx.sym.var("data")
    large = mx.sym.square(data * 300, name="large")
    model = mx.sym.FullyConnected(large, num_hidden=2, name="fc"), {"fc_weight": mx.nd.ones((2, 3)) * 1e-6, "fc_bias": mx.nd.zeros(2)}, {}
    batch = {"data": mx.nd.ones((4, 3))}
    ranges = mxmp.diagnose.measure_ranges(*model, [batch])
    converted = mxmp.symbol.convert_model(*model, "O3", shapes={"data": (4, 3)}, ranges=ranges)
    assert mxmp.diagnose.find_nonfinite(converted, batch) is None
    assert all(row.carried < 1e-3 for row in compare(converted, batch).rows)
