"""Magnitudes of a float32 network, and what a conversion makes of them."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.diagnose import measure_ranges
from mxmp.errors import ConvertError
from mxmp.symbol import convert_graph, convert_model, convert_symbol

X = {"x": (4, 6)}
WEIGHTS = np.random.RandomState(0).randn(2, 6, 6).astype(np.float32)


def dense(data, name):
    return mx.sym.FullyConnected(data, no_bias=True, num_hidden=6, name=name)


def scaled(factor):
    """Two layers with a deliberate factor between them, which the second softens."""
    up = mx.sym._internal._mul_scalar(dense(mx.sym.var("x"), "a"), scalar=factor, name="up")
    return mx.sym._internal._mul_scalar(dense(mx.sym.relu(up, name="act"), "b"), scalar=1 / factor, name="down")


def params():
    return {"a_weight": mx.nd.array(WEIGHTS[0]), "b_weight": mx.nd.array(WEIGHTS[1])}


NORM = {
    "arg_params": {name: mx.nd.ones(5) for name in ("n_gamma", "n_beta")},
    "aux_params": {name: mx.nd.ones(5) for name in ("n_moving_mean", "n_moving_var")},
}


def batches(count=3, rows=4):
    rng = np.random.RandomState(1)
    return [{"x": mx.nd.array(100 * rng.randn(rows, 6))} for _ in range(count)]


def emulated(net, ranges, batch):
    """Return the output of the net converted with O1, with float16 emulated."""
    out_of_range = frozenset(name for name, value in ranges.items() if value > 65504 / 2)
    found = convert_graph(net, Policy.parse("O1"), X, {"x": "float32"}, frozenset(params()), out_of_range=out_of_range)
    assert found.symbol.tojson() == convert_symbol(net, "O1", X, ranges=ranges).tojson()
    return found.on_cpu().bind(mx.cpu(), {**params(), **batch}).forward()[0].asnumpy()


def test_largest_magnitudes_are_those_of_numpy():
    found = measure_ranges(scaled(1000.0), params(), {}, batches())
    x = np.concatenate([batch["x"].asnumpy() for batch in batches()])
    first = x @ WEIGHTS[0].T
    assert set(found) == {"x", "a_output", "up_output", "act_output", "b_output", "down_output"}
    np.testing.assert_allclose(found["x"], np.abs(x).max(), rtol=1e-6)
    np.testing.assert_allclose(found["a_output"], np.abs(first).max(), rtol=1e-5)
    np.testing.assert_allclose(found["act_output"], 1000 * first.max(), rtol=1e-5)


def test_a_deliberate_overflow_is_found_and_excluded():
    """Nothing in the graph tells that a factor of 1000 is too much; the data does."""
    net = scaled(1000.0)
    blind = convert_model(net, params(), {}, "O1", X)
    ranges = measure_ranges(net, params(), {}, batches())
    found = convert_model(net, params(), {}, "O1", X, ranges=ranges)
    assert {row.precision for row in blind.report.rows} == {"float16"}
    rows = {row.name: row for row in found.report.rows}
    assert ranges["up_output"] > 65504
    assert rows["up"].reason == "its values are beyond float16's range"
    assert {rows[name].precision for name in ("up", "act", "b", "down")} == {"float32"}
    assert rows["a"].precision == "float16"

    batch = batches(1)[0]
    exact = net.bind(mx.cpu(), {**params(), **batch}).forward()[0].asnumpy()
    assert not np.isfinite(emulated(net, {}, batch)).all()
    np.testing.assert_allclose(emulated(net, ranges, batch), exact, rtol=0.05, atol=0.01 * np.abs(exact).max())


def test_values_within_the_range_change_nothing():
    net = scaled(2.0)
    ranges = measure_ranges(net, params(), {}, batches())
    assert convert_symbol(net, "O1", X, ranges=ranges).tojson() == convert_symbol(net, "O1", X).tojson()
    assert convert_symbol(net, "mixed_bfloat16", X, ranges={"act_output": 1e9}).tojson() == (
        convert_symbol(net, "mixed_bfloat16", X).tojson()
    )


def test_a_factor_of_two_is_kept_in_hand():
    net = mx.sym.relu(dense(mx.sym.var("x"), "a"), name="act")
    within = convert_symbol(net, "O1", X, ranges={"a_output": 65504 / 2}).tojson()
    beyond = convert_symbol(net, "O1", X, ranges={"a_output": 65504 / 2 + 1}).tojson()
    assert within == convert_symbol(net, "O1", X).tojson() != beyond == net.tojson()


def test_inputs_beyond_the_range_stay_in_float32():
    net = dense(mx.sym.var("x"), "a")
    assert convert_symbol(net, "O1", X, ranges={"x": 1e6}).tojson() == net.tojson()


def test_a_data_iterator_is_read_to_its_end():
    data = np.concatenate([batch["x"].asnumpy() for batch in batches()])
    iterator = mx.io.NDArrayIter({"x": data}, batch_size=4)
    assert measure_ranges(scaled(10.0), params(), {}, iterator) == measure_ranges(scaled(10.0), params(), {}, batches())


def test_infinities_and_labels_do_not_count():
    net = mx.sym.SoftmaxOutput(mx.sym.var("x"), name="soft")
    found = measure_ranges(net, {}, {}, [{"x": mx.nd.array([[-np.inf, 3.0]])}])
    assert found["x"] == 3 and found["soft_output"] == 1


def test_batches_of_several_shapes():
    found = measure_ranges(scaled(1.0), params(), {}, [*batches(1, 2), *batches(1, 5)])
    assert found["x"] == max(np.abs(b["x"].asnumpy()).max() for b in [*batches(1, 2), *batches(1, 5)])


@pytest.mark.parametrize(
    "given, message",
    [
        ({"batches": []}, "batches is empty"),
        ({"batches": [{"y": mx.nd.ones((4, 6))}]}, "batches: the network has no input 'y'"),
        (
            {"batches": [{"x": mx.nd.ones((4, 5))}]},
            r"batches: 'x' has shape \(4, 5\), for which 'a_weight' of shape \(6, 6\) would have to be \(6, 5\)",
        ),
        ({"batches": mx.nd.ones((2, 6))}, "batches is a NDArray; expected a DataLoader, a list of batches"),
        ({"batches": {"x": mx.nd.ones((4, 6))}}, "batches is a dict; expected a DataLoader, a list of batches"),
        ({"batches": [{"x": "text"}]}, "batches: a batch holds a str; expected an array"),
        ({"batches": [{}]}, "batches: a batch lacks the input 'x'"),
        ({"arg_params": {}}, "arg_params lacks 'a_weight', 'b_weight'"),
        (
            {"arg_params": {name: mx.nd.ones((size, 6)) for name, size in (("a_weight", 5), ("b_weight", 6))}},
            r"for which 'a_weight' of shape \(5, 6\) would have to be \(6, 6\): give batches of another shape, or the "
            r"parameters of this network\.$",
        ),
        ({"sym": mx.sym.BatchNorm(mx.sym.var("x"), name="n"), **NORM}, r"'n_gamma' of shape \(5,\) would have to be \(6"),
        ({"sym": "net.json"}, "sym is a str"),
    ],
    ids=[
        "no_batch",
        "unknown_input",
        "wrong_shape",
        "no_dict",
        "no_list",
        "no_array",
        "no_input",
        "no_params",
        "other_params",
        "other_norm",
        "no_symbol",
    ],
)
def test_bad_input_of_a_measurement(given, message):
    good = {"sym": scaled(1.0), "arg_params": params(), "aux_params": {}, "batches": batches(1)}
    with pytest.raises(ConvertError, match=message) as error:
        measure_ranges(**{**good, **given})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "ranges, message",
    [
        ({"act": 1.0}, "ranges: the symbol has no output 'act'; .*act_output"),
        ({"act_output": "large"}, "ranges: 'act_output' is 'large'; expected its largest magnitude"),
        ({"act_output": float("nan")}, "ranges: 'act_output' is nan"),
    ],
)
def test_bad_ranges(ranges, message):
    with pytest.raises(ConvertError, match=message):
        convert_symbol(scaled(1.0), "O1", X, ranges=ranges)


def test_a_label_of_unknown_shape_is_asked_for():
    x = mx.sym.Reshape(mx.sym.var("x"), shape=(-1, 2))
    net = mx.sym.SoftmaxOutput(x, mx.sym.Reshape(mx.sym.var("label"), shape=(-1,)), name="soft")
    with pytest.raises(ConvertError, match="a batch lacks the input 'label'; give it, also if it is a label"):
        measure_ranges(net, {}, {}, [{"x": mx.nd.ones((2, 4))}])


def test_a_converted_network_is_measured_in_float32():
    net = scaled(1000.0)
    for policy in ("O2", "mixed_bfloat16"):
        model = convert_model(net, params(), {}, policy, X)
        found = measure_ranges(*model, batches())
        assert found.keys() == measure_ranges(net, params(), {}, batches()).keys()
        assert found["up_output"] > 65504


def test_nodes_of_one_name_are_measured_together():
    x = mx.sym.var("x")
    net = mx.sym.Group([mx.sym.relu(x * 2, name="twin"), mx.sym.relu(x * 3, name="twin")])
    assert measure_ranges(net, {}, {}, [{"x": mx.nd.ones((2, 2))}])["twin_output"] == 3
