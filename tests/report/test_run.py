"""A run read from its files, and its page: what is there is shown, what is missing said, what is broken named."""

import csv
import html
import math
import re
from dataclasses import replace

import pytest

from mxmp import Policy
from mxmp.diagnose import (
    CheckReport,
    Comparison,
    DoctorReport,
    Explanation,
    Finding,
    Gradients,
    NonFinite,
    Ranges,
    Steps,
    ValueRange,
    read_run,
)
from mxmp.errors import CheckpointError
from mxmp.report import Report
from mxmp.tune import PolicySpeed, SearchResult, SearchRow, SpeedComparison
from tests.display.runs import compare, gradients, report, steps, whole

NAMES = ("step", "seconds", "taken", "scale", "next_scale", "grad_norm", "loss")


NODE = NonFinite("forward", "fc1", "FullyConnected", "float16", ValueRange("fc1_output", 8, 0, 2, -1.0, 2.0))
ROWS = PolicySpeed("float32", 0.01, 0.02, 1.0, "", (0.01,)), PolicySpeed("O2", 0.005, 0.01, 0.5, "faster", (0.005,))
RESULTS = {
    "report": report(),
    "explanation": Explanation("data", "data: input 'x' holds NaN. Look at how it is read."),
    "nonfinite": NODE,
    "ranges": Ranges({"fc_output": 7e4, "data": 1.0}, "batch.npz", ("fc",), gradients()),
    "gradients": gradients(),
    "compare": compare(),
    "speed": SpeedComparison(False, ROWS, "Xeon", "AMX", True),
    "search": SearchResult(Policy.parse("O2"), 0.9, 0.91, 0.5, 0.01, True, 7, True, (1, 2), 9, (SearchRow("fc1", "dot", 0.1, 0.2, "yes"),)),
    "doctor": DoctorReport("O1", "float16", (), "Use float32.", (Finding("Python", "3.9"),)),
    "check": CheckReport((Finding("plain_trainer", "the trainer is one of MXNet.", False, "Use mxmp.gluon.Trainer."),)),
}  # fmt: skip


