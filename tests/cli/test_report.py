"""``mxmp report``: the files of a run made a page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mxmp.report.run import VerdictText
from tests.cli.checkpoints import SHAPE, mxmp, save, table
from tests.display.runs import ledger, report


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    report().save(folder / "report.json")
    return folder


def test_a_page_is_written_and_what_is_missing_said(run, tmp_path):
    out, err = mxmp("report", run, "-o", tmp_path / "page.html", "--title", "My run")
    assert err == ""
    assert [row for row in table(out) if row[0] != "warning"] == [
        ["written", str(tmp_path / "page.html")],
        ["not there", "steps.csv, ledger.json, compare.json"],
    ]
    assert "<title>My run</title>" in (tmp_path / "page.html").read_text()


def test_the_warnings_and_the_advice_of_the_page_are_printed(run, tmp_path):
    found = ledger(scales={10: (10, 90)}, not_taken=90)
    found.save(run / "ledger.json")
    (run / "report.json").write_text(report(without_rule=("Custom", "Look\x1b")).to_json())
    out, _ = mxmp("report", run, "-o", tmp_path / "page.html")
    advice = list(found.advice().sentences)
    expected = [["warning", "No rule for Custom, Look\\x1b: left as they were."], *(["advice", each] for each in advice)]
    assert table(out)[1 : 2 + len(advice)] == expected and advice


def test_a_verdict_of_the_run_is_printed(run, tmp_path):
    VerdictText("data", "'data' holds NaN in row 3.").save(run / "verdict.json")
    out, _ = mxmp("report", run, "-o", tmp_path / "page.html")
    assert ["verdict", "data: 'data' holds NaN in row 3."] in table(out)


def test_what_inspect_prints_is_a_run(tmp_path):
    (tmp_path / "report.json").write_text(mxmp("inspect", save(tmp_path), "--shape", SHAPE, "--json")[0])
    mxmp("report", tmp_path / "report.json", "-o", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "softmax (SoftmaxOutput): float32" in text and "fc_output to float32" in text


def test_a_file_that_exists_is_replaced_if_forced(run, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")
    mxmp("report", run, "-o", page, "--force")
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_it_does_not_import_mxnet(run, tmp_path):
    code = "import sys; from mxmp.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: print('mxnet' in sys.modules)"
    command = [sys.executable, "-c", code, "report", str(run), "-o", str(tmp_path / "page.html")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("False\n")
