"""``mxmp inspect``: what a policy decides, and what a converted network holds."""

import json

import mxnet as mx
import pytest

from mxmp.symbol import convert_model, convert_symbol
from tests.cli.checkpoints import BN, CONV, FC, SHAPE, SHAPES, mxmp, network, params, said, save, table
from tests.symbol.networks import load
from tests.symbol.test_control_flow import SHAPES as LOOP_SHAPES
from tests.symbol.test_control_flow import foreach


def rows(out):
    return {row[0]: tuple(row[2:]) for row in table(out) if len(row) == 5}


def shown(*args):
    out, err = mxmp("inspect", *args)
    assert err == ""
    return out


def as_json(*args):
    return json.loads(shown(*args, "--json"))


def test_a_float32_network_shows_what_a_policy_decides(tmp_path):
    out = shown(save(tmp_path), "--policy", "O1", "--shape", SHAPE)
    assert rows(out) == {
        "node": ("precision", "reason", "casts"),
        "conv": ("float16", "allow", "data to float16, conv_weight to float16, conv_bias to float16"),
        "bn": ("float16", "infer: cheapest", ""),
        "act": ("float16", "clear: cheapest", ""),
        "flat": ("float16", "clear: cheapest", ""),
        "fc": ("float16", "allow", "fc_weight to float16, fc_bias to float16"),
        "softmax": ("float32", "deny: loss head", "fc_output to float32"),
    }
    assert said(out)["casts"].startswith("6 per forward pass: 2 of inputs and activations, 4 of parameters")


def test_a_converted_network_shows_what_it_holds(tmp_path):
    mxmp("convert", save(tmp_path), 3, "-o", tmp_path / "out", "--keep-float32", "fc")
    out = shown(tmp_path / "out")
    assert "mxmp: as converted" in out and rows(out)["conv"] == ("float16", "allow", "data to float16")
    assert rows(out)["bn"] == ("float32", "infer: either is safe", "conv_output to float32")
    assert rows(out)["fc"][:2] == ("float32", "as converted; its rule says low precision (allow)")
    assert said(out)["parameters"] == f"{2 * CONV + 4 * (FC + BN):,} bytes, {4 * (CONV + FC + BN):,} before"


def test_an_operator_against_its_rule_is_said_to_be(tmp_path):
    soft = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc"), name="soft")
    convert_symbol(soft, "O3").save(str(tmp_path / "net-symbol.json"))
    precision, reason, casts = rows(shown(tmp_path / "net"))["soft"]
    assert precision == "float16" and reason.startswith("as converted; its rule says float32 (deny: ")
    assert casts == "soft_output to float32"  # behind it, for the output


def test_a_policy_decides_anew_about_a_converted_network(tmp_path):
    prefix, options = save(tmp_path), ("--policy", "O1", "--shape", SHAPE)
    mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--policy", "mixed_bfloat16")
    assert as_json(tmp_path / "out", *options) == as_json(prefix, *options)


def test_json_is_the_report_and_more(tmp_path):
    args, aux = params(network())
    args["fc_weight"][:] = 1e5
    model = convert_model(network(), args, aux, "O2", SHAPES)
    assert as_json(save(tmp_path, fc_weight=1e5), "--policy", "O2", "--shape", SHAPE) == {
        **json.loads(model.report.to_json()),
        "param_bytes": list(model.param_bytes),
        "changes": [{"name": "fc_weight", "clamped": 720, "largest": 1e5, "underflowed": 0}],
        "unfit": [],
        "uneven": [
            {"name": "conv", "op": "Convolution", "sizes": {"batch": 2, "in": 3, "out": 4}, "padded": True},
            {"name": "fc", "op": "FullyConnected", "sizes": {"batch": 2, "out": 5}, "padded": False},
        ],
    }


def uneven(*args):
    return [row[1] for row in table(shown(*args)) if row[0] == "no multiple of 8"]


