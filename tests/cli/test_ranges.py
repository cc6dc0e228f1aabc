"""``mxmp ranges``: magnitudes on a batch, the worst first."""

from __future__ import annotations

import json
import shlex

import mxnet as mx
import numpy as np
import pytest

from mxmp.cli import diagnose as work
from mxmp.diagnose import measure_gradients, measure_ranges
from mxmp.symbol import convert_checkpoint
from tests.cli.checkpoints import SHAPE, SHAPES, mxmp, network, params, save, table

DATA = np.random.RandomState(0).randn(*SHAPES["data"]).astype(np.float32)


@pytest.fixture
def batch(tmp_path):
    file = tmp_path / "batch.npz"
    np.savez(file, data=DATA, softmax_label=np.float32([1, 4]))
    return file


def test_the_ranges_of_a_batch_are_those_measured_the_largest_first(tmp_path, batch):
    out, err = mxmp("ranges", save(tmp_path), 3, "--data", batch)
    assert err == "" and str(batch) in out
    expected = measure_ranges(network(), *params(network()), [{"data": mx.nd.array(DATA)}])
    rows = {row[0]: float(row[1].replace(",", "")) for row in table(out) if len(row) == 3 and row[0] != "tensor"}
    assert rows.keys() == expected.keys()
    assert list(rows.values()) == sorted(rows.values(), reverse=True)
    assert rows["fc_output"] == pytest.approx(expected["fc_output"], rel=5e-3)


def test_what_leaves_float16_is_marked(tmp_path):
    out, _ = mxmp("ranges", save(tmp_path, fc_bias=1e6), 3, "--shape", SHAPE)
    assert "random numbers from 0 to 1" in out
    notes = {row[0]: row[3] for row in table(out) if len(row) == 4}
    assert notes["fc_output"] == "beyond float16" and notes["data"] == ""
    near, _ = mxmp("ranges", save(tmp_path, fc_bias=5e4), 3, "--shape", SHAPE)
    (note,) = (row[3] for row in table(near) if row[0] == "fc_output")
    assert note.startswith("near its end")


@pytest.mark.parametrize("values", [{}, {"fc_bias": 5e4}, {"conv_bias": -1e6, "bn_gamma": 1e-6}], ids=str)
def test_the_options_that_it_prints_convert_as_the_ranges_do(values, tmp_path):
    prefix = save(tmp_path, **values)
    out, _ = mxmp("ranges", prefix, 3, "--shape", SHAPE)
    found = json.loads(mxmp("ranges", prefix, 3, "--shape", SHAPE, "--json")[0])
    (options,) = [shlex.split(row[1]) for row in table(out) if row[0] == "for mxmp convert"] or [[]]
    assert options[1::2] == found["keep_float32"] and bool(options) == bool(values)
    mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--shape", SHAPE, *options)
    convert_checkpoint(prefix, 3, str(tmp_path / "ranged"), "O2", SHAPES, ranges=found["ranges"])
    held = [json.loads(mxmp("inspect", tmp_path / name, "--shape", SHAPE, "--json")[0])["rows"] for name in ("out", "ranged")]
    assert [(row["name"], row["precision"]) for row in held[0]] == [(row["name"], row["precision"]) for row in held[1]]


def test_json_has_the_numbers(tmp_path, batch):
    out, _ = mxmp("ranges", save(tmp_path), 3, "--data", batch, "--shape", SHAPE, "--gradients", "--json")
    found = json.loads(out)
    given = {"data": mx.nd.array(DATA), "softmax_label": mx.nd.array([1, 4])}
    expected = measure_gradients(network(), *params(network()), [given])
    assert found["data"] == str(batch) and found["largest_of_float16"] == 65504
    assert found["gradients"].keys() == expected.keys()
    assert found["gradients"]["fc_output"]["largest"] == pytest.approx(expected["fc_output"].largest, rel=1e-5)


def test_the_worst_are_listed_and_how_many_more_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_MOST", 3)
    short, _ = mxmp("ranges", save(tmp_path), 3, "--shape", SHAPE, "--gradients")
    whole, _ = mxmp("ranges", save(tmp_path), 3, "--shape", SHAPE, "--gradients", "--all")
    shown, all_rows = ([row for row in table(out) if len(row) > 2 and row[0] != "tensor"] for out in (short, whole))
    count = len(measure_ranges(network(), *params(network()), [{"data": mx.nd.array(DATA)}]))
    assert [row[:2] for row in shown[:3]] == [row[:2] for row in all_rows[:3]] and len(shown) < len(all_rows)
    assert f"3 of {count} tensors; --all lists more" in short and "--all" not in whole and len(all_rows) > count


@pytest.mark.parametrize("command", [("ranges", "--gradients"), ("compare",)])
def test_a_label_of_any_name_is_zeros_unless_it_is_given(tmp_path, command):
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=5, name="fc")
    args = {"fc_weight": mx.nd.ones((5, 3)), "fc_bias": mx.nd.zeros(5)}
    symbol = mx.sym.SoftmaxOutput(out, mx.sym.var("target"), name="softmax")
    mx.model.save_checkpoint(str(tmp_path / "net"), 1, symbol, args, {})
    name, *options = command
    printed, _ = mxmp(name, tmp_path / "net", 1, "--shape", "data:2,3", *options)
    assert "fc" in printed
