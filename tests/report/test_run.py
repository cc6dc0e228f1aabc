"""A run read from its files, and its page: what is there is shown, what is missing said, what is broken named."""

from __future__ import annotations

import csv
import dataclasses
import html
import json
import math
import re

import pytest

from mxmp.diagnose import Verdict
from mxmp.errors import CheckpointError
from mxmp.report import RUN_FILES, read_run
from mxmp.report.steps import Steps
from tests.display.runs import compare, ledger, report, steps, whole

NAMES = ("step", "seconds", "taken", "scale", "next_scale", "grad_norm", "loss", "zero_share", "subnormal_share")


def write_steps(path, rows, names=(*NAMES, "largest", "error")):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "taken": int(row["taken"])} for row in rows)


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "resnet"
    run.mkdir()
    report().save(run / "report.json")
    ledger().save(run / "ledger.json")
    compare().save(run / "compare.json")
    write_steps(run / "steps.csv", steps().steps)
    Verdict("data", "data: input 'x' holds NaN. Look at how it is read.").save(run / "verdict.json")
    return run


def test_a_whole_run_is_read(folder):
    run = read_run(folder)
    assert (run.name, run.missing) == ("resnet", ())
    assert (run.report, run.gradients, run.comparison, run.verdict.kind) == (report(), ledger(), compare(), "data")
    assert (run.ledger, run.compare) == (ledger().to_dict(), compare().to_dict())
    assert len(run.steps) == 300 and run.steps[40]["taken"] is False and run.steps[0]["taken"] is True
    assert run.steps[0]["largest"] is None and run.steps[3]["loss"] == 1.25


def test_the_page_has_a_section_for_each_part_and_the_runs_name(folder):
    text = read_run(folder).to_html()
    assert "<title>resnet</title>" in text
    for title in ("Summary", "Network", "Steps", "Gradients by layer", "Errors by layer", "Operators"):
        assert f">{title}</h2>" in text
    assert "<title>Mine</title>" in read_run(folder).to_html(title="Mine")


@pytest.mark.parametrize("name", RUN_FILES)
def test_each_file_may_be_missing(folder, name):
    (folder / name).unlink()
    run = read_run(folder)
    assert run.missing == ((name,) if name != "verdict.json" else ())
    marks = {"report.json": ">Operators</h2>", "ledger.json": ">Gradients by layer</h2>", "compare.json": ">Errors by layer</h2>"}
    marks.update({"steps.csv": ">Steps</h2>", "verdict.json": "holds NaN"})
    text = run.to_html()
    assert [file for file, mark in marks.items() if mark not in text] == [name]


@pytest.mark.parametrize("name", RUN_FILES)
def test_one_file_alone_is_a_run(folder, name):
    run = read_run(folder / name)
    assert set(run.missing) == set(RUN_FILES) - {name, "verdict.json"} and run.name == name
    assert run.to_html().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_of_another_name_is_known_by_what_is_in_it(folder, name):
    expected = read_run(folder / name)
    other = (folder / name).rename(folder / f"mine.{name.rpartition('.')[2]}")
    assert dataclasses.replace(read_run(other), name=name) == expected


