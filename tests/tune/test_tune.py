"""tune, as users call it."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import mxnet as mx
import pytest

import mxmp
from mxmp.devices.speed import read_machine, runs_bfloat16
from mxmp.errors import CheckpointError, TuneError
from mxmp.gluon import convert
from mxmp.policy import Policy
from mxmp.symbol import convert_model
from mxmp.tune import Measured, Tolerance, load, plan, tune
from mxmp.tune.race import Outcome
from mxmp.tune.workload import Workload
from tests.tune.networks import convnet, dense, energy, model, two_graphs
from tests.tune.races import failing

MODULE = sys.modules["mxmp.tune.by_time"]
DATA = mx.nd.ones((3, 4))


@pytest.fixture
def batches():
    return [(mx.nd.random.uniform(shape=(2, 3, 16, 16)), mx.nd.zeros(2))]


@pytest.fixture
def without_bfloat16(monkeypatch):
    monkeypatch.setattr(MODULE, "runs_bfloat16", lambda: False)


@pytest.fixture
def races(monkeypatch):
    """Have bfloat16 run, and races end at once, which the last candidate wins; return their count, and if they prove it."""
    made = SimpleNamespace(count=0, proved=True)

    def race(names, build, seconds, **options):
        made.count += 1
        measured = {"float32": 1.0, "untuned": 2.0, names[-1]: 0.5}, 0.0, (Measured(names[-1], 0.5, 0.5, True),)
        outcome = Outcome(names[-1], *measured, interrupted=not made.proved, proved=made.proved)
        return SimpleNamespace(run=lambda: outcome)

    monkeypatch.setattr(MODULE, "Race", race)
    monkeypatch.setattr(MODULE, "runs_bfloat16", lambda: True)
    return made


# ------------------------------------------------------------------ what is returned


@pytest.mark.parametrize("objective, options", [("training", {}), ("inference", {}), ("inference", {"for_inference": True})])
def test_a_processor_without_bfloat16_gets_float32_and_is_told(batches, objective, options, without_bfloat16):
    result = tune(convnet(channels=16), batches, objective=objective, seconds=1, progress=False, **options)
    assert result.policy == Policy() and result.fastest.startswith("float32") and result.speedup >= 0.97
    assert result.holds_for.shapes == {"data": (2, 3, 16, 16)} and mx.__version__ in str(result.holds_for)
    (note,) = result.notes  # none of noise, which has hidden nothing
    assert "MXNet runs no bfloat16 on this processor" in note


@pytest.mark.bfloat16
@pytest.mark.parametrize("objective", ["training", "inference"])
def test_what_is_returned_converts_the_net(batches, objective):
    assert runs_bfloat16()
    net = convnet(channels=16)
    result = tune(net, batches, objective=objective, seconds=5, progress=False)
    assert {"float32", "untuned"} <= set(result.seconds)
    assert result.seconds[result.fastest] == min(result.seconds[name] for name in (result.fastest, "float32"))
    convert(net, result.policy)
    assert net(batches[0][0]).shape == (2, 5)


@pytest.mark.parametrize("for_inference", [False, True])
def test_a_race_runs_for_real(batches, for_inference, monkeypatch):
    """With emulated float16, whose clock counts as any other: what is returned is one of what was measured."""
    monkeypatch.setattr(Workload, "on_cpu", property(lambda workload: False))
    objective = "inference" if for_inference else "training"
    result = tune(convnet(channels=16), batches, "O1", objective, seconds=3, for_inference=for_inference, progress=False)
    assert result.proved and result.fastest in result.seconds and min(result.seconds.values()) > 0
    expected = "only convolutions in low precision" if for_inference else "normalisations in float32"
    assert {"untuned", expected} <= {each.name for each in result.candidates}


@pytest.mark.parametrize(
    "options, casts", [({}, True), ({"for_inference": True}, False), ({"param_dtype": "bfloat16"}, False)]
)
def test_a_result_says_what_the_conversion_changes_and_whether_parameters_are_cast_at_each_call(options, casts, races):
    result = tune(model(), [{"data": mx.nd.ones((2, 3, 8, 8))}], objective="inference", **options)
    assert any(note.startswith("Parameters were kept in float32 and cast at each call") for note in result.notes) == casts
    frozen, shapes = options.get("for_inference", False), {"data": (2, 3, 8, 8)}
    before, after = (
        {row.name: row.precision for row in convert_model(*model(), each, shapes, for_inference=frozen).report.rows}
        for each in (result.untuned, result.policy)
    )
    said = {name: each.dtype for each in result.changes for name in each.names}
    assert said and said == {name: after[name] for name in after if after[name] != before[name]}


def test_a_net_of_several_graphs_says_that_they_run_apart(without_bfloat16):
    notes = tune(two_graphs(), [mx.nd.ones((2, 3, 8, 8))], seconds=1, progress=False).notes
    assert notes[1].startswith("The net has 2 graphs. Each runs by itself, once, on what it was called with first;")


def test_a_network_that_does_not_run_in_float32_says_so(batches, without_bfloat16, monkeypatch):
    monkeypatch.setattr(Workload, "start", failing)
    with pytest.raises(TuneError, match="net_or_model: it does not run in float32: there is no memory left"):
        tune(convnet(channels=16), batches, progress=False)


# ------------------------------------------------------------------ within a tolerance


def test_only_what_is_within_the_tolerance_is_returned(monkeypatch):
    """Squares overflow under O2: whatever is faster, they stay in float32."""
    monkeypatch.setattr(Workload, "on_cpu", property(lambda workload: False))
    net, evaluate = energy()
    within = Tolerance(net, evaluate, 0.01)
    assert not within.allows("O2")
    result = tune(net, [mx.nd.ones((64, 8))], "O2", objective="inference", seconds=1, within=within, progress=False)
    assert within.allows(result.policy) and within.allows(result.untuned)
    assert result.untuned.names  # what the search keeps in float32


def test_a_tolerance_is_of_the_same_network_also_if_it_is_made_anew_or_folded(without_bfloat16):
    within = Tolerance(dense(), lambda net: net(DATA).sum().asscalar().item(), 0.1)
    assert tune(dense(), [DATA], within=within, progress=False).policy == Policy()
    options = {"batches": [{"data": mx.nd.ones((2, 3, 8, 8))}], "for_inference": True}
    within = Tolerance(model(), lambda candidate: 1.0, 0.1, **options)
    assert tune(model(), objective="inference", progress=False, seconds=1, within=within, **options).policy == Policy()


# ------------------------------------------------------------------ a plan for next time


def test_tune_measures_once_and_then_uses_what_is_stored(tmp_path, races, monkeypatch):
    file = str(tmp_path / "plan.json")
    first = tune(dense(), [DATA], store=file)
    assert first.policy.is_mixed and tune(dense(), [DATA], store=file) == first == load(file, dense(), [DATA])
    assert races.count == 1
    mxmp.gluon.convert(dense(), first.policy)  # its names are the net's
    monkeypatch.setattr("os.access", lambda path, mode: False)  # nothing can be written, and nothing has to be
    assert tune(dense(), [DATA], store=file) == first


@pytest.mark.parametrize(
    "others, said",
    [
        ({"net_or_model": dense("other_")}, "network: found another one"),
        ({"net_or_model": dense(units=4)}, "network: found another one"),
        ({"batches": [mx.nd.ones((8, 4))]}, r"shape of data: found (8, 4), expected (3, 4)"),
        ({"net_or_model": dense(static_alloc=True)}, "static_alloc: found True, expected none"),
        ({"policy": "mixed_bfloat16,last_layer_fp32=True"}, "untuned: found"),
        ({"objective": "inference"}, "objective: found inference, expected training"),
        ({}, "cores: found 97, expected "),
    ],
)
def test_tune_measures_again_where_the_stored_plan_does_not_hold(others, said, tmp_path, races, caplog, monkeypatch):
    file, usual = str(tmp_path / "plan.json"), {"net_or_model": dense(), "batches": [DATA]}
    tune(**usual, store=file)
    if not others:  # on another machine
        here = dataclasses.replace(read_machine(), cores=97)
        monkeypatch.setattr(plan, "read_machine", lambda: here)
    with caplog.at_level("INFO", "mxmp.tune"):
        again = tune(**{**usual, **others}, store=file)
    assert races.count == 2 and load(file) == again
    assert f"the plan is measured again: {said}" in caplog.text


def test_a_plan_within_a_tolerance_is_used_without_another_search(tmp_path, races, monkeypatch):
    """The search for what is accurate adds names to the policy that the plan began with."""
    file, net = str(tmp_path / "plan.json"), dense()
    net(DATA)
    kept = Policy.parse("mixed_bfloat16").replace(names={"net_dense1_fwd": "float32"})
    monkeypatch.setattr(MODULE, "search_within", lambda *_: kept)
    monkeypatch.setattr(Tolerance, "allows", lambda self, policy: bool(Policy.parse(policy).names))
    within = Tolerance(net, lambda net: net(DATA).sum().asscalar().item(), 0.01)
    first = tune(net, [DATA], store=file, within=within)
    assert first.untuned == kept
    monkeypatch.setattr(MODULE, "search_within", None)
    assert tune(net, [DATA], store=file, within=within) == first and races.count == 1
    monkeypatch.setattr(MODULE, "search_within", lambda *_: kept)
    monkeypatch.setattr(Tolerance, "allows", lambda self, policy: False)
    tune(net, [DATA], store=file, within=within)
    assert races.count == 2  # a stored plan that is out of tolerance now is measured again


def test_nothing_is_stored_that_is_not_proved_or_where_it_cannot_be(tmp_path, races, monkeypatch):
    file = tmp_path / "plan.json"
    races.proved = False
    result = tune(dense(), [DATA], store=str(file))
    assert not result.proved and not file.exists() and "not proved" in result.notes[-1]
    monkeypatch.setattr("os.access", lambda path, mode: path != str(tmp_path))  # the superuser may write anywhere
    with pytest.raises(CheckpointError, match="plan.json: .* is write-protected; give another file to store"):
        tune(dense(), [DATA], store=str(file))
    monkeypatch.setattr("os.access", lambda path, mode: True)
    file.write_text(json.dumps({"mine": 1}))
    with pytest.raises(CheckpointError, match="plan.json: this is no tuned plan .* give another file to store, or remo"):
        tune(dense(), [DATA], store=str(file))
    assert json.loads(file.read_text()) == {"mine": 1} and races.count == 1
