"""``mxmp benchmark``: from a checkpoint to times under several policies."""

from __future__ import annotations

import json

import pytest

from mxmp.tune import benchmark as module
from tests.cli.checkpoints import SHAPE, contents, mxmp, save, table

QUICK = ("--shape", SHAPE, "--seconds", "0.001")


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.mark.parametrize("options", [[], ["--objective", "inference"], ["--for-inference"]], ids=" ".join)
def test_policies_that_are_asked_for_have_a_row_each(options, prefix, tmp_path):
    before = contents(tmp_path)
    out, err = mxmp("benchmark", prefix, *QUICK, "--policy", "O1", "--policy", "O2", *options)
    assert err == "" and contents(tmp_path) == before
    names = [row[0] for row in table(out) if len(row) == 5]
    assert names == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert ("BatchNorm folded" in out) == ("--for-inference" in options)


def test_without_bfloat16_float32_stands_alone_and_a_note_says_what_to_do(prefix, monkeypatch):
    monkeypatch.setattr(module, "runs_bfloat16", lambda: False)
    out, _ = mxmp("benchmark", prefix, 3, *QUICK)
    assert [row[0] for row in table(out) if len(row) == 3] == ["policy", "float32"]
    assert "--policy O2 emulates float16" in out


def test_json_has_the_same(prefix):
    found = json.loads(mxmp("benchmark", prefix, *QUICK, "--policy", "O2", "--keep-float32", "fc", "--json")[0])
    assert [row["policy"] for row in found["rows"]] == ["float32", "O2"]
    assert found["objective"] == "training" and found["rows"][1]["emulated"] and found["rows"][1]["error"] > 0
