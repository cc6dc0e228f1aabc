"""Plans: printed, saved, and read again where they hold; refused where anything differs."""

from __future__ import annotations

import dataclasses
import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from mxnet import gluon

from mxmp.devices.speed import read_machine
from mxmp.errors import CheckpointError, DtypeError, TuneError
from mxmp.policy import Policy
from mxmp.symbol import convert_symbol
from mxmp.tune import Change, TuneResult, load, plan
from mxmp.tune.candidates import pattern_of
from mxmp.tune.plan import digest
from tests.cli.checkpoints import network, params, table
from tests.full_disk import files_of_at_most
from tests.names import ANY, EACH
from tests.tune.results import TUNED, result

BATCH = {"data": mx.nd.ones((2, 3, 8, 8))}
HERE = dataclasses.replace(read_machine(), amx=False)


def model():
    return (network(), *params(network()))


@pytest.fixture
def file(tmp_path):
    """Return the file of a plan for the small network."""
    path = str(tmp_path / "plan.json")
    result(network=digest([network()])).save(path)
    return path


# ------------------------------------------------------------------ as it is shown


def test_the_table_has_times_and_ratios_and_marks_what_is_returned():
    assert table(str(result()))[:4] == [
        ["plan", "ms", "times float32's speed", "times the untuned speed"],
        ["float32", "1,000", "1", "2"],
        ["untuned", "2,000", "0.5", "1"],
        [f"{TUNED}, returned", "500", "2", "4"],
    ]
    assert "float32, returned" in str(result("float32", seconds={"float32": 0.0123}, changes=()))


def test_the_rest_says_what_changed_and_what_it_won():
    text = " ".join(str(result()).split())
    for line in (
        "policy param=float32,compute=bfloat16,output=float32,op:BatchNorm=float32",
        "changed 5 BatchNorm in float32: bn0, bn1, bn2 and 2 more",
        f"won a trial {TUNED}: 50% less time than the best before",
        "tried 3 candidates besides float32; 1 did not run",
        "Note: A note.",
        "data (2, 3, 8, 8); network 0000000000000000",
    ):
        assert line in text
    frozen = " ".join(str(result(objective="inference", for_inference=True, is_fused=False)).split())
    assert "mxmp.gluon.freeze(net, policy)" in frozen and "undoes the fusion" in frozen
    other = dataclasses.replace(result().holds_for, dtypes={"data": "int32"}, options={"static_alloc": "True"})
    assert "data int32 (2, 3, 8, 8); static_alloc=True; network" in str(other)


def test_a_policy_with_many_names_is_shortened_where_it_is_printed():
    names = {f"node{number}": "float32" for number in range(9)}
    long = result(Policy.parse("mixed_bfloat16", names=names))
    assert "name:node3=float32and5morenames" in "".join(str(long).split()) and "node4" not in str(long)
    assert len(repr(long)) < 250 and repr(result()).endswith("objective='training', speedup=2.00)")


@pytest.mark.parametrize("policy, speedup", [("mixed_bfloat16,op:BatchNorm=float32", 2.0), ("mixed_bfloat16", 0.5), ("O0", 1)])
def test_the_speedup_is_that_of_what_is_returned(policy, speedup):
    assert result(policy).speedup == speedup and result(policy, seconds={}).speedup is None


@EACH
def test_a_name_breaks_no_line(name):
    printed = str(result(changes=(Change(name, "float32", (name,)),), shapes={name: (1,)}))
    assert all(line.isprintable() for line in printed.split("\n"))


# ------------------------------------------------------------------ as it is stored


@given(ANY, ANY)
@settings(deadline=None)
def test_a_plan_comes_back_whatever_the_names(name, other):
    names = {pattern_of(name): "float32", pattern_of(other): "bfloat16"}
    changes = (Change("FullyConnected", "float32", (name, other)),)
    ours = result(Policy.parse("mixed_bfloat16", names=names), changes=changes, shapes={name: (1,)})
    assert TuneResult.from_json(ours.to_json()) == ours
    bare = result("O0", seconds={}, candidates=(), changes=(), notes=(), proved=False)
    assert TuneResult.from_json(bare.to_json()) == bare


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"policy": "mixed_bfloat17"}, "policy is 'mixed_bfloat17'; expected the text of a Policy .unknown policy"),
        ({"objective": "speed"}, "objective is 'speed'; expected 'training' or 'inference'"),
        ({"candidates": [{"name": "x"}]}, r"candidates\[0\].seconds is "),
        ({"holds_for": {}}, "holds_for.machine is "),
        ({"version": 3}, "version 3; this mxmp reads version 1"),
        ({"record": "ledger"}, "this is no tuned plan of mxmp"),
    ],
)
def test_a_damaged_plan_is_refused(fields, match):
    with pytest.raises(TuneError, match=match):
        TuneResult.from_dict({**json.loads(result().to_json()), **fields})


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "this is no tuned plan of mxmp: it is no JSON"),
        (b"\xff\xfe\x00", "it is no text"),
        (b'{"seconds": {}}', "this is no tuned plan of mxmp"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(content, match, tmp_path):
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"plan.json:? {match}"):
        load(str(file))


