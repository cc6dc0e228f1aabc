"""``mxmp.diagnose.compare``: networks of every front, batches, losses, and the text of the result."""

import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import Comparison, NodeComparison, OutputComparison, compare
from tests.diagnose.nets import DATA, L2, LABEL, SOFTMAX, chain, classifier, made, model, where

BATCH = {"data": DATA, "softmax_label": LABEL}


def rows(found):
    return {row.name: row for row in found.rows}


def test_rows_are_in_the_order_of_what_they_contribute_and_an_output_has_the_error_that_its_node_carries():
    found = compare(classifier(), DATA, "O3")
    contributions = [row.output_error for row in found.rows]
    assert contributions == sorted(contributions, reverse=True) and contributions[0] > 1e-5 and not found.has_gradients
    assert f"'{found.rows[0].name}' ({found.rows[0].op}) contributes most" in str(found)
    (output,) = found.outputs
    assert output.name == "net_dense1_fwd_output" and output.error == rows(found)["net_dense1_fwd"].accumulated_error > 1e-5


def test_a_symbol_has_gradients_if_its_labels_are_given():
    assert not compare(model(), {"data": DATA}).has_gradients
    found = rows(compare(model(), BATCH))
    assert 1e-5 < found["first"].gradient_accumulated_error < 1e-2 and found["softmax"].gradient_local_error == 0 < found["softmax"].gradient_accumulated_error


def casting(declares):
    """Return a model that was made for float16 by hand: a layer between its own casts, with parameters in float16."""
    weight = {"weight": mx.sym.var("low_weight", dtype="float16")} if declares else {}
    first = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=6, no_bias=True, name="first")
    low = mx.sym.FullyConnected(mx.sym.Cast(first, dtype="float16"), num_hidden=3, name="low", **weight)
    draw = np.random.RandomState(1)
    args = {"first_weight": mx.nd.array(draw.randn(6, 5)), "low_weight": mx.nd.array(draw.randn(3, 6)), "low_bias": mx.nd.zeros(3)}
    args = {name: value if name == "first_weight" else value.astype("float16") for name, value in args.items()}
    return mx.sym.SoftmaxOutput(mx.sym.Cast(low, dtype="float32"), name="softmax"), args, {}


@pytest.mark.parametrize("batch", [{"data": DATA}, BATCH], ids=["data", "labels"])
@pytest.mark.parametrize("declares", [False, True])
def test_a_network_with_casts_of_its_own_gets_float16_where_these_imply_it(declares, batch):
    found = compare(casting(declares), batch, "O1")
    assert 1e-6 < rows(found)["first"].accumulated_error < 1e-2 and "low" not in rows(found)
    assert found.has_gradients == (len(batch) > 1) and 1e-6 < found.outputs[0].error < 1e-2


def test_the_worst_of_several_batches_counts():
    batches = [{"data": DATA}, {"data": DATA * 1000}]
    one, other, both = (compare(model(), each, "O2") for each in (*batches, batches))
    for name, row in rows(both).items():
        parts = rows(one)[name], rows(other)[name]
        assert (row.local_error, row.output_error) == tuple(max(getattr(part, what) for part in parts) for what in ("local_error", "output_error"))
    assert both.outputs[0].error == max(one.outputs[0].error, other.outputs[0].error)


def test_an_overflow_is_found_where_it_begins():
    found = compare(model(), {"data": DATA * 20_000}, "O1")
    worst, (output,) = found.rows[0], found.outputs
    assert worst.name == "first" and math.isinf(worst.local_error) and math.isinf(worst.output_error)
    assert "Not finite forward, where float32 is, by itself: 'first' (FullyConnected)" in str(found)
    assert (output.name, output.error) == ("softmax_output", math.inf)


def blocks():
    return nn.Dense(4, in_units=5, prefix="a_"), nn.Dense(3, in_units=4, prefix="b_")


