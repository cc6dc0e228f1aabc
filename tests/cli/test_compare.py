"""``mxmp compare``: a checkpoint's network beside float32."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp.diagnose import Comparison, compare
from mxmp.symbol import load_checkpoint
from tests.cli.checkpoints import SHAPE, contents, mxmp, save, table

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


def test_compare_takes_the_policy_of_a_converted_checkpoint(prefix, tmp_path):
    mxmp("convert", prefix, 3, "--out", tmp_path / "low", "--policy", "O2", "--shape", SHAPE)
    assert "contributes most" in mxmp("compare", tmp_path / "low", 3, "--shape", SHAPE, "--policy", "O2")[0]


def test_compare_writes_json(prefix, tmp_path):
    file = tmp_path / "found.json"
    for more in ([], ["--force"]):
        out, _ = mxmp("compare", prefix, 3, "--shape", SHAPE, "-o", file, *more)
        assert cells(out)["written"] == str(file) and json.loads(file.read_text())["record"] == "comparison"
