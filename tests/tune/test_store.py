"""Stored plans: used where they hold, refused where anything differs."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.devices.speed import read_machine
from mxmp.errors import CheckpointError, TuneError
from mxmp.policy import Policy
from mxmp.symbol import convert_model, convert_symbol
from mxmp.tune import Tolerance, holds, load, tune
from mxmp.tune.holds import digest
from mxmp.tune.speed.plan_search import Found
from tests.cli.checkpoints import network, params
from tests.tune.results import result

BATCH = {"data": mx.nd.ones((2, 3, 8, 8))}
TUNE = sys.modules["mxmp.tune.by_time"]


def model():
    return (network(), *params(network()))


@pytest.fixture
def file(tmp_path):
    """Return the file of a plan for the small network."""
    path = str(tmp_path / "plan.json")
    result(network=digest([network()])).save(path)
    return path


class Searches:
    """A search that finds at once that all but the first group is faster in float32.

    Attributes:
        count: How many were made.
        proved: Whether their last measurements are.
    """

    def __init__(self):
        self.count, self.proved = 0, True

    def __call__(self, problem, seconds, on_trial, start):
        self.choices = problem.choices
        return self

    def run(self):
        self.count += 1
        choice = (None, *self.choices.float32[1:])
        return Found(choice, {"float32": 1.0, "untuned": 2.0, "tuned": 0.5}, 0.0, proved=self.proved)


@pytest.fixture
def searches(monkeypatch):
    """Have bfloat16 run, and nothing be measured."""
    found = Searches()
    monkeypatch.setattr(TUNE, "PlanSearch", found)
    monkeypatch.setattr(TUNE, "runs_bfloat16", lambda: True)
    return found


def test_a_plan_that_holds_is_loaded(file):
    expected = result(network=digest([network()]))
    assert load(file) == expected
    assert load(file, network(), shapes={"data": [2, 3, 8, 8], "softmax_label": (2,)}) == expected
    assert load(file, model(), [BATCH]) == load(file, mx.mod.Module(network()), [BATCH]) == expected


def test_the_shape_of_a_label_of_any_name_does_not_count(tmp_path):
    symbol, path = mx.sym.LinearRegressionOutput(mx.sym.var("data"), mx.sym.var("target")), str(tmp_path / "plan.json")
    result(network=digest([symbol])).save(path)
    shapes = {"data": (2, 3, 8, 8), "target": (2, 3, 8, 8)}
    assert load(path, symbol, shapes=shapes) == result(network=digest([symbol]))


CHANGES = {
    "processor": "Any 9000",
    "instructions": ("avx512f",),
    "cores": 97,
    "amx": True,
    "variables": ("OMP_NUM_THREADS=97", "MXNET_MKLDNN_ENABLED=", "DNNL_MAX_CPU_ISA="),
    "mxnet": "1.9.2, 5 bytes",
}
SAID = {
    "processor": "processor: found Any 9000, expected ",
    "instructions": "instructions: found avx512f, expected ",
    "cores": "cores: found 97, expected ",
    "amx": "AMX: found on, expected off",
    "variables": "environment: found OMP_NUM_THREADS=97, MXNET_MKLDNN_ENABLED=, DNNL_MAX_CPU_ISA=, expected OMP_NUM",
    "mxnet": "MXNet: found 1.9.2, 5 bytes, expected 1.9.1, ",
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(read_machine())])
def test_a_plan_of_another_machine_is_refused(field, file, monkeypatch):
    here = dataclasses.replace(read_machine(), amx=False)
    plan = result()
    result(holds_for=dataclasses.replace(plan.holds_for, machine=here)).save(file)
    monkeypatch.setattr(holds, "read_machine", lambda: here)
    load(file)
    monkeypatch.setattr(holds, "read_machine", lambda: dataclasses.replace(here, **{field: CHANGES[field]}))
    with pytest.raises(TuneError) as caught:
        load(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: the plan does not hold here. {SAID[field]}") and message.count("found") == 1
    assert message.endswith(". Tune again here.")


def test_a_plan_of_a_gpu_is_refused_on_a_cpu(file):
    plan = result()
    result(holds_for=dataclasses.replace(plan.holds_for, device="Tesla V100")).save(file)
    with pytest.raises(TuneError, match="device: found GPU, expected Tesla V100"):
        load(file)


@pytest.mark.parametrize(
    "shapes, match",
    [
        ({"data": (4, 3, 8, 8)}, r"shape of data: found \(4, 3, 8, 8\), expected \(2, 3, 8, 8\)"),
        ({"x": (2, 3, 8, 8)}, r"shape of data: found none, expected \(2, 3, 8, 8\); shape of x: found \(2, 3, 8, 8\)"),
    ],
)
def test_a_plan_for_other_shapes_is_refused(shapes, match, file):
    with pytest.raises(TuneError, match=match):
        load(file, shapes=shapes)


def test_a_batch_of_another_shape_is_refused(file):
    with pytest.raises(TuneError, match=r"shape of data: found \(4, 3, 8, 8\)"):
        load(file, model(), [{"data": mx.nd.ones((4, 3, 8, 8))}])


def test_a_plan_of_another_network_is_refused(file):
    other = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="head")
    with pytest.raises(TuneError, match="network: found another one .*: other operators or names. Tune again here"):
        load(file, other)


def test_all_that_differs_is_named_together(file, monkeypatch):
    here = dataclasses.replace(read_machine(), cores=97)
    monkeypatch.setattr(holds, "read_machine", lambda: here)
    with pytest.raises(TuneError, match=r"cores: found 97.*; shape of data: found \(1,\)"):
        load(file, shapes={"data": (1,)})


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "this is no tuned plan of mxmp: it is no JSON"),
        (b"\xff\xfe\x00", "this is no tuned plan of mxmp: it is no text"),
        (b"[" * 99999, "this is no tuned plan of mxmp: it is no JSON"),
        (b'{"seconds": {}}', "this is no tuned plan of this version of mxmp"),
        (None, "there is no such file; `mxmp tune -o`"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(content, match, tmp_path):
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TuneError, match=f"plan.json: {match}"):
        load(str(file))


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(tmp_path, searches, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != str(tmp_path))  # the superuser may write anywhere
    with pytest.raises(CheckpointError, match="plan.json: .* is write-protected; give another file to store"):
        tune(dense("net_"), [mx.nd.ones((4, 5))], store=str(tmp_path / "plan.json"))
    assert searches.count == 0


def test_a_plan_that_holds_is_used_where_nothing_can_be_written(tmp_path, searches, monkeypatch):
    file = str(tmp_path / "plan.json")
    stored = tune(dense("net_"), [mx.nd.ones((4, 5))], store=file)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert tune(dense("net_"), [mx.nd.ones((4, 5))], store=file) == stored


@pytest.mark.parametrize("shapes", [{"data": 2}, (4, 5), "data", {"data": None}])
def test_what_are_no_shapes_is_refused(shapes, file):
    with pytest.raises(TuneError, match="shapes is .*; expected shapes by the names of inputs"):
        load(str(file), shapes=shapes)


def test_a_batch_of_another_dtype_is_refused(file):
    with pytest.raises(TuneError, match="does not hold here. dtype of data: found int32, expected float32. Tune again"):
        load(file, model(), [{"data": mx.nd.ones((2, 3, 8, 8), dtype="int32")}])


def test_given_dtypes_are_compared_by_name_and_labels_do_not_count(file):
    load(file, dtypes={"data": np.float32, "softmax_label": "int32"})
    with pytest.raises(TuneError, match="dtype of data: found uint8, expected float32; dtype of x: found int32, exp.* n"):
        load(file, dtypes={"data": "uint8", "x": "int32"})
    with pytest.raises(TuneError, match="dtypes is 'int32'; expected dtypes by the names of inputs"):
        load(file, dtypes="int32")
    with pytest.raises(TuneError, match="dtypes: the batches tell the dtypes of the inputs already"):
        load(file, model(), [BATCH], dtypes={"data": "int32"})


def test_a_number_is_no_file():
    """Python would take it for a file that is open, and close that."""
    with pytest.raises(TuneError, match="path is a int; expected the name of a file"):
        load(0)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(TuneError, match="it cannot be read: Is a directory"):
        load(str(tmp_path))


def test_batches_and_shapes_are_not_given_together(file):
    with pytest.raises(TuneError, match="shapes: the batches tell the shapes"):
        load(file, model(), [BATCH], shapes={"data": (2, 3, 8, 8)})


def test_a_gluon_net_needs_a_batch(file):
    with pytest.raises(TuneError, match="batches: give one"):
        load(file, gluon.nn.Dense(3))


def dense(prefix, units=3):
    net = gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(gluon.nn.Dense(units, activation="relu"), gluon.nn.Dense(2))
    net.initialize()
    return net


def hybridized(**flags):
    net = dense("net_")
    net.hybridize(**flags)
    return net


def test_how_a_net_is_hybridized_is_named_where_it_differs(tmp_path, searches):
    file = str(tmp_path / "plan.json")
    tune(hybridized(static_alloc=True), [mx.nd.ones((4, 5))], store=file)
    load(file, hybridized(static_alloc=True, inline_limit=2), [mx.nd.ones((4, 5))])
    with pytest.raises(TuneError, match="static_alloc: found none, expected True; backend: found MKLDNN, expected none"):
        load(file, hybridized(backend="MKLDNN"), [mx.nd.ones((4, 5))])
    with pytest.raises(TuneError, match="here. static_shape: found True, expected none. Tune again"):
        load(file, hybridized(static_alloc=True, static_shape=True), [mx.nd.ones((4, 5))])


def test_inputs_of_another_dtype_are_measured_again(tmp_path, searches, caplog):
    file, net = str(tmp_path / "plan.json"), gluon.nn.HybridSequential(prefix="words_")
    with net.name_scope():
        net.add(gluon.nn.Embedding(5, 4), gluon.nn.Dense(3))
    net.initialize()
    tune(net, [mx.nd.ones((4, 5))], store=file)
    with caplog.at_level("INFO", "mxmp.tune"):
        again = tune(net, [mx.nd.ones((4, 5), dtype="int32")], store=file)
    assert "measured again: dtype of data: found int32, expected float32." in caplog.text
    assert searches.count == 2 and again.holds_for.dtypes == {"data": "int32"}


def test_tune_measures_once_and_then_uses_what_is_stored(tmp_path, searches):
    file = str(tmp_path / "plan.json")
    batches = [mx.nd.ones((4, 5))]
    first = tune(dense("net_"), batches, store=file)
    assert first.policy.is_mixed and searches.count == 1
    assert tune(dense("net_"), batches, store=file) == first == load(file, dense("net_"), batches)
    assert searches.count == 1
    mxmp.gluon.convert(dense("net_"), first.policy)  # its names are the net's


@pytest.mark.parametrize(
    "others",
    [
        {"net_or_model": dense("other_")},
        {"net_or_model": dense("net_", units=4)},
        {"batches": [mx.nd.ones((8, 5))]},
        {"net_or_model": hybridized(static_alloc=True, static_shape=True)},
        {"policy": "mixed_bfloat16,last_layer_fp32=True"},
        {"objective": "inference"},
    ],
    ids=["names", "attributes", "shapes", "hybridized", "policy", "objective"],
)
def test_tune_measures_again_where_the_stored_plan_does_not_hold(others, tmp_path, searches):
    file = str(tmp_path / "plan.json")
    usual = {"net_or_model": dense("net_"), "batches": [mx.nd.ones((4, 5))]}
    tune(**usual, store=file)
    again = tune(**{**usual, **others}, store=file)
    assert searches.count == 2 and load(file) == again


def test_tune_measures_again_on_another_machine(tmp_path, searches, monkeypatch, caplog):
    file = str(tmp_path / "plan.json")
    tune(dense("net_"), [mx.nd.ones((4, 5))], store=file)
    here = dataclasses.replace(read_machine(), cores=97)
    monkeypatch.setattr(holds, "read_machine", lambda: here)
    with caplog.at_level("INFO", "mxmp.tune"):
        again = tune(dense("net_"), [mx.nd.ones((4, 5))], store=file)
    assert searches.count == 2 and again.holds_for.machine.cores == 97 and load(file) == again
    assert "the plan is measured again: cores: found 97, expected" in caplog.text


def test_a_plan_within_a_tolerance_is_used_without_another_search(tmp_path, searches, monkeypatch):
    """The search for what is accurate adds names to the policy that the plan began with."""
    file, net = str(tmp_path / "plan.json"), dense("net_")
    net(mx.nd.ones((4, 5)))
    kept = Policy.parse("mixed_bfloat16").replace(names={"net_dense1_fwd": "float32"})
    monkeypatch.setattr(TUNE, "search_within", lambda *_: SimpleNamespace(policy=kept))
    monkeypatch.setattr(Tolerance, "allows", lambda self, policy: bool(Policy.parse(policy).names))
    within = Tolerance(net, lambda net: net(mx.nd.ones((4, 5))).sum().asscalar().item(), 0.01)
    first = tune(net, [mx.nd.ones((4, 5))], store=file, within=within)
    assert first.untuned == kept and searches.count == 1
    monkeypatch.setattr(TUNE, "search_within", None)
    assert tune(net, [mx.nd.ones((4, 5))], store=file, within=within) == first
    assert searches.count == 1


def test_tune_stores_nothing_that_is_not_proved(tmp_path, searches):
    file = tmp_path / "plan.json"
    searches.proved = False
    assert not tune(dense("net_"), [mx.nd.ones((4, 5))], store=str(file)).proved
    assert not file.exists()


def test_tune_does_not_write_over_what_is_no_plan(tmp_path, searches):
    file = tmp_path / "notes.json"
    file.write_text(json.dumps({"mine": 1}))
    with pytest.raises(
        TuneError, match="notes.json: this is no tuned plan .* give another file to store, or remove this"
    ):
        tune(dense("net_"), [mx.nd.ones((4, 5))], store=str(file))
    assert json.loads(file.read_text()) == {"mine": 1} and searches.count == 0
    with pytest.raises(CheckpointError, match="there is no folder"):
        tune(dense("net_"), [mx.nd.ones((4, 5))], store=str(tmp_path / "nowhere" / "plan.json"))


def test_a_digest_is_of_the_float32_network():
    symbol = network()
    assert digest([convert_symbol(symbol, "O2", {"data": (2, 3, 8, 8)})]) == digest([symbol])
    renamed = mx.sym.load_json(symbol.tojson().replace('"fc"', '"fd"'))
    assert digest([renamed]) != digest([symbol]) != digest([symbol, symbol])


def test_what_a_result_says_changed_is_what_the_conversion_does(searches):
    found = tune(model(), [BATCH], objective="inference")
    before, after = map(precisions, (found.untuned, found.policy))
    said = {name: each.dtype for each in found.changes for name in each.names}
    assert said and said == {name: after[name] for name in after if after[name] != before[name]}


def precisions(policy):
    rows = convert_model(*model(), policy, {"data": (2, 3, 8, 8)}).report.rows
    return {row.name: row.precision for row in rows}