def test_blocks_of_a_plain_block_are_compared_one_by_one_gradients_as_through_one_graph():
    """Each block gets float32's inputs and gradients, so that own errors are those of the net as one graph."""
    net, whole, batches = made(chain(*blocks())), nn.HybridSequential(), [(DATA, LABEL), (DATA * 3, LABEL)]
    whole.add(*net)
    before = [param.grad().asnumpy().tobytes() for param in net.collect_params().values()]
    found, expected = (compare(each, batches, "O1", loss=SOFTMAX) for each in (net, whole))
    assert [each.name for each in found.outputs] == ["a_fwd_output", "b_fwd_output"]
    errors = [{row.name: row.gradient_local_error for row in each.rows} for each in (found, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=0.02) and min(errors[0].values()) > 1e-5
    assert rows(found)["b_fwd"].gradient_accumulated_error > 1e-5
    assert [param.grad().asnumpy().tobytes() for param in net.collect_params().values()] == before


def test_an_operator_that_fails_backward_leaves_contributions_out(monkeypatch):
    def fails(*args, **kwargs):
        raise mx.MXNetError("not implemented")

    monkeypatch.setattr(autograd, "backward", fails)
    found = compare(model(), {"data": DATA})
    assert rows(found)["first"].local_error > 0 and rows(found)["first"].output_error is None
    assert rows(found)["softmax"].output_error == 0 and "contributes" not in str(found)


@pytest.mark.bfloat16
def test_bfloat16_is_compared_too():
    assert 1e-4 < compare(classifier(), DATA, "mixed_bfloat16").outputs[0].error < 1e-1


@pytest.mark.parametrize("array", [mx.np.array, np.asarray], ids=["mx.np", "numpy"])
def test_a_net_of_numpy_semantics_is_compared_as_with_older_arrays(array, request):
    batch, init = (DATA.asnumpy(), LABEL.asnumpy()), mx.init.Constant(0.3)
    expected = compare(made(chain(*blocks()), init), (DATA, LABEL), "O1", loss=SOFTMAX)
    request.addfinalizer(mx.npx.reset_np)
    mx.npx.set_np()
    found = compare(made(chain(*blocks()), init), tuple(map(array, batch)), "O1", loss=SOFTMAX)
    assert found.has_gradients and rows(found) == rows(expected)


@pytest.mark.parametrize("bad", [0, 1])
def test_an_output_that_is_nan_in_float32_is_said_to_be(bad):
    net = nn.HybridLambda(lambda F, x: F.log(x, name="logarithm"), prefix="net_")
    batches = [(mx.nd.array([[-1 if number == bad else 1, 2]]),) for number in (0, 1)]
    (output,) = compare(net, batches, "O3").outputs
    assert not output.is_finite and output.error < 1e-2
    assert compare(net, batches[1 - bad], "O3").outputs[0].is_finite


def of_linear_loss(factor, loss_scale=None):
    """Return a comparison in which the largest scaled gradient is that of the bias: 4 * factor * scale."""
    net = made(nn.Dense(3, in_units=5, prefix="net_", bias_initializer="zeros"), mx.init.Constant(0.5))
    return compare(net, (DATA * 0.1, LABEL), "O1", loss=lambda out, _: (out * factor).sum(), loss_scale=loss_scale)


@pytest.mark.parametrize("factor, scale", [(1.0, 1024), (1000.0, 16), (1e6, 1)])
def test_a_loss_scale_that_is_not_given_falls_to_the_largest_at_which_gradients_are_finite(factor, scale):
    found = of_linear_loss(factor)
    assert found.loss_scale == scale and (found.lowered_from == 1024) == (scale < 1024)
    assert (f"Gradients are compared at a loss scale of {scale}, because not all are finite at 1024" in str(found)) == (scale < 1024)
    assert math.isfinite(found.rows[0].gradient_local_error) == (factor < 1e6)
    assert ("Not finite backward at a loss scale of 1," in str(found)) == (factor == 1e6)


def test_a_loss_scale_that_is_given_is_kept_and_named():
    found = of_linear_loss(1000.0, 1024)
    assert found.loss_scale == 1024 and found.lowered_from is None
    assert "Not finite backward at a loss scale of 1024, where float32 is, by itself: 'net_fwd'" in str(found)


def test_a_network_without_an_operator_has_no_errors():
    found = compare((mx.sym.var("data"), {}, {}), {"data": DATA})
    assert not found.rows and found.summary == ["No node adds an error."] and found.loss_scale is None


def test_errors_of_gradients_are_the_same_at_every_loss_scale_that_loses_nothing():
    errors = [of_linear_loss(1.0, scale).rows[0] for scale in (256, 1024)]
    assert len({(row.gradient_local_error, row.gradient_accumulated_error) for row in errors}) == 1
    assert errors[0].gradient_local_error < 1e-2


@pytest.mark.parametrize("values", [(1, 60000), (60000, 1)])
def test_a_block_that_a_net_calls_twice_is_compared_on_all_batches(values):
    part, net = nn.Dense(2, in_units=2), nn.Sequential()
    net.add(part, part, nn.Sequential())
    found = compare(made(net, mx.init.One()), [(mx.nd.full((1, 2), value),) for value in values], "O1")
    assert max(row.local_error for row in found.rows) == math.inf


@pytest.mark.parametrize("is_called", [False, True])
def test_a_recurrent_layer_gives_its_loss_what_it_returns_called_before_or_not(is_called):
    net, data = made(gluon.rnn.LSTM(3, input_size=5, prefix="lstm_"), mx.init.Xavier()), mx.nd.random.normal(shape=(2, 4, 5))
    net(data) if is_called else None
    assert compare(net, (data, mx.nd.zeros((2, 4, 3))), "O1,op:RNN=float16", loss=L2).has_gradients


def test_ranges_that_a_network_was_converted_with_hold_for_what_looks_at_it():
    large = mx.sym.square(mx.sym.var("data") * 300, name="large")
    params = {"fc_weight": mx.nd.ones((2, 3)) * 1e-6, "fc_bias": mx.nd.zeros(2)}
    given, batch = (mx.sym.FullyConnected(large, num_hidden=2, name="fc"), params, {}), {"data": mx.nd.ones((4, 3))}
    ranges = mxmp.diagnose.measure_ranges(given, batch)
    converted = mxmp.symbol.convert_model(*given, "O3", shapes={"data": (4, 3)}, ranges=ranges)
    assert where(converted, batch) is None
    assert all(row.accumulated_error < 1e-3 for row in compare(converted, batch).rows)


# ---------------------------------------------------------------------- the result

FC = NodeComparison("fc", "FullyConnected", "float16", 1e-4, 2e-4, 1.5e-4, 3e-4, 4e-4)
SQUARE = NodeComparison("square", "elemwise_mul", "float16", math.inf, math.inf, math.inf, 1e-3, math.inf)
MEAN = NodeComparison("mean", "mean", "float32", 0.0, math.inf, 0.0, None, None)
FOUND = Comparison("O1", (SQUARE, FC, MEAN), (OutputComparison("mean_output", math.inf),))
EXACT = NodeComparison("a", "sum", "float32", 0.0, 0.0, 0.0)
OF_NAN = Comparison("O1", (EXACT,), (OutputComparison("a_output", 0.0, is_finite=False),))
SUMMARIES = {
    "what contributes most": (
        Comparison("O1", (FC,), (OutputComparison("fc_output", 2e-4),)),
        [
            "The output 'fc_output' is off by 0.0002.",
            "'fc' (FullyConnected) contributes most: if only it is rounded, the outputs are off by 0.00015.",
        ],
    ),
    "where infinity begins": (
        FOUND,
        [
            "The output 'mean_output' is off by ∞.",
            "Not finite forward, where float32 is, by itself: 'square' (elemwise_mul); 1 node gets it from others.",
            "Not finite backward, where float32 is, by itself: no node; 1 node gets it from others.",
            "Keep in float32 all that is not finite forward: 'name:square=float32'.",
        ],
    ),
    "float32 is NaN itself": (
        OF_NAN,
        [
            "The output 'a_output' holds inf or NaN in float32 itself, which cannot be compared: `explain` names the node "
            "that gives them."
        ],
    ),
    "nothing is rounded": (Comparison("O1", (EXACT,), ()), ["No node adds an error."]),
}


@pytest.mark.parametrize("found, summary", SUMMARIES.values(), ids=SUMMARIES.keys())
def test_the_summary_names(found, summary):
    assert found.summary == summary


@pytest.mark.parametrize("found", [FOUND, OF_NAN])
def test_infinity_is_read_back(found):
    assert FOUND.to_dict()["outputs"] == [{"name": "mean_output", "error": "inf", "is_finite": True}]
    assert Comparison.from_json(found.to_json()) == found and not SQUARE.is_finite and FC.is_finite


def test_the_table_has_gradients_if_they_were_compared_and_names_as_they_are():
    row = NodeComparison("[red]a[/red]\x1b[31m", "sum", "float16", 1.0, 1.0, 1.0)
    plain = str(Comparison("O1", (row,), ()))
    assert "[red]a[/red]\\x1b[31m" in plain and "gradient" not in plain
    assert all(text in str(FOUND) for text in ("gradient", "∞", "0.00015"))
