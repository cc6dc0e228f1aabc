"""``mxmp compare``, ``ranges``, ``doctor`` and ``report``: the tables, the JSON and the page."""

import json
import shlex

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import Comparison, Explanation, Ranges, compare, measure_gradients, measure_ranges
from mxmp.symbol import convert_checkpoint, load_checkpoint
from tests.cli.checkpoints import SHAPE, SHAPES, contents, mxmp, network, params, said, save, table
from tests.devices.machines import install_cards
from tests.display.runs import gradients, report
from tests.processors import EMULATED

DATA = np.random.RandomState(0).randn(*SHAPES["data"]).astype(np.float32)
BATCH = {"data": mx.nd.array(DATA), "softmax_label": mx.nd.array([1, 4])}


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.fixture
def batch(tmp_path):
    np.savez(tmp_path / "batch.npz", data=DATA, softmax_label=np.array([1, 4]))
    return str(tmp_path / "batch.npz")


# ---------------------------------------------------------------------- compare


def test_compare_lists_the_worst_operators_says_that_inputs_are_random_and_writes_json_alone(prefix, tmp_path):
    before, file = contents(tmp_path), tmp_path / "found.json"
    args = "compare", prefix, 3, "--shape", SHAPE, "--policy", "O2", "--worst", 2, "-o", file
    out, _ = mxmp(*args)
    rows = [row for row in table(out) if len(row) == 6]
    assert contents(tmp_path) == {**before, file: file.read_bytes()} and json.loads(file.read_text())["record"] == "comparison"
    assert rows[0][:3] == ["node", "operator", "precision"] and len(rows) == 3
    assert said(out)["inputs"].startswith("random numbers from 0 to 1") and said(out)["written"] == str(file)
    assert "2 of 6 operators" in out and "contributes most" in mxmp(*args, "--force")[0]


def test_compare_takes_inputs_and_labels_from_a_file(prefix, batch):
    found = Comparison.from_json(mxmp("compare", prefix, 3, "--data", batch, "--json")[0])
    assert found == compare(tuple(load_checkpoint(prefix, 3)), BATCH, "O2") and found.has_gradients
    out, _ = mxmp("compare", prefix, 3, "--data", batch)
    assert said(out)["inputs"] == batch and "gradient accumulated error" in out


# ---------------------------------------------------------------------- ranges


def test_the_ranges_of_a_batch_are_those_measured_the_largest_first(prefix, batch):
    out, err = mxmp("ranges", prefix, 3, "--data", batch)
    expected = measure_ranges((network(), *params(network())), [{"data": mx.nd.array(DATA)}])
    rows = {row[0]: float(row[1].replace(",", "")) for row in table(out) if len(row) == 3 and row[0] != "tensor"}
    assert err == "" and batch in out and rows.keys() == expected.keys()
    assert list(rows.values()) == sorted(rows.values(), reverse=True)
    assert rows["fc_output"] == pytest.approx(expected["fc_output"], rel=5e-3)


@pytest.mark.parametrize("bias, note", [(1e6, "beyond float16"), (5e4, "near its end")])
def test_ranges_mark_what_leaves_float16(bias, note, tmp_path):
    out, _ = mxmp("ranges", save(tmp_path, fc_bias=bias), 3, "--shape", SHAPE)
    notes = {row[0]: row[3] for row in table(out) if len(row) == 4}
    assert "random numbers from 0 to 1" in out and notes["data"] == "" and notes["fc_output"].startswith(note)


@pytest.mark.parametrize("values", [{}, {"fc_bias": 5e4}, {"conv_bias": -1e6, "bn_gamma": 1e-6}], ids=str)
def test_the_options_that_ranges_print_keep_in_float32_what_the_ranges_do(values, tmp_path):
    prefix = save(tmp_path, **values)
    args = "ranges", prefix, 3, "--shape", SHAPE
    found, options = json.loads(mxmp(*args, "--json")[0]), shlex.split(said(mxmp(*args)[0]).get("for mxmp convert", ""))
    assert options[1::2] == found["keep_float32"] and bool(options) == bool(values)
    mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--shape", SHAPE, *options)
    convert_checkpoint(prefix, 3, str(tmp_path / "ranged"), "O2", SHAPES, ranges=found["ranges"])
    held = [json.loads(mxmp("inspect", tmp_path / name, "--shape", SHAPE, "--json")[0])["rows"] for name in ("out", "ranged")]
    by_name, by_range = ({row["name"] for row in rows if row["precision"] == "float32"} for rows in held)
    assert by_range <= by_name and (len(by_range) > 1) == bool(values)  # but for softmax


def test_the_json_of_ranges_has_the_numbers(prefix, batch):
    found = json.loads(mxmp("ranges", prefix, 3, "--data", batch, "--shape", SHAPE, "--gradients", "--json")[0])
    expected = measure_gradients((network(), *params(network())), [BATCH])
    assert found["data"] == batch and found["gradients"]["layers"].keys() == expected.keys()
    counted = Ranges.from_dict(found).gradients["fc_output"]
    assert counted.total == expected["fc_output"].total
    assert counted.largest == pytest.approx(expected["fc_output"].largest, rel=1e-5)


def test_the_twenty_worst_ranges_are_listed_and_how_many_more_there_are(tmp_path):
    data = mx.sym.var("data")
    for number in range(25):
        data = mx.sym.relu(data, name=f"relu{number}")
    mx.model.save_checkpoint(str(tmp_path / "net"), 0, data, {}, {})
    args = "ranges", tmp_path / "net", 0, "--shape", "data:2,3"
    short, whole = mxmp(*args)[0], mxmp(*args, "--all")[0]
    shown, all_rows = ([row for row in table(out) if row[0].startswith("relu")] for out in (short, whole))
    assert len(all_rows) == 25 and shown == all_rows[: len(shown)]
    assert "20 of 26 tensors" in short and said(short)["--all"] == "lists all tensors" and "--all" not in whole


