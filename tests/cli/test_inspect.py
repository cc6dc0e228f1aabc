"""``mxmp inspect``: what a policy decides, and what a converted network holds."""

from __future__ import annotations

import json

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.cli.diagnose import inspected
from mxmp.passes import is_converted
from mxmp.symbol import convert_model, convert_symbol, to_graph
from tests.cli.checkpoints import BN, CONV, FC, SHAPE, SHAPES, mxmp, network, params, save, table
from tests.symbol.networks import load
from tests.symbol.test_control_flow import SHAPES as LOOP_SHAPES
from tests.symbol.test_control_flow import foreach

NETWORKS = ("attention_pre", "instance_norm_unet", "symbols/ssd", "symbols/lstm_lm_small", "zoo/squeezenet1.0")
POLICIES = ("O1", "O2", "mixed_bfloat16", "O2,keep_batchnorm_fp32=True,output=float16")


def rows(out):
    """Return (precision, reason, casts) by node."""
    return {row[0]: tuple(row[2:]) for row in table(out) if len(row) == 5}


def totals(out):
    return {row[0]: row[1] for row in table(out) if len(row) == 2}


def as_json(*args):
    out, err = mxmp("inspect", *args, "--json")
    assert err == ""
    return json.loads(out)


def test_a_float32_network_shows_what_a_policy_decides(tmp_path):
    out, err = mxmp("inspect", save(tmp_path), "--policy", "O1", "--shape", SHAPE)
    assert err == ""
    assert rows(out) == {
        "node": ("precision", "reason", "casts"),
        "conv": ("float16", "allow", "data to float16, conv_weight to float16, conv_bias to float16"),
        "bn": ("float16", "infer: cheapest", ""),
        "act": ("float16", "clear: cheapest", ""),
        "flat": ("float16", "clear: cheapest", ""),
        "fc": ("float16", "allow", "fc_weight to float16, fc_bias to float16"),
        "softmax": ("float32", "deny: loss head", "fc_output to float32"),
    }
    assert totals(out)["casts"].startswith("6 (2 of activations)")


def test_a_converted_network_shows_what_it_holds(tmp_path):
    mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--keep-float32", "fc")
    out, _ = mxmp("inspect", tmp_path / "out")
    assert "mxmp: as converted" in out
    assert rows(out)["conv"] == ("float16", "allow", "data to float16")
    assert rows(out)["bn"] == ("float32", "infer: either is safe", "conv_output to float32")
    assert rows(out)["fc"][:2] == ("float32", "as converted; its rule says low precision (allow)")
    assert totals(out)["parameters"] == f"{2 * CONV + 4 * (FC + BN):,} bytes, {4 * (CONV + FC + BN):,} before"


def test_an_operator_against_its_rule_is_said_to_be(tmp_path):
    soft = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="soft")
    convert_symbol(soft, "O3").save(str(tmp_path / "net-symbol.json"))
    out, _ = mxmp("inspect", tmp_path / "net")
    precision, reason, casts = rows(out)["soft"]
    assert precision == "float16" and reason.startswith("as converted; its rule says float32 (deny: ")
    assert casts == "soft_output to float32"  # behind it, for the output


def test_a_policy_decides_anew_about_a_converted_network(tmp_path):
    prefix = save(tmp_path)
    mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--policy", "mixed_bfloat16")
    anew = as_json(tmp_path / "out", "--policy", "O1", "--shape", SHAPE)
    assert anew == as_json(prefix, "--policy", "O1", "--shape", SHAPE)


def test_json_is_the_report_and_more(tmp_path):
    found = as_json(save(tmp_path, fc_weight=1e5), "--policy", "O2", "--shape", SHAPE)
    args, aux = params(network())
    args["fc_weight"][:] = 1e5
    model = convert_model(network(), args, aux, "O2", SHAPES)
    expected = json.loads(model.report.to_json())
    assert found == {
        **expected,
        "param_bytes": list(model.param_bytes),
        "changes": [{"name": "fc_weight", "clamped": 720, "largest": 1e5, "underflowed": 0}],
        "unfit": [],
        "uneven": [
            {"name": "conv", "op": "Convolution", "sizes": {"batch": 2, "in": 3, "out": 4}, "padded": True},
            {"name": "fc", "op": "FullyConnected", "sizes": {"batch": 2, "out": 5}, "padded": False},
        ],
    }


def uneven(out):
    return [row[1] for row in table(out) if row[0] == "no multiple of 8"]


