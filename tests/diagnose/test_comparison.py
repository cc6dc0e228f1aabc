"""The result of a comparison: what it says, and what is written of it and read."""

from __future__ import annotations

import json
import math

import pytest

from mxmp.diagnose import Comparison, NodeComparison, OutputComparison
from mxmp.errors import CheckpointError

FC = NodeComparison("fc", "FullyConnected", "float16", 1e-4, 2e-4, 1.5e-4, 3e-4, 4e-4)
SQUARE = NodeComparison("square", "elemwise_mul", "float16", math.inf, math.inf, math.inf, 1e-3, math.inf)
MEAN = NodeComparison("mean", "mean", "float32", 0.0, math.inf, 0.0, None, None)
FOUND = Comparison("O1", (SQUARE, FC, MEAN), (OutputComparison("mean_output", math.inf),))
HEALTHY = Comparison("O1", (FC,), (OutputComparison("fc_output", 2e-4),))


def test_json_has_infinity_as_text_and_null_for_what_was_not_measured():
    found = json.loads(FOUND.to_json())
    assert found["outputs"] == [{"name": "mean_output", "error": "inf", "is_finite": True}]
    assert found["rows"][0]["contribution"] == "inf" and found["rows"][2]["gradient_own"] is None


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "compare.json"
    FOUND.save(str(path))
    assert Comparison.from_json(path.read_text()) == FOUND == Comparison.from_dict(FOUND.to_dict())


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder .*nowhere"):
        FOUND.save(str(tmp_path / "nowhere" / "compare.json"))


def test_the_summary_names_what_contributes_most():
    assert HEALTHY.summary == [
        "The output 'fc_output' is off by 0.0002.",
        "'fc' (FullyConnected) contributes most: alone, it would move the outputs by 0.00015.",
    ]


def test_the_summary_names_where_infinity_begins():
    assert FOUND.summary == [
        "The output 'mean_output' is off by ∞.",
        "Not finite forward, where float32 is, by itself: 'square' (elemwise_mul); 1 node gets it from others.",
        "Not finite backward, where float32 is, by itself: no node; 1 node gets it from others.",
    ]
    assert not SQUARE.is_finite and FC.is_finite


def test_the_summary_says_if_nothing_is_rounded():
    found = Comparison("O1", (NodeComparison("a", "sum", "float32", 0.0, 0.0, 0.0),), ())
    assert found.summary == ["No node makes an error of its own."]


def test_an_output_that_float32_makes_nan_is_no_output_without_an_error():
    nothing = NodeComparison("a", "sum", "float32", 0.0, 0.0, 0.0)
    found = Comparison("O1", (nothing,), (OutputComparison("a_output", 0.0, is_finite=False),))
    (text,) = found.summary
    assert text.startswith("The output 'a_output' holds inf or NaN in float32 itself") and "`explain`" in text
    assert Comparison.from_json(found.to_json()) == found


def test_an_older_file_is_read_without_loss_scale_and_what_is_known_of_float32s_outputs():
    values = HEALTHY.to_dict()
    del values["outputs"][0]["is_finite"], values["loss_scale"], values["lowered_from"]
    assert Comparison.from_dict(values) == HEALTHY


def test_the_table_has_gradients_only_if_they_were_compared():
    plain = Comparison("O1", (NodeComparison("fc", "FullyConnected", "float16", 1e-4, 2e-4, 1e-4),), ())
    assert "gradient" not in str(plain) and "gradient" in str(FOUND)
    assert "∞" in str(FOUND) and "0.015 %" in str(FOUND)


def test_worst_leaves_rows_out():
    assert "1 of 3 operators" in FOUND.text(worst=1) and "of 3 operators" not in FOUND.text()


def test_names_are_no_markup():
    row = NodeComparison("[red]a[/red]\x1b[31m", "sum", "float16", 1.0, 1.0, 1.0)
    assert "[red]a[/red]\\x1b[31m" in str(Comparison("O1", (row,), ()))
