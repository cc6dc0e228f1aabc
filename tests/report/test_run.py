"""A run read from its files, and its page: what is there is shown, what is missing said, what is broken named."""

import csv
import dataclasses
import html
import json
import math
import re

import pytest

from mxmp.diagnose import Explanation
from mxmp.errors import CheckpointError
from mxmp.report import RUN_FILES, read_run
from mxmp.report.gradients import Gradients
from mxmp.report.steps import Steps
from tests import messages
from tests.display.runs import compare, gradients, report, steps, whole

NAMES = ("step", "seconds", "taken", "scale", "next_scale", "grad_norm", "loss")


def run_in(folder):
    run = folder / "resnet"
    run.mkdir()
    for name, part in {"report": report(), "gradients": gradients(), "compare": compare()}.items():
        part.save(run / f"{name}.json")
    with open(run / "steps.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, (*NAMES, "error"), extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**row, "taken": int(row["taken"])} for row in steps().steps)
    Explanation("data", "data: input 'x' holds NaN. Look at how it is read.").save(run / "explanation.json")
    return run


@pytest.fixture
def folder(tmp_path):
    return run_in(tmp_path)


def test_a_whole_run_is_read_and_has_a_page_with_a_section_for_each_part(folder):
    run = read_run(folder)
    assert (run.name, run.missing) == ("resnet", ())
    assert (run.report, run.gradients, run.comparison, run.explanation.kind) == (report(), gradients(), compare(), "data")
    assert run.compare == compare().to_dict()
    assert len(run.steps) == 300 and [run.steps[number]["taken"] for number in (0, 40)] == [True, False]
    assert run.steps[40]["why"] is None and run.steps[3]["loss"] == 1.25
    titles = "Summary", "Network", "Steps", "Gradients by layer", "Errors by layer", "Operators"
    assert all(f">{title}</h2>" in run.to_html() for title in titles) and "<title>resnet</title>" in run.to_html()
    assert "<title>Mine</title>" in run.to_html(title="Mine")


MARKS = {
    "report.json": ">Operators</h2>",
    "gradients.json": ">Gradients by layer</h2>",
    "compare.json": ">Errors by layer</h2>",
    "steps.csv": ">Steps</h2>",
    "explanation.json": "holds NaN",
}


@pytest.mark.parametrize("name", RUN_FILES)
def test_each_file_may_be_missing_may_be_all_that_there_is_and_may_have_another_name(folder, name):
    one = read_run(folder / name)
    assert set(one.missing) == set(RUN_FILES) - {name, "explanation.json"} and one.name == name
    assert one.to_html().startswith("<!DOCTYPE html>")
    other = (folder / name).rename(folder.parent / f"mine.{name.rpartition('.')[2]}")  # it is known by its content
    assert dataclasses.replace(read_run(other), name=name) == one
    rest, text = read_run(folder), read_run(folder).to_html()
    assert rest.missing == ((name,) if name != "explanation.json" else ())
    assert [file for file, mark in MARKS.items() if mark not in text] == [name]


def changed(record, **changes):
    return json.dumps({**record.to_dict(), **changes})


BROKEN = {  # a file, its content, and what is wrong with it
    "no JSON": ("report.json", "{", "it is no JSON"),
    "a list": ("report.json", "[1]", "expected 'record': 'report', found None"),
    "a name": ("report.json", changed(report(), rows=[{"name": 1}]), "rows[0].name is 1; expected text"),
    "a count": ("report.json", changed(report(), casts=10**400), "casts is 1000...; expected a whole number"),
    "another record": ("gradients.json", changed(compare()), "expected 'record': 'gradients', found 'comparison'"),
    "a version": ("gradients.json", changed(gradients(), version=3), "has version 3; this mxmp reads version 1"),
    "counts": ("gradients.json", changed(gradients(), layers={"a": {"counts": {"x": 1}}}), "layers['a'].counts has the key 'x'"),
    "an error": ("compare.json", changed(compare(), outputs=[{"name": "o", "error": []}]), "outputs[0].error is []"),
    "other columns": ("steps.csv", "a,b\n1,2\n", "no column 'step'"),
    "no columns": ("steps.csv", "", "no column 'step'"),
    "a loss": ("steps.csv", "step,loss\n1,x\n", "line 2 has loss='x'; expected a number"),
    "taken": ("steps.csv", "step,taken\n1,maybe\n", "line 2 has taken='maybe'; expected 1 or 0"),
    "no step": ("steps.csv", "step,loss\n,1\n", "line 2 has no step"),
    "a cut line": ("steps.csv", "step,loss,why\n1,2,\n2,1.", "line 3 is cut: it has fewer columns than the first"),
    "bytes": ("report.json", b"step\n\xff\xfe\x00", "it is no text in UTF-8"),
    "bytes of steps": ("steps.csv", b"step\n\xff\xfe\x00", "it is no text in UTF-8"),
}


def read_broken(name, content):
    def call(folder):
        (run_in(folder) / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        read_run(folder / "resnet")

    return call


def read_folder(path):
    path.mkdir()
    read_run(path.parent)


TABLE = {
    **{f"{name}: {what}": (read_broken(name, content), CheckpointError, f"...{name}: ...{text}...") for what, (name, content, text) in BROKEN.items()},
    "a folder in a file's place": (lambda path: read_folder(path / "report.json"), CheckpointError, ".../report.json cannot be read: Is a directory..."),
    "an empty folder": (read_run, CheckpointError, "...: none of report.json, explanation.json, steps.csv, gradients.json, compare.json is in ..."),
    "no folder": (lambda path: read_run(path / "missing"), CheckpointError, ".../missing: there is no such folder or file..."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)


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
    assert [(each["step"], each["loss"], each["taken"]) for each in read_run(folder).steps] == found


def test_a_run_of_no_steps_and_no_operators_is_a_page(folder):
    (folder / "steps.csv").write_text("step,loss\n")
    report(rows=()).save(folder / "report.json")
    Gradients({}).save(folder / "gradients.json")
    compare(rows=(), outputs=()).save(folder / "compare.json")
    assert ">Gradients by layer</h2>" in read_run(folder).to_html()


def test_figures_and_warnings_of_all_parts_come_first_and_errors_follow_the_network():
    run = whole(comparison=compare(rows=compare().rows[::-1]))
    assert run.warnings == ["Slow here.", "No rule for Custom: left as they were."]
    assert run._lead == "param=float32,compute=float16,output=float32"
    first, mark, rest = run.to_html().partition('<section id="network"')
    for each in ("Slow here.", "become 0 in float16", "operators in float16", "seconds per step"):
        assert each in first and each not in rest
    assert "<dt>last scale</dt><dd><b>8,192</b> <span>256 to 8,192</span>" in first
    assert "from the network's inputs to its outputs" in html.unescape(rest)


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


def test_skipped_steps_are_listed_with_why_and_why_the_last_was_not_taken_stands_first(tmp_path):
    text = steps().to_html()
    assert re.findall(r'data-key="(\d+)\.0">\d+</th>', text) == ["40", "41", "200"] and "broken = true" in text
    said = [{"step": 1, "taken": False, "why": "gradients of fc"}, {"step": 2, "taken": False, "error": "E", "why": "no"}]
    assert re.findall(r'<td class="text">(.*?)</td>', Steps(said).to_html()) == ["gradients of fc", "E"]
    (tmp_path / "steps.csv").write_text("step,taken,error\n1,1,\n2,0,NonFiniteLossError: 'fc' gives inf\n")
    notes = [block for block in read_run(tmp_path)._sections()[0].blocks if getattr(block, "kind", "") == "Error"]
    assert [each.sentences for each in notes] == [["The last step was not taken: NonFiniteLossError: 'fc' gives inf"]]
