"""Buckets: all of them with one set of parameters."""

import mxnet as mx
import pytest

from mxmp.symbol import convert_buckets, convert_model, to_graph
from tests.symbol.small import X, casts_of, dense, dtypes_of


def recurrent(length):
    """Return one bucket: a layer that is applied ``length`` times, and one that only buckets beyond 2 have."""
    data, weight = mx.sym.var("x"), mx.sym.var("h_weight")
    for step in range(length):
        data = mx.sym.relu(dense(data, f"step{step}", weight), name=f"act{step}")
    data = dense(data, "long") if length > 2 else data
    return mx.sym.softmax(dense(data, "out"), name="soft"), ["x"], None


def reading_exactly(length):
    """Return a bucket, of which the longest reads the shared weight in float32 too."""
    symbol, names, labels = recurrent(length)
    exact = mx.sym.exp(symbol.get_internals()["h_weight"], name="exp")
    return (mx.sym.Group([symbol, exact]) if length == 4 else symbol), names, labels


def buckets_of(policy="O2", sym_gen=recurrent, keys=(1, 2, 4), weight=0.5, **changes):
    args = {name: mx.nd.ones((6, 6)) * 0.5 for name in ("long_weight", "out_weight")}
    args["h_weight"] = mx.nd.ones((6, 6)) * weight
    return convert_buckets(sym_gen, keys, args, {}, policy, dict.fromkeys(keys, X), **changes), args


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_each_bucket_is_converted_as_a_model_of_its_own_and_all_share_one_set_of_parameters(policy):
    found, args = buckets_of(policy)
    assert list(found.models) == list(found.reports) == [1, 2, 4]
    assert dtypes_of(found.arg_params) == dict.fromkeys(args, "float16" if policy == "O2" else "float32")
    for key in found.models:
        symbol, _, _ = found.sym_gen(key)
        own = {name: array for name, array in args.items() if name in symbol.list_arguments()}
        alone = convert_model(recurrent(key)[0], own, {}, policy, X)
        assert to_graph(symbol) == to_graph(alone.symbol) and found.reports[key] == alone.report


@pytest.mark.parametrize("keys", [(1, 2, 4), (4, 2, 1)])
def test_a_weight_that_one_bucket_reads_in_float32_stays_float32_for_all(keys):
    found, _ = buckets_of(sym_gen=reading_exactly, keys=keys)
    assert dtypes_of(found.arg_params) == {"h_weight": "float32", "long_weight": "float16", "out_weight": "float16"}
    for symbol, _, _ in found.models.values():
        assert casts_of(symbol).count("h_weight") == 1
        known = {name: array.dtype for name, array in found.arg_params.items() if name in symbol.list_arguments()}
        symbol.infer_type(x="float32", **known)  # which MXNet refuses where they do not fit


def test_a_value_out_of_range_keeps_its_layers_in_float32_in_all_buckets():
    found, _ = buckets_of(weight=-1e5, out_of_range="float32")
    assert found.out_of_range == ("h_weight",) and found.changes == ()
    assert dtypes_of(found.arg_params)["h_weight"] == "float32"
    for key, report in found.reports.items():
        precision = {row.name: row.precision for row in report.rows}
        assert {precision[f"step{step}"] for step in range(key)} == {"float32"} and precision["out"] == "float16"


def test_an_override_need_not_match_in_every_bucket():
    found, _ = buckets_of("O2,name:long=float32")
    assert {row.name: row.precision for row in found.reports[4].rows}["long"] == "float32"