def test_sizes_that_tensor_cores_do_not_take_are_named(tmp_path):
    conv, fc = "conv: in 3, out 4; cuDNN pads it, by a copy", "fc: out 5"
    prefix = save(tmp_path)
    assert uneven(mxmp("inspect", prefix, "--shape", SHAPE)[0]) == [conv, fc, "batch 2: conv, fc"]
    assert uneven(mxmp("inspect", prefix, "--shape", "data:8,3,8,8")[0]) == [conv, fc]
    assert uneven(mxmp("inspect", prefix)[0]) == [conv, fc]  # the file has the shapes of parameters
    (tmp_path / "net-0003.params").unlink()
    assert uneven(mxmp("inspect", prefix)[0]) == [conv.replace("in 3, ", ""), fc]


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_bytes_from_shapes_are_those_of_the_file(policy, tmp_path):
    prefix = save(tmp_path)
    with_file = as_json(prefix, "--policy", policy, "--shape", SHAPE)
    (tmp_path / "net-0003.params").unlink()
    without = as_json(prefix, "--policy", policy, "--shape", SHAPE)
    assert with_file == without and with_file["param_bytes"][0] == 4 * (CONV + FC + BN)


def test_the_epoch_says_whose_parameters(tmp_path):
    prefix = save(tmp_path)
    save(tmp_path, epoch=4, fc_weight=1e5)
    out, _ = mxmp("inspect", prefix, "--policy", "O2")
    assert (
        totals(out)["parameters"]
        == "bytes unknown; there are epochs 3, 4; --epoch or --shape of every input tells them"
    )
    assert totals(out)["activations"] == "bytes unknown; --shape of every input tells them"
    assert "clamped" not in totals(mxmp("inspect", prefix, "--policy", "O2", "--epoch", 3)[0])
    assert "clamped" in totals(mxmp("inspect", prefix, "--policy", "O2", "--epoch", 4)[0])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["foreach", *NETWORKS])
def test_what_was_decided_is_what_is_held(name, policy):
    """The oracle of each is the other: one reads the plan, the other the dtypes that MXNet infers."""
    symbol, shapes = (foreach(), LOOP_SHAPES) if name == "foreach" else load(name)
    shapes = {key: shape for key, shape in shapes.items() if key in symbol.list_inputs()}
    inputs = [key for key in symbol.list_inputs() if key in shapes]
    converted = convert_symbol(symbol, policy, shapes, data_names=inputs)
    assert is_converted(to_graph(converted)) and not is_converted(to_graph(symbol))
    was, _, _ = inspected(symbol, None, Policy.parse(policy), shapes, {})
    found, _, _ = inspected(converted, None, None, shapes, {})
    assert [(r.name, r.op, r.precision, r.casts) for r in found.rows] == [
        (r.name, r.op, r.precision, r.casts) for r in was.rows
    ]
    for total in ("casts", "activation_casts", "cast_bytes", "activation_bytes", "param_bytes", "without_rule"):
        assert getattr(found, total) == getattr(was, total), total


# ---------------------------------------------------------------------- summaries


def deep():
    """Return the small network with 20 more layers."""
    data = mx.sym.var("data")
    for number in range(20):
        data = mx.sym.relu(mx.sym.Convolution(data, kernel=(1, 1), num_filter=3, name=f"c{number}"), name=f"r{number}")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=5, name="fc"), name="softmax")


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Return the prefix of a network without parameters."""
    prefix = tmp_path_factory.mktemp("long") / "net"
    deep().save(f"{prefix}-symbol.json")
    return prefix


def kinds(out):
    """Return the words of the rows of a summary's table, by operator; a table in a box follows."""
    rows = [line.replace("│", " ").replace("–", " ").split() for line in out.partition("┌")[0].splitlines() if line[0] == "│"]
    return {words[0]: words[1:] for words in rows if words}


def test_a_summary_counts_by_kind_of_operator(long):
    out, err = mxmp("inspect", long, "--policy", "O1", "--shape", SHAPE, "--summary")
    assert err == "" and len(out.splitlines()) < 25
    found = kinds(out)
    assert found["Convolution"] == ["20", "41", "to", "float16"]  # weights, biases and the data
    assert found["relu"] == ["20"]
    assert found["FullyConnected"] == ["1", "2", "to", "float16"]
    assert found["SoftmaxOutput"] == ["1", "1", "to", "float32"]
    assert "r19" not in out
    assert totals(out)["operators"] == "41 in float16, 1 in float32"


def test_a_summary_names_few_of_many_layers(long):
    out, _ = mxmp("inspect", long, "--policy", "O1", "--shape", SHAPE, "--summary")
    lines = uneven(out)
    assert lines == [*(f"c{number}: in 3, out 3; cuDNN pads it, by a copy" for number in range(3)), "and 19 more"]


def test_json_is_the_same_with_a_summary(long):
    args = (long, "--policy", "O1", "--shape", SHAPE)
    assert as_json(*args, "--summary") == as_json(*args)