RUN_FILES = (  # in the order of the page
    "report.json", "explanation.json", "nonfinite.json", "steps.csv", "ranges.json", "gradients.json", "compare.json",
    "speed.json", "search.json", "check.json", "doctor.json",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "resnet"
    run.mkdir()
    for name, part in RESULTS.items():
        part.save(run / f"{name}.json")
    with open(run / "steps.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, (*NAMES, "error"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "taken": int(row["taken"])} for row in steps().steps)
    return run


def test_a_whole_run_is_read_and_has_a_page_with_a_section_for_each_part(folder):
    (folder / "package.json").write_text('{"name": "mine"}')  # not ours
    (folder / "labels.csv").write_text("step,label\n1,2\n")
    (folder / "net-symbol.json").write_text("{}")
    run = read_run(folder)
    assert run.name == "resnet" and tuple(run.records) == RUN_FILES
    assert {name: run.records[f"{name}.json"] for name in RESULTS} == {**RESULTS, "report": replace(report(), notes=())}
    assert run.find(Comparison) == compare() and read_run(folder / "steps.csv").find(Report) is None
    taken = run.find(Steps).steps
    assert len(taken) == 300 and [taken[number]["taken"] for number in (0, 40)] == [True, False]
    assert taken[40]["why"] is None and taken[3]["loss"] == 1.25
    titles = "Summary", "Network", "Steps", "Errors by layer", "Operators", "Largest magnitudes", "This machine"
    assert all(f">{title}</h2>" in run.to_html() for title in titles) and "<title>resnet</title>" in run.to_html()
    assert "<title>Mine</title>" in run.to_html(title="Mine")


MARKS = {
    "report.json": ">Operators</h2>",
    "nonfinite.json": ">Where inf or NaN comes up first</h2>",
    "ranges.json": ">Largest magnitudes</h2>",
    "speed.json": ">Policies in turns</h2>",
    "search.json": ">Operators to keep in float32</h2>",
    "check.json": ">What is wrong</h2>",
    "doctor.json": ">This machine</h2>",
    "compare.json": ">Errors by layer</h2>",
    "steps.csv": ">Steps</h2>",
    "explanation.json": "holds NaN",
}


@pytest.mark.parametrize("name", RUN_FILES)
def test_each_file_may_be_missing_may_be_all_that_there_is_and_may_have_another_name(folder, name):
    one = read_run(folder / name)
    assert list(one.records) == [name] == [one.name] and one.to_html().startswith("<!DOCTYPE html>")
    assert str(one.records[name]) and str(one)
    other = (folder / name).rename(folder / f"mine.{name.rpartition('.')[2]}")  # it is known by its content
    assert list(read_run(other).records.values()) == list(one.records.values())
    assert set(read_run(folder).records) == {*RUN_FILES, other.name} - {name}
    other.unlink()
    text = read_run(folder).to_html()
    assert [file for file, mark in MARKS.items() if mark not in text] == ([name] if name in MARKS else [])


def test_two_results_of_a_kind_are_both_shown(folder):
    compare(policy="O2").save(folder / "compare-O2.json")
    text = read_run(folder).to_html()
    assert all(f">Errors by layer: {name}</h2>" in text for name in ("compare.json", "compare-O2.json"))


OTHERS = {
    "net-symbol.json": "it belongs to a checkpoint, which `mxmp inspect PREFIX` shows",
    "net-0003.params": "it belongs to a checkpoint",
    "page.html": "it is a page already; open it in a browser",
    "net.states": "it holds the state of a trainer",
    "mine.txt": "this is no report of mxmp",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_no_result_is_refused_with_advice(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=OTHERS[name]):
        read_run(tmp_path / name)


BROKEN = {  # a file, its content, and what is wrong with it
    "no JSON": ("report.json", b"{", "it is no JSON"),
    "a list": ("report.json", b"[1]", "expected 'record': 'report', found None"),
    "bytes": ("report.json", b"step\n\xff\xfe\x00", "it is no text in UTF-8"),
    "other columns": ("steps.csv", b"a,b\n1,2\n", "no column 'step'"),
    "a loss": ("steps.csv", b"step,loss\n1,x\n", "line 2 has loss='x'; expected a number"),
    "a cut line": ("steps.csv", b"step,loss,why\n1,2,\n2,1.", "line 3 is cut: it has fewer columns than the first"),
}


@pytest.mark.parametrize("name, content, text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_of_a_run_is_named(name, content, text, folder):
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: .*{re.escape(text)}"):
        read_run(folder)


def test_a_folder_without_a_result_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="this folder holds no result of mxmp, such as report.json, "):
        read_run(tmp_path)
    with pytest.raises(CheckpointError, match="missing: there is no such folder or file"):
        read_run(tmp_path / "missing")
    (tmp_path / "report.json").mkdir()
    with pytest.raises(CheckpointError, match="report.json cannot be read: Is a directory"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text, found",
    [
        ("step,loss,mine\n1,2.5,x\n2,,y\n", [(1, 2.5, None), (2, None, None)]),
        ("step,loss,taken\n1,4,1\n2,3,0\n3,9,0\n2,2,1\n3,1,1\n", [(1, 4, True), (2, 2, True), (3, 1, True)]),
    ],
    ids=["unknown columns are passed over and missing ones None", "of a step made again the last line counts"],
)
def test_steps_are_read_from_a_table(folder, text, found):
    (folder / "steps.csv").write_text(text)
    assert [(each["step"], each["loss"], each["taken"]) for each in read_run(folder).find(Steps).steps] == found


def test_a_run_of_no_steps_and_no_operators_is_a_page(folder):
    (folder / "steps.csv").write_text("step,loss\n")
    report(rows=()).save(folder / "report.json")
    Gradients({}).save(folder / "gradients.json")
    compare(rows=(), outputs=()).save(folder / "compare.json")
    assert ">Gradients by layer: gradients.json</h2>" in read_run(folder).to_html()


def test_figures_and_warnings_of_all_parts_come_first_and_errors_follow_the_network():
    run = whole(compare=compare(rows=compare().rows[::-1]))
    assert run.remarks == [("warning", "Slow here."), ("warning", "No rule for Custom: left as they were.")]
    assert run._lead == "O1"
    first, mark, rest = run.to_html().partition('<section id="network"')
    for each in ("Slow here.", "become 0 in float16", "operators in float16", "seconds per step"):
        assert each in first and each not in rest
    assert "<dt>last scale</dt><dd><b>8,192</b> <span>256 to 8,192</span>" in first
    assert "from the network's inputs to its outputs" in html.unescape(rest)
    assert rest.index(">Errors by layer</h2>") < rest.index(">Operators</h2>")  # which is long


def figures_of(text):
    found = re.findall(r"<dt>([^<]*)</dt><dd><b>(.*?)</b>(?: <span>(.*?)</span>)?</dd>", text)
    return {what: (figure, remark) for what, figure, remark in found}


def test_gradients_show_how_many_become_0_and_the_largest_scale_that_keeps_all_finite():
    figures = figures_of(gradients().to_html())
    assert figures["gradients"] == ("3,332", "28 are 0 in float32") and figures["largest loss scale"][0] == "2⁷"
    share, total = gradients().total.share_lost(), gradients().total
    assert share == sum(count for e, count in total.counts.items() if e <= -25) / 3240 and 0.03 < share < 0.04
    assert figures["become 0 in float16"][0] == f"{100 * share:.3g} %"
    text = str(gradients())
    assert re.search(r"2⁻²⁶ to 2⁻²⁵ .* 0 ", text) and re.search(r"2⁻²⁵ to 2⁻²⁴ .* subnormal ", text)
    assert not re.search(r"2⁻¹³ to 2⁻¹² .* subnormal ", text)


# ---------------------------------------------------------------------- steps


def test_steps_show_what_was_logged_and_no_more():
    """The log's seconds are counted from its beginning; a resumed run's first step may lie before the last one."""
    text = Steps([{"step": 5, "loss": 1.5}, {"step": 6, "loss": 1.25}]).to_html()
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["Loss"] and "Skipped steps" not in text
    assert figures_of(steps().to_html())["steps"] == ("300", "3 skipped") and Steps([])._sections() == []
    seconds = [10.0, 10.5, 11.0, 11.5, None, 99.0, 3.0, 3.5, 9.0]
    found = figures_of(Steps([{"step": i, "seconds": each} for i, each in enumerate(seconds)]).to_html())
    assert found["seconds per step"] == ("0.5", "median")


@pytest.mark.parametrize("values", [[1e17], [1e17, 1e17], [-1.7e308, 1.7e308], [0.0, 5e-323], [5e-324], [math.inf]], ids=str)
def test_extreme_values_are_a_page(values):
    names = ("loss", "scale", "grad_norm", "seconds")
    text = Steps([{"step": min(i, each), **dict.fromkeys(names, each)} for i, each in enumerate(values)]).to_html()
    assert not re.search(r'd="[^"]*(nan|inf)', text) and ">Steps</h2>" in text


def test_the_span_of_a_figure_is_that_of_finite_values():
    losses = [math.nan, 3.0, 2.0, math.inf, math.nan]
    text = Steps([{"step": i, "loss": loss} for i, loss in enumerate(losses)]).to_html()
    assert figures_of(text)["last loss"] == ("NaN", "2 to 3")


def test_skipped_steps_are_listed_with_why_and_why_the_last_was_not_taken_stands_first(tmp_path):
    text = steps().to_html()
    assert re.findall(r'data-key="(\d+)\.0">\d+</th>', text) == ["40", "41", "200"] and "broken = true" in text
    said = [{"step": 1, "taken": False, "why": "gradients of fc"}, {"step": 2, "taken": False, "error": "E", "why": "no"}]
    assert re.findall(r'<td class="text">(.*?)</td>', Steps(said).to_html()) == ["gradients of fc", "E"]
    (tmp_path / "steps.csv").write_text("step,taken,error\n1,1,\n2,0,NonFiniteLossError: 'fc' gives inf\n")
    notes = [block for block in read_run(tmp_path)._sections()[0].blocks if getattr(block, "kind", "") == "Error"]
    assert [each.sentences for each in notes] == [["The last step was not taken: NonFiniteLossError: 'fc' gives inf"]]
