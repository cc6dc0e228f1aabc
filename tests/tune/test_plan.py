"""Plans: printed, saved, and read again where they hold; refused where anything differs."""

import dataclasses

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings

from mxmp.devices.speed import read_machine
from mxmp.errors import CheckpointError, TuneError
from mxmp.policy import Policy
from mxmp.symbol import convert_symbol
from mxmp.tune import Change, TuneResult, load, plan
from mxmp.tune.candidates import pattern_of
from mxmp.tune.plan import digest
from tests.cli.checkpoints import network, table
from tests.full_disk import files_of_at_most
from tests.names import ANY
from tests.tune.networks import model
from tests.tune.results import TUNED, result

BATCH = {"data": mx.nd.ones((2, 3, 8, 8))}
HERE = dataclasses.replace(read_machine(), amx=False)


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
    speedups = [result(policy).speedup for policy in ("mixed_bfloat16,op:BatchNorm=float32", "mixed_bfloat16", "O0")]
    assert speedups == [2.0, 0.5, 1] and result(seconds={}).speedup is None


MANY_NAMES = Policy.parse("mixed_bfloat16", names={f"node{number}": "float32" for number in range(9)})
INTEGERS = dataclasses.replace(result().holds_for, dtypes={"data": "int32"}, options={"static_alloc": "True"})
SAID = [
    (result("float32", seconds={"float32": 0.0123}, changes=()), ["float32, returned"]),
    (result(), [
        "policy param=float32,compute=bfloat16,output=float32,op:BatchNorm=float32",
        "changed 5 BatchNorm in float32: bn0, bn1, bn2 and 2 more",
        f"won a trial {TUNED}: 50% less time than the best before",
        "tried 3 candidates besides float32; 1 did not run",
        "Note: A note.",
        "data (2, 3, 8, 8); network 0000000000000000"]),
    (result(objective="inference", for_inference=True, is_fused=False), [
        "mxmp.gluon.freeze(net, policy)", "undoes the fusion"]),
    (INTEGERS, ["data int32 (2, 3, 8, 8); static_alloc=True; network"]),
    (result(MANY_NAMES), ["name:node3=float32 and 5 more names"]),
]  # fmt: skip


@pytest.mark.parametrize("shown, parts", SAID)
def test_the_rest_says_what_changed_and_what_it_won(shown, parts):
    text = "".join(str(shown).split())
    assert not [part for part in parts if part.replace(" ", "") not in text] and "node4" not in text
    assert len(repr(result(MANY_NAMES))) < 250 and repr(result()).endswith("objective='training', speedup=2.00)")


# ------------------------------------------------------------------ as it is stored


@given(ANY, ANY)
@settings(deadline=None, max_examples=30)
def test_a_plan_comes_back_whatever_the_names(name, other):
    names = {pattern_of(name): "float32", pattern_of(other): "bfloat16"}
    changes = (Change("FullyConnected", "float32", (name, other)),)
    ours = result(Policy.parse("mixed_bfloat16", names=names), changes=changes, shapes={name: (1,)})
    assert TuneResult.from_json(ours.to_json()) == ours
    assert all(line.isprintable() for line in str(ours).split("\n"))
    bare = result("O0", seconds={}, candidates=(), changes=(), notes=(), proved=False)
    assert TuneResult.from_json(bare.to_json()) == bare


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
    symbol = mx.sym.LinearRegressionOutput(mx.sym.var("data"), mx.sym.var("target"))
    result(network=digest([symbol])).save(file)
    load(file, symbol, shapes={"data": (2, 3, 8, 8), "target": (5,)})  # a label of any name


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
    value, said = OTHERS[field]
    monkeypatch.setattr(plan, "read_machine", lambda: dataclasses.replace(HERE, **{field: value}))
    with pytest.raises(TuneError, match="Tune again here.$") as caught:
        load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: the plan does not hold here. {said}") and message.count("found") == 1


def test_a_digest_is_of_the_float32_network():
    symbol = network()
    assert digest([convert_symbol(symbol, "O2", {"data": (2, 3, 8, 8)})]) == digest([symbol])
    renamed = mx.sym.load_json(symbol.tojson().replace('"fc"', '"fd"'))
    assert digest([renamed]) != digest([symbol]) != digest([symbol, symbol])