@pytest.mark.parametrize("command", [("ranges", "--gradients"), ("compare",)])
def test_a_label_of_any_name_is_zeros_unless_it_is_given(tmp_path, command):
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc")
    symbol = mx.sym.SoftmaxOutput(out, mx.sym.var("target"), name="softmax")
    params = {"fc_weight": mx.nd.ones((5, 3)), "fc_bias": mx.nd.zeros(5)}
    mx.model.save_checkpoint(str(tmp_path / "net"), 1, symbol, params, {})
    assert "fc" in mxmp(command[0], tmp_path / "net", 1, "--shape", "data:2,3", *command[1:])[0]


# ---------------------------------------------------------------------- doctor

A100, H100 = ("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")


@pytest.fixture
def machine(tmp_path, monkeypatch, on_processor):
    """Return a function that prints the diagnosis of a machine with cards, whose MXNet has CUDA or not."""

    def run(*args, cards=(), cuda=True, code=0):
        args = args if "--policy" in args else (*args, "--policy", "O1")
        install_cards(tmp_path, monkeypatch, cards, cuda)
        on_processor(EMULATED)
        return mxmp("doctor", *args, code=code)[0]

    return run


def test_each_row_of_doctor_is_what_was_found_and_what_to_do_and_the_end_what_to_use(machine):
    out = machine(cards=[A100, H100])
    rows, gpus = {row[0]: row[1:] for row in table(out)}, [row[1:] for row in table(out) if row[0] == "GPU"]
    assert rows["subject"] == ["finding", "what to do"] and rows["MXNet"][0].endswith(mx.libinfo.find_lib_path()[0])
    assert rows["MXNET_SAFE_ACCUMULATION"][1].startswith("Set it to 1: softmax, LayerNorm and norm in float16")
    assert gpus[0] == ["GPU 0 (NVIDIA A100), compute capability 8.0: float16 runs on its tensor cores.", ""]
    assert gpus[1][1].startswith("Build MXNet for this card")
    used = "float16 runs in hardware here: GPU 0 (NVIDIA A100). Use mxmp.gluon.convert(net, 'O1')"
    assert used in out.splitlines()[-1]


def test_the_exit_code_of_doctor_is_1_where_no_device_runs_the_policy(machine):
    last = machine(cards=[H100], code=1).splitlines()[-1]
    assert "float16 does not run in hardware on this machine. Use float32, MXNet's default, to train here" in last
    assert "float32 runs in hardware here" in machine("--policy", "O0", cards=[H100])
    assert [row[0] for row in table(machine(cuda=False, code=1)) if row[2:] and row[2]] == ["subject", "CPU"]
    found = json.loads(machine("--json", cards=[H100], code=1))
    assert (found["dtype"], found["ok"], found["devices"]) == ("float16", False, [])
    advice = [(each["ok"], each["advice"][:11]) for each in found["findings"] if each["subject"] == "GPU"]
    assert advice == [(False, "Build MXNet")]


def test_doctor_breaks_no_name_in_a_pipe_and_shows_names_as_they_are(machine):
    """Rich would take some for markup."""
    out = machine(cards=[("[red]:smile:", "8.0")])
    assert "GPU 0 ([red]:smile:), compute" in out and mx.libinfo.find_lib_path()[0] in out


# ---------------------------------------------------------------------- report


def test_a_page_is_written_over_another_and_its_warnings_and_verdict_are_printed(tmp_path):
    page, run = tmp_path / "page.html", tmp_path / "run"
    page.write_text("mine")
    run.mkdir()
    report(without_rule=("Custom", "Look\x1b")).save(run / "report.json")
    args = "report", run, "-o", page, "--title", "My run", "--force"
    warning = ["warning", "No rule for Custom, Look\\x1b: left as they were."]
    assert table(mxmp(*args)[0]) == [["written", str(page)], ["shown", "report.json"], warning]
    assert page.read_text().startswith("<!DOCTYPE html>") and "<title>My run</title>" in page.read_text()
    gradients().save(run / "gradients.json")
    Explanation("data", "'data' holds NaN in row 3.").save(run / "explanation.json")
    lines = table(mxmp(*args)[0])
    assert ["shown", "report.json, explanation.json, gradients.json"] in lines and "All gradients" in page.read_text()
    assert warning in lines and ["explanation", "data: 'data' holds NaN in row 3."] in lines


def test_every_file_that_a_command_writes_is_shown(prefix, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shape = "--shape", SHAPE
    for name, args in {
        "inspected": ("inspect", prefix, *shape),
        "compared": ("compare", prefix, *shape),
        "ranges": ("ranges", prefix, *shape, "--gradients"),
        "times": ("benchmark", prefix, *shape, "--policy", "O0", "--seconds", "0.001"),
        "machine": ("doctor", "--policy", "O0"),
    }.items():
        printed, _ = mxmp(*args, "--json", "-o", run / f"{name}.json")
        assert printed == (run / f"{name}.json").read_text()
    shown = said(mxmp("report", run, "-o", tmp_path / "page.html")[0])["shown"].split(", ")
    assert sorted(shown) == sorted(path.name for path in run.iterdir())
    page = (tmp_path / "page.html").read_text()
    titles = "Network", "Errors by layer", "Largest magnitudes", "Gradients by layer", "Policies in turns", "This machine"
    assert all(f">{title}</h2>" in page for title in titles) and ">O2</p>" in page
