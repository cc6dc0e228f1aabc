"""A tuned policy as users see it: printed, as JSON, and read again."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given

from mxmp import Policy
from mxmp.errors import CheckpointError, TuneError
from mxmp.tune import Change, TuneResult
from mxmp.tune.overrides import pattern_of
from tests.cli.checkpoints import table
from tests.full_disk import files_of_at_most
from tests.names import ANY, EACH
from tests.tune.results import result


def lines(found):
    return [line for line in str(found).splitlines() if ": " in line]


def test_the_table_has_times_and_ratios_and_marks_what_is_returned():
    assert table(str(result())) == [
        ["plan", "ms", "times float32's speed", "times the untuned speed"],
        ["float32", "1000", "1.00", "2.00"],
        ["untuned", "2000", "0.50", "1.00"],
        ["tuned, returned", "500", "2.00", "4.00"],
    ]


def test_what_was_not_measured_is_a_dash():
    found = result("float32", seconds={"float32": 0.0123}, changes=())
    assert table(str(found))[1:] == [["float32, returned", "12.3", "1.00", "-"]]


def test_the_lines_say_what_changed_and_what_it_won():
    said = lines(result())
    assert "policy: param=float32,compute=bfloat16,output=float32,op:BatchNorm=float32" in said
    assert "changed: 5 BatchNorm in float32: bn0, bn1, bn2 and 2 more" in said
    assert "won in the search: normalisations in float32: 50% less time than the best before" in said
    assert "tried: 3 plans besides float32; 1 did not run" in said
    assert "note: A note." in said
    (holds,) = (line for line in said if line.startswith("holds for: "))
    assert "OMP_NUM_THREADS=" in holds and "data (2, 3, 8, 8)" in holds and "MXNet 1.9.1" in holds


def test_a_policy_with_many_names_is_shortened_where_it_is_printed():
    names = {f"node{number}": "float32" for number in range(9)}
    found = result(Policy.parse("mixed_bfloat16", names=names))
    assert "name:node3=float32 and 5 more names" in str(found) and "node4" not in str(found)
    assert Policy.parse(str(found.policy)).names == tuple(sorted(names.items()))
    assert len(repr(found)) < 250


def test_repr_says_what_was_won():
    assert repr(result()).endswith("objective='training', speedup=2.00)")
    assert repr(result(seconds={})).endswith("speedup=unknown)")


@pytest.mark.parametrize(
    "policy, name, speedup",
    [("mixed_bfloat16,op:BatchNorm=float32", "tuned", 2.0), ("mixed_bfloat16", "untuned", 0.5), ("O0", "float32", 1.0)],
)
def test_the_fastest_is_what_the_policy_is(policy, name, speedup):
    assert (result(policy).fastest, result(policy).speedup) == (name, speedup)


def test_json_comes_back_as_it_was():
    for found in (result(), result("O0", seconds={}, candidates=(), changes=(), notes=(), proved=False)):
        assert TuneResult.from_json(found.to_json()) == found


@given(ANY, ANY)
def test_any_name_comes_back(name, other):
    names = {pattern_of(name): "float32", pattern_of(other): "bfloat16"}
    found = result(
        Policy.parse("mixed_bfloat16", names=names),
        changes=(Change("FullyConnected", "float32", (name, other)),),
        shapes={name: (1,)},
    )
    again = TuneResult.from_json(found.to_json())
    assert again == found and Policy.parse(str(again.policy)) == found.policy


@given(ANY)
def test_the_pattern_of_a_name_matches_it(name):
    policy = Policy.parse(str(Policy.parse("mixed_bfloat16", names={pattern_of(name): "float32"})))
    assert policy.override("any", name) is not None


@EACH
def test_a_name_breaks_no_line(name):
    printed = str(result(changes=(Change(name, "float32", (name,)),), shapes={name: (1,)}))
    assert all(line.isprintable() for line in printed.split("\n"))


def changed(**fields):
    return {**json.loads(result().to_json()), **fields}


@pytest.mark.parametrize(
    "data, match",
    [
        ({}, r"no tuned plan of this version of mxmp: format None; expected 'mxmp tuned plan 2'"),
        ([], r"no tuned plan"),
        (changed(format="mxmp tuned plan 3"), r"format 'mxmp tuned plan 3'"),
        (changed(policy="mixed_bfloat17"), r"policy is 'mixed_bfloat17'; expected a policy. unknown policy"),
        (changed(policy=3), r"policy is 3; expected a policy"),
        (changed(objective="speed"), r"objective is 'speed'; expected 'training' or 'inference'"),
        (changed(for_inference=1), r"for_inference is 1; expected true or false"),
        (changed(seconds={"float32": -1.0}), r"float32 is -1.0; expected a number from 0 on"),
        (changed(seconds={"float32": float("nan")}), r"float32 is nan; expected a number"),
        (changed(seconds=[1.0]), r"seconds is \[1.0\]; expected an object"),
        (changed(notes="A note."), r"notes is 'A note.'; expected a list"),
        (changed(candidates=[{"name": "x"}]), r"candidates\[0\] lacks \['ratio', 'seconds', 'won'\]"),
        (changed(more=1), r"unknown fields \['more'\]"),
        ({k: v for k, v in changed().items() if k != "holds_for"}, r"lacks \['holds_for'\]"),
        (
            changed(holds_for={**changed()["holds_for"], "shapes": {"data": [2.5]}}),
            r"data\[0\] is 2.5; expected a whole",
        ),
        (changed(holds_for={**changed()["holds_for"], "dtypes": {"data": 2}}), r"data is 2; expected a text"),
        (changed(holds_for={**changed()["holds_for"], "options": []}), r"options is \[\]; expected an object"),
        (changed(holds_for=None, format="mxmp tuned plan 1"), r"holds_for is None; expected an object"),
        (changed(holds_for={**changed()["holds_for"], "machine": {}}), r"machine lacks \['amx', 'cores'"),
    ],
)
def test_a_damaged_plan_is_refused(data, match):
    with pytest.raises(TuneError, match=match):
        TuneResult.from_json(json.dumps(data))


def test_a_plan_of_the_first_format_is_read_and_says_nothing_of_dtypes_and_options():
    data = changed(format="mxmp tuned plan 1")
    del data["holds_for"]["dtypes"], data["holds_for"]["options"]
    found = TuneResult.from_json(json.dumps(data)).holds_for
    assert (found.dtypes, found.options) == (None, None)
    assert found.differences(dtypes={"data": "int32"}, options={"static_alloc": "True"}) == []
    assert TuneResult.from_json(TuneResult.from_json(json.dumps(data)).to_json()).holds_for == found


def test_dtypes_and_options_are_said_unless_they_are_the_usual_ones():
    plan = result().holds_for
    assert "data (2, 3, 8, 8); network" in str(plan)
    other = dataclasses.replace(plan, dtypes={"data": "int32"}, options={"static_alloc": "True"})
    assert "data int32 (2, 3, 8, 8); static_alloc=True; network" in str(other)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_plan_is_refused(part):
    text = result().to_json()
    with pytest.raises(TuneError, match="this is no tuned plan of mxmp: it is no JSON"):
        TuneResult.from_json(text[: int(part * len(text))])


def test_a_full_disk_leaves_the_earlier_plan(tmp_path):
    file = tmp_path / "plan.json"
    result("O0").save(str(file))
    before = file.read_bytes()
    with files_of_at_most(100), pytest.raises(CheckpointError, match="plan.json: the tuned plan cannot be written"):
        result().save(str(file))
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder"):
        result().save(str(tmp_path / "nowhere" / "plan.json"))