def test_a_full_disk_leaves_the_earlier_plan(file, tmp_path):
    before = (tmp_path / "plan.json").read_bytes()
    with files_of_at_most(100), pytest.raises(CheckpointError, match="plan.json cannot be written"):
        result().save(file)
    assert (tmp_path / "plan.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


# ------------------------------------------------------------------ where it holds


def test_a_plan_that_holds_is_loaded(file):
    expected = result(network=digest([network()]))
    assert load(file) == load(file, network(), shapes={"data": [2, 3, 8, 8], "softmax_label": (2,)}) == expected
    assert load(file, model(), [BATCH]) == expected
    load(file, dtypes={"data": np.float32, "softmax_label": "int32"})


def test_the_shape_of_a_label_of_any_name_does_not_count(tmp_path):
    symbol, path = mx.sym.LinearRegressionOutput(mx.sym.var("data"), mx.sym.var("target")), str(tmp_path / "plan.json")
    result(network=digest([symbol])).save(path)
    assert load(path, symbol, shapes={"data": (2, 3, 8, 8), "target": (5,)}).holds_for.shapes == {"data": (2, 3, 8, 8)}


OTHERS = {
    "processor": ("Any 9000", "processor: found Any 9000, expected "),
    "instructions": (("avx512f",), "instructions: found avx512f, expected "),
    "cores": (97, "cores: found 97, expected "),
    "amx": (True, "amx: found True, expected False"),
    "variables": (("OMP_NUM_THREADS=97", "DNNL_MAX_CPU_ISA="), "variables: found OMP_NUM_THREADS=97, DNNL_MAX_CPU_ISA=, "),
    "mxnet": ("1.9.2, 5 bytes", "mxnet: found 1.9.2, 5 bytes, expected 1.9.1, "),
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(HERE)])
def test_a_plan_of_another_machine_is_refused_in_one_sentence(field, file, monkeypatch):
    result(holds_for=dataclasses.replace(result().holds_for, machine=HERE)).save(file)
    monkeypatch.setattr(plan, "read_machine", lambda: HERE)
    load(file)
    value, said = OTHERS[field]
    monkeypatch.setattr(plan, "read_machine", lambda: dataclasses.replace(HERE, **{field: value}))
    with pytest.raises(TuneError) as caught:
        load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: the plan does not hold here. {said}") and message.count("found") == 1
    assert message.endswith(". Tune again here.")


def test_a_plan_of_a_gpu_is_refused_on_a_cpu(file):
    result(holds_for=dataclasses.replace(result().holds_for, device="Tesla V100")).save(file)
    with pytest.raises(TuneError, match="device: found GPU, expected Tesla V100"):
        load(file)


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"shapes": {"data": (4, 3, 8, 8)}}, r"shape of data: found \(4, 3, 8, 8\), expected \(2, 3, 8, 8\)"),
        ({"dtypes": {"data": "uint8"}}, "dtype of data: found uint8, expected float32"),
        ({"net_or_model": mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)}, "network: found another one"),
        ({"net_or_model": model(), "batches": [{"data": mx.nd.ones((4, 3, 8, 8))}]}, r"of data: found \(4, 3, 8, 8\)"),
        ({"net_or_model": model(), "batches": [{"data": BATCH["data"].astype("int32")}]}, "dtype of data: found int32"),
        ({"shapes": {"data": 2}}, "shapes is .*; expected shapes by the names of inputs"),
        ({"shapes": (4, 5)}, "shapes is .*; expected shapes by the names of inputs"),
        ({"dtypes": "int32"}, "dtypes is 'int32'; expected dtypes by the names of inputs"),
        ({"net_or_model": model(), "batches": [BATCH], "shapes": {}}, "shapes: the batches tell the shapes"),
        ({"net_or_model": model(), "batches": [BATCH], "dtypes": {}}, "dtypes: the batches tell the dtypes"),
        ({"net_or_model": gluon.nn.Dense(3)}, "batches: give one"),
    ],
)
def test_what_differs_or_does_not_fit_is_named(arguments, match, file):
    with pytest.raises(TuneError, match=match):
        load(file, **arguments)


def test_an_unknown_dtype_and_a_number_for_a_file_are_refused(file):
    with pytest.raises(DtypeError, match="int31"):
        load(file, dtypes={"data": "int31"})
    with pytest.raises(TuneError, match="path is a int; expected the name of a file"):
        load(0)  # Python would take it for a file that is open, and close that


def test_a_digest_is_of_the_float32_network():
    symbol = network()
    assert digest([convert_symbol(symbol, "O2", {"data": (2, 3, 8, 8)})]) == digest([symbol])
    renamed = mx.sym.load_json(symbol.tojson().replace('"fc"', '"fd"'))
    assert digest([renamed]) != digest([symbol]) != digest([symbol, symbol])
