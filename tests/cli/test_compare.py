"""``mxmp compare``: a checkpoint's network beside float32."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import Comparison, compare
from mxmp.symbol import load_checkpoint
from tests.cli.checkpoints import SHAPE, mxmp, save, table
from tests.cli.test_errors import refused
from tests.cli.test_tune import contents

DATA = np.random.RandomState(0).randn(2, 3, 8, 8).astype(np.float32)


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.fixture
def batch(tmp_path):
    path = str(tmp_path / "batch.npz")
    np.savez(path, data=DATA, softmax_label=np.array([0, 1]))
    return path


def cells(out):
    return {row[0]: row[1] for row in table(out) if len(row) == 2}


def test_compare_lists_the_worst_operators_and_says_that_inputs_are_random(prefix, tmp_path):
    before = contents(tmp_path)
    out, _ = mxmp("compare", prefix, 3, "--shape", SHAPE, "--policy", "O2", "--worst", 2)
    assert contents(tmp_path) == before
    rows = [row for row in table(out) if len(row) == 6]
    assert rows[0][:3] == ["node", "operator", "precision"] and len(rows) == 3
    assert cells(out)["inputs"].startswith("random numbers from 0 to 1")
    assert "2 of 6 operators" in out and "contributes most" in out


def test_compare_takes_inputs_and_labels_from_a_file(prefix, batch):
    out, _ = mxmp("compare", prefix, 3, "--data", batch, "--json")
    given = {"data": mx.nd.array(DATA), "softmax_label": mx.nd.array([0, 1])}
    assert Comparison.from_json(out) == compare(tuple(load_checkpoint(prefix, 3)), given)
    assert Comparison.from_json(out).has_gradients
    out, _ = mxmp("compare", prefix, 3, "--data", batch)
    assert cells(out)["inputs"] == batch and "gradient, carried" in out


def test_compare_asks_for_the_policy_of_a_converted_checkpoint(prefix, tmp_path):
    mxmp("convert", prefix, 3, "--out", tmp_path / "low", "--policy", "O2", "--shape", SHAPE)
    match = "policy: the network is converted already, and its symbol does not say by which policy"
    refused(match, "compare", tmp_path / "low", 3, "--shape", SHAPE)
    assert "contributes most" in mxmp("compare", tmp_path / "low", 3, "--shape", SHAPE, "--policy", "O2")[0]


def test_compare_writes_json(prefix, tmp_path):
    file = tmp_path / "found.json"
    out, _ = mxmp("compare", prefix, 3, "--shape", SHAPE, "-o", file)
    assert cells(out)["written"] == str(file) and json.loads(file.read_text())["record"] == "comparison"
    refused("found.json: it exists", "compare", prefix, 3, "--shape", SHAPE, "-o", file)
    mxmp("compare", prefix, 3, "--shape", SHAPE, "-o", file, "--force")


@pytest.mark.parametrize(
    "options, code, match",
    [
        ([], 2, "give --data, or --shape of every input"),
        (["--shape", SHAPE, "--data", "other.npz"], 2, "--data has shapes; leave --shape out"),
        (["--data", "nowhere.npz"], 2, "File 'nowhere.npz' does not exist"),
        (["--data", "text.npz"], 1, "text.npz: it is no .npz file with an array of numbers for each input; write one"),
        (["--data", "empty.npz"], 1, "empty.npz: it is no .npz file"),
        (["--data", "cut.npz"], 1, "cut.npz: it is no .npz file"),
        (["--data", "objects.npz"], 1, "objects.npz: it is no .npz file"),
        (["--data", "array.npy"], 1, "array.npy: it is no .npz file"),
        (["--data", "other.npz"], 1, "'other'"),
        (["--shape", "dota:2,3"], 1, "the network has no input 'dota'"),
        (["--shape", SHAPE, "--policy", "O0"], 1, "is float32, so there is nothing to compare"),
        (["--shape", SHAPE, "--policy", "O9"], 2, "unknown policy 'O9'"),
        (["--shape", SHAPE, "--worst", "0"], 2, "0 is not in the range"),
        (["--shape", SHAPE, "-o", "nowhere/found.json"], 1, "there is no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_compare_refuses(options, code, match, prefix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npz").write_text("nothing")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez(tmp_path / "objects.npz", data=np.array([{}], dtype=object))
    np.save(tmp_path / "array.npy", DATA)
    np.savez(tmp_path / "other.npz", data=DATA, other=DATA)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:100])
    assert "pickle" not in refused(match, "compare", prefix, 3, *options, code=code)