def changed(record, **changes):
    return json.dumps({**record.to_dict(), **changes})


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("report.json", "{", "it is no JSON"),
        ("report.json", "[1]", "expected 'record': 'report', found None"),
        ("report.json", changed(report(), rows=[{"name": 1}]), r"rows\[0\].name is 1; expected text"),
        ("report.json", changed(report(), casts=10**400), "casts is 1000.*; expected a whole number"),
        ("ledger.json", changed(compare()), "expected 'record': 'ledger', found 'comparison'"),
        ("ledger.json", changed(ledger(), version=3), "has version 3; this mxmp reads version 1"),
        ("ledger.json", changed(ledger(), layers=[{"name": "a", "counts": {"x": {}}}]), r"layers\[0\].counts has the key 'x'"),
        ("compare.json", changed(compare(), outputs=[{"name": "o", "error": []}]), r"outputs\[0\].error is \[\]"),
        ("steps.csv", "a,b\n1,2\n", "no column 'step'"),
        ("steps.csv", "", "no column 'step'"),
        ("steps.csv", "step,loss\n1,x\n", "line 2 has loss='x'; expected a number"),
        ("steps.csv", "step,taken\n1,maybe\n", "line 2 has taken='maybe'; expected 1 or 0"),
        ("steps.csv", "step,loss\n,1\n", "line 2 has no step"),
        ("steps.csv", "step,loss,why\n1,2,\n2,1.", "line 3 is cut: it has fewer columns than the first"),
        ("ledger.json", changed(ledger(), dtype="banana"), "dtype is 'banana'; expected 'float16' or 'bfloat16'"),
        ("ledger.json", changed(ledger(), last_scale=-1), "last_scale is -1.0; expected a positive number"),
        ("ledger.json", changed(ledger(), last_scale="nan"), "last_scale is nan; expected a positive number"),
        ("ledger.json", changed(ledger(), steps=0, scales={"0": [0, 3]}), "its counts of steps do not fit each other"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{name}: .*{message}") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["report.json", "steps.csv"])
def test_a_file_that_is_no_text_is_named(folder, name):
    (folder / name).write_bytes(b"step\n\xff\xfe\x00")
    with pytest.raises(CheckpointError, match=f"{name}: it is no text in UTF-8"):
        read_run(folder)


def test_a_folder_in_a_files_place_is_named(folder):
    (folder / "report.json").unlink()
    (folder / "report.json").mkdir()
    with pytest.raises(CheckpointError, match="report.json cannot be read: Is a directory"):
        read_run(folder)


def test_a_folder_with_none_of_them_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="none of report.json, verdict.json, steps.csv, ledger.json, compare.json is in"):
        read_run(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder or file"):
        read_run(tmp_path / "missing")


def test_unknown_columns_are_passed_over_and_missing_ones_are_none(folder):
    (folder / "steps.csv").write_text("step,loss,mine\n1,2.5,x\n2,,y\n")
    found = read_run(folder).steps
    assert [(each["step"], each["loss"], each["taken"]) for each in found] == [(1, 2.5, None), (2, None, None)]


def test_of_a_step_that_a_resumed_run_made_again_the_last_line_counts(folder):
    (folder / "steps.csv").write_text("step,loss,taken\n1,4,1\n2,3,0\n3,9,0\n2,2,1\n3,1,1\n")
    run = read_run(folder)
    assert [(each["step"], each["loss"]) for each in run.steps] == [(1, 4), (2, 2), (3, 1)]


def test_a_run_of_no_steps_and_no_operators_is_a_page(folder):
    (folder / "steps.csv").write_text("step,loss\n")
    report(rows=()).save(folder / "report.json")
    ledger(layers=(), steps=0, sampled=0, scales={}, last_scale=None).save(folder / "ledger.json")
    compare(rows=(), outputs=()).save(folder / "compare.json")
    assert ">Gradients by layer</h2>" in read_run(folder).to_html()


def test_figures_warnings_and_advice_of_all_parts_come_first():
    run = whole()
    assert run.warnings == ["Slow here.", "No rule for Custom: left as they were."]
    assert run.advice == list(ledger().advice().sentences)
    text = run.to_html()
    first = text[: text.index('<section id="network"')]
    for each in ("Slow here.", *run.advice, "operators in float16", "seconds per step"):
        assert each in first and each not in text[len(first) :]
    assert "32,768" in whole(log=None).to_html() and "32,768" not in text  # the steps say more than the ledger


def test_a_limit_is_advised_to_a_static_scale_alone():
    remarks = [figures_of(ledger(is_dynamic=moves).to_html())["loss scale at the end"][1] for moves in (False, True)]
    assert remarks == ["at most 2⁷", "dynamic; a static one at most 2⁷"]


def test_the_line_under_a_runs_title_leaves_the_scale_to_the_figures():
    assert whole()._lead == "param=float32,compute=float16,output=float32"
    assert "<dt>last scale</dt><dd><b>8,192</b> <span>256 to 8,192</span>" in whole().to_html()


def test_errors_follow_the_network_where_it_is_known():
    reversed_rows = compare(rows=compare().rows[::-1])
    assert "from the network's inputs to its outputs" in html.unescape(whole(comparison=reversed_rows).to_html())


# ---------------------------------------------------------------------- steps


def figures_of(text):
    found = re.findall(r"<dt>([^<]*)</dt><dd><b>(.*?)</b>(?: <span>(.*?)</span>)?</dd>", text)
    return {what: (figure, remark) for what, figure, remark in found}


def test_steps_show_what_was_logged_and_no_more():
    text = Steps([{"step": 5, "loss": 1.5}, {"step": 6, "loss": 1.25}]).to_html()
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["Loss"] and "Skipped steps" not in text
    assert figures_of(steps().to_html())["steps"] == ("300", "3 skipped")
    assert Steps([])._sections() == []


def test_the_time_of_a_step_is_the_median_between_two():
    """The log's seconds are counted from its beginning; a resumed run's first step may lie before the last one."""
    seconds = [10.0, 10.5, 11.0, 11.5, None, 99.0, 3.0, 3.5, 9.0]
    found = figures_of(Steps([{"step": i, "seconds": each} for i, each in enumerate(seconds)]).to_html())
    assert found["seconds per step"] == ("0.5", "median")


@pytest.mark.parametrize("values", [[1e17], [1e17, 1e17], [-1.7e308, 1.7e308], [0.0, 5e-323], [5e-324], [math.inf]], ids=str)
def test_extreme_values_are_a_page(values):
    names = ("step", "loss", "scale", "zero_share", "seconds")
    rows = [{name: each for name in names if name != "step"} for each in values]
    text = Steps([{"step": min(i, each), **each_row} for i, (each, each_row) in enumerate(zip(values, rows))]).to_html()
    assert not re.search(r'd="[^"]*(nan|inf)', text) and ">Steps</h2>" in text


def test_skipped_steps_are_listed_with_why():
    text = steps().to_html()
    assert re.findall(r'data-key="(\d+)\.0">\d+</th>', text) == ["40", "41", "200"] and "broken = true" in text
    said = [{"step": 1, "taken": False, "why": "gradients of fc"}, {"step": 2, "taken": False, "error": "E", "why": "no"}]
    assert re.findall(r'<td class="text">(.*?)</td>', Steps(said).to_html()) == ["gradients of fc", "E"]


def test_why_the_last_step_was_not_taken_stands_first(tmp_path):
    (tmp_path / "steps.csv").write_text("step,taken,error\n1,1,\n2,0,NonFiniteLossError: 'fc' gives inf\n")
    run = read_run(tmp_path)
    notes = [block for block in run._sections()[0].blocks if getattr(block, "kind", "") == "Error"]
    assert [note.sentences for note in notes] == [["The last step was not taken: NonFiniteLossError: 'fc' gives inf"]]
