"""A run read from its files, and its page: what is there is shown, what is missing said, what is broken named."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from mxmp.errors import CheckpointError
from mxmp.report import RUN_FILES, read_run
from mxmp.report.saved import report_from_dict
from tests.html.runs import compare, ledger, report, steps

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
    (run / "report.json").write_text(json.dumps(report()))
    (run / "ledger.json").write_text(json.dumps(ledger()))
    (run / "compare.json").write_text(json.dumps(compare()))
    write_steps(run / "steps.csv", steps())
    return run


def test_a_whole_run_is_read(folder):
    run = read_run(folder)
    assert (run.name, run.missing) == ("resnet", ())
    assert run.report == report_from_dict(report())
    assert (run.ledger, run.compare) == (ledger(), compare())
    assert len(run.steps) == 300 and run.steps[40]["taken"] is False and run.steps[0]["taken"] is True
    assert run.steps[0]["largest"] is None and run.steps[3]["loss"] == 1.25


def test_the_page_has_a_section_for_each_part_and_the_runs_name(folder):
    text = read_run(folder).to_html()
    assert "<title>resnet</title>" in text
    for title in ("Summary", "Network", "Steps", "Gradients", "Errors by layer", "Operators"):
        assert f"<h2>{title}</h2>" in text
    assert "<title>Mine</title>" in read_run(folder).to_html(title="Mine")


@pytest.mark.parametrize("name", RUN_FILES)
def test_each_file_may_be_missing(folder, name):
    (folder / name).unlink()
    run = read_run(folder)
    assert run.missing == (name,)
    titles = {"report.json": "Operators", "ledger.json": "Gradients", "compare.json": "Errors by layer", "steps.csv": "Steps"}
    text = run.to_html()
    assert [title for title in titles.values() if f"<h2>{title}</h2>" not in text] == [titles[name]]


@pytest.mark.parametrize("name", RUN_FILES)
def test_one_file_alone_is_a_run(folder, name):
    run = read_run(folder / name)
    assert set(run.missing) == set(RUN_FILES) - {name} and run.name == name
    assert run.to_html().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_file_of_another_name_is_known_by_what_is_in_it(folder, name):
    other = (folder / name).rename(folder / f"mine.{name.rpartition('.')[2]}")
    assert set(read_run(other).missing) == set(RUN_FILES) - {name}


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("report.json", "{", "is no JSON"),
        ("report.json", "[1]", "no list 'rows'"),
        ("report.json", '{"rows": []}', "lacks 'policy', 'casts'"),
        ("report.json", json.dumps(report(rows=[1])), r"rows\[0\] is 1"),
        ("report.json", json.dumps(report(rows=[{"name": 1}])), r"rows\[0\] has name=1"),
        ("report.json", json.dumps(report(casts=-1)), "casts=-1; expected a count"),
        ("report.json", json.dumps(report(activation_bytes=[1])), r"activation_bytes=\[1\]"),
        ("report.json", json.dumps(report(widely_read=[1])), r"widely_read=\[1\]"),
        ("report.json", "[" * 100_000, "cannot be shown"),
        ("ledger.json", json.dumps(compare()), "expected 'kind': 'ledger', found 'compare'"),
        ("ledger.json", json.dumps(ledger(version=3)), "of version 3; this mxmp reads version 1 and 2"),
        ("ledger.json", json.dumps(ledger(layers={})), "layers={}"),
        ("ledger.json", json.dumps(ledger(steps="many")), "steps='many'; expected a count"),
        ("ledger.json", json.dumps(ledger(advice="x")), "advice='x'"),
        ("ledger.json", json.dumps(ledger(layers=[{"name": "a", "histogram": {"x": 1}}])), r"layers\[0\] has 'x': 1"),
        ("ledger.json", json.dumps(ledger(layers=[{"name": "a", "histogram": {}, "largest": "big"}])), "largest='big'"),
        *(
            ("ledger.json", json.dumps(ledger(layers=[{"name": "a", "histogram": {"1": count}}])), r"layers\[0\] has '1'")
            for count in ("inf", float("nan"), -1, 0.5, True, 10**400)
        ),
        ("ledger.json", json.dumps(ledger(layers=[{"name": "a", "histogram": {"--5": 1}}])), "has '--5': 1"),
        ("ledger.json", json.dumps(ledger(steps=-1)), "steps=-1; expected a count"),
        ("ledger.json", json.dumps(ledger(scale=[1])), r"has scale=\[1\]"),
        ("ledger.json", json.dumps(ledger(scale={"last": []})), r"scale has last=\[\]"),
        ("ledger.json", json.dumps(ledger(advice=[1])), r"has 1 at advice\[0\]"),
        ("ledger.json", json.dumps(ledger(layers=[dict(ledger()["layers"][0], lost_update_share={})])), "update_share={}"),
        ("ledger.json", json.dumps(ledger(layers=[dict(ledger()["layers"][0], counts=[1])])), r"layers\[0\] has counts=\[1\]"),
        ("ledger.json", json.dumps(ledger(layers=[dict(ledger()["layers"][0], counts={"0": {"zero": -1}})])), "in counts"),
        ("compare.json", "{}", "expected 'kind': 'compare'"),
        ("compare.json", json.dumps(compare(rows=[{"op": "x"}])), r"rows\[0\] has name=None"),
        ("compare.json", json.dumps(compare(outputs=[{"name": "o", "error": []}])), r"outputs\[0\] has error=\[\]"),
        ("steps.csv", "a,b\n1,2\n", "no column 'step'"),
        ("steps.csv", "", "no column 'step'"),
        ("steps.csv", "step,loss\n1,x\n", "line 2 has loss='x'"),
        ("steps.csv", "step,taken\n1,maybe\n", "line 2 has taken='maybe'"),
        ("steps.csv", "step,loss\n,1\n", "line 2 has no step"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{name} cannot be shown: .*{message}|{name} {message}") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_named(folder):
    (folder / "report.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="report.json cannot be shown: it is no JSON: it is no text in UTF-8"):
        read_run(folder)
    (folder / "steps.csv").write_bytes(b"step\n\xff\n")
    with pytest.raises(CheckpointError, match="steps.csv cannot be shown: it is no text in UTF-8"):
        read_run(folder / "steps.csv")


def test_a_folder_in_a_files_place_is_named(folder):
    (folder / "report.json").unlink()
    (folder / "report.json").mkdir()
    with pytest.raises(CheckpointError, match="report.json cannot be read: Is a directory"):
        read_run(folder)


def test_a_folder_with_none_of_them_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="none of report.json, ledger.json, compare.json, steps.csv is in"):
        read_run(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder or file"):
        read_run(tmp_path / "missing")


def test_unknown_columns_and_fields_are_passed_over(folder):
    (folder / "steps.csv").write_text("step,loss,mine\n1,2.5,x\n2,,y\n")
    (folder / "report.json").write_text(json.dumps({**report(), "changes": [], "uneven": []}))  # of inspect --json
    run = read_run(folder)
    assert [(each["step"], each["loss"], each["taken"]) for each in run.steps] == [(1, 2.5, None), (2, None, None)]
    assert run.report.casts == 3


def test_of_a_step_that_a_resumed_run_made_again_the_last_line_counts(folder):
    (folder / "steps.csv").write_text("step,loss,taken\n1,4,1\n2,3,0\n3,9,0\n2,2,1\n3,1,1\n")
    run = read_run(folder)
    assert [(each["step"], each["loss"]) for each in run.steps] == [(1, 4), (2, 2), (3, 1)]


def test_a_run_of_no_steps_and_no_operators_is_a_page(folder):
    (folder / "steps.csv").write_text("step,loss\n")
    (folder / "report.json").write_text(json.dumps(report(rows=[])))
    (folder / "ledger.json").write_text(json.dumps(ledger(layers=[], steps=0, sampled=0, skipped=0, scale={}, advice=[])))
    (folder / "compare.json").write_text(json.dumps(compare(rows=[], outputs=[])))
    assert "<h2>Gradients</h2>" in read_run(folder).to_html()


def test_a_page_is_written_whole_or_not_at_all(folder, tmp_path):
    run = read_run(folder)
    file = tmp_path / "page.html"
    assert run.to_html(file) == file.read_text(encoding="utf-8")
    with pytest.raises(CheckpointError, match="there is no folder"):
        run.to_html(str(tmp_path / "missing" / "page.html"))
    text = replace(run, name="\udcff").to_html(file)  # a name that is no UTF-8, as Python gives it
    assert "\udcff" not in text and file.read_text(encoding="utf-8")