def test_sizes_that_tensor_cores_do_not_take_are_named(tmp_path):
    conv, fc, prefix = "conv: in 3, out 4; cuDNN pads it, by a copy", "fc: out 5", save(tmp_path)
    assert uneven(prefix, "--shape", SHAPE) == [conv, fc, "batch 2: conv, fc"]
    assert uneven(prefix, "--shape", "data:8,3,8,8") == [conv, fc]
    assert uneven(prefix) == [conv, fc]  # the file has the shapes of parameters
    (tmp_path / "net-0003.params").unlink()
    assert uneven(prefix) == [conv.replace("in 3, ", ""), fc]


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_bytes_from_shapes_are_those_of_the_file_and_the_epoch_says_which(policy, tmp_path):
    prefix, options = save(tmp_path), ("--policy", policy)
    with_file = as_json(prefix, *options, "--shape", SHAPE)
    save(tmp_path, epoch=4, fc_weight=1e5)
    found, third, fourth = (said(shown(prefix, *more, *options)) for more in ((), (3,), (4,)))
    there = "bytes unknown; there are epochs 3, 4; EPOCH or --shape of every input tells them"
    assert (found["parameters"], found["activations"]) == (there, "bytes unknown; --shape of every input tells them")
    assert "clamped" not in third and "clamped" in fourth
    for file in tmp_path.glob("*.params"):
        file.unlink()
    assert with_file == as_json(prefix, *options, "--shape", SHAPE) and with_file["param_bytes"][0] == 4 * (CONV + FC + BN)


NETWORKS = {  # and policies
    "foreach": ("O1", "O2,keep_batchnorm_fp32=True,output=float16"),
    "attention_pre": ("O2", "mixed_bfloat16"),
    "instance_norm_unet": ("O1", "O2,keep_batchnorm_fp32=True,output=float16"),
    "symbols/ssd": ("O2",),
    "symbols/lstm_lm_small": ("mixed_bfloat16",),
    "zoo/squeezenet1.0": ("O1",),
}


@pytest.mark.parametrize("name, policy", [(name, policy) for name, policies in NETWORKS.items() for policy in policies])
def test_decisions_are_what_the_converted_network_holds(name, policy, tmp_path):
    """The oracle of each is the other: one reads the plan, the other the dtypes that MXNet infers."""
    symbol, shapes = (foreach(), LOOP_SHAPES) if name == "foreach" else load(name)
    shapes = {key: shapes[key] for key in symbol.list_inputs() if key in shapes}
    converted = convert_symbol(symbol, policy, shapes, data_names=list(shapes))
    options = [part for key, shape in shapes.items() for part in ("--shape", f"{key}:{','.join(map(str, shape))}")]
    for file, written in (("was", symbol), ("converted", converted)):
        written.save(str(tmp_path / f"{file}-symbol.json"), remove_amp_cast=False)
    was, found = as_json(tmp_path / "was", "--policy", policy, *options), as_json(tmp_path / "converted", *options)
    decisions = [[(row["name"], row["op"], row["precision"], row["casts"]) for row in each["rows"]] for each in (was, found)]
    assert decisions[0] == decisions[1]
    for total in ("casts", "activation_casts", "cast_bytes", "activation_bytes", "param_bytes", "without_rule"):
        assert found[total] == was[total], total


# ---------------------------------------------------------------------- summaries


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    data, prefix = mx.sym.var("data"), tmp_path_factory.mktemp("long") / "net"
    for number in range(20):
        data = mx.sym.relu(mx.sym.Convolution(data, kernel=(1, 1), num_filter=3, name=f"c{number}"), name=f"r{number}")
    network = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=5, name="fc"), name="softmax")
    network.save(f"{prefix}-symbol.json")
    return prefix, "--policy", "O1", "--shape", SHAPE


def test_a_summary_counts_by_kind_of_operator_and_names_few_of_many_layers(long):
    out = shown(*long, "--summary")
    lines = [line.replace("│", " ").replace("–", " ").split() for line in out.partition("┌")[0].splitlines()]
    assert len(out.splitlines()) < 25 and "r19" not in out and said(out)["operators"] == "41 in float16, 1 in float32"
    for row in ("Convolution 20 41 to float16", "relu 20", "FullyConnected 1 2 to float16", "SoftmaxOutput 1 1 to float32"):
        assert row.split() in lines  # weights, biases and the data
    few = [*(f"c{number}: in 3, out 3; cuDNN pads it, by a copy" for number in range(3)), "and 19 more"]
    assert uneven(*long, "--summary") == few and as_json(*long, "--summary") == as_json(*long)
