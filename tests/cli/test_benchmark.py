"""``mxmp benchmark``: from a checkpoint to times."""

import json

import pytest

from tests.cli.checkpoints import SHAPE, contents, mxmp, said, save, table
from tests.processors import NO_BFLOAT16

SHORT = ("--shape", SHAPE, "--seconds", "0.001")


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.mark.parametrize("options", [[], ["--training"]], ids=["inference", "training"])
def test_policies_that_benchmark_is_asked_for_have_a_row_each(options, prefix, tmp_path):
    before = contents(tmp_path)
    out, err = mxmp("benchmark", prefix, *SHORT, "--policy", "float32", "--policy", "O1", "--policy", "O2", *options)
    assert err == "" and contents(tmp_path) == before
    assert [row[0] for row in table(out) if len(row) == 5] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert ("training steps" in out) == bool(options) and said(out)["fastest"] in ("float32", "O1", "O2")


def test_without_a_policy_benchmark_has_those_of_the_processor(prefix, on_processor):
    on_processor(NO_BFLOAT16)
    out, _ = mxmp("benchmark", prefix, 3, *SHORT)
    assert [row[0] for row in table(out) if len(row) > 3] == ["policy", "float32"] and "The policy 'auto' takes" in out


def test_the_json_of_benchmark_has_the_same(prefix):
    options = "--policy", "O0", "--policy", "O2", "--output-dtype", "float32", "--json"
    found = json.loads(mxmp("benchmark", prefix, *SHORT, *options)[0])
    assert [row["policy"].partition(",")[0] for row in found["rows"]] == ["param=float32", "param=float16"]
    assert found["rows"][1]["emulated"] and found["record"] == "speed comparison"
