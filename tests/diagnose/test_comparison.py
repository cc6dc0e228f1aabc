"""The result of a comparison: what it says, and what is written of it and read."""

from __future__ import annotations

import math

from mxmp.diagnose import Comparison, NodeComparison, OutputComparison
from mxmp.display import Lines

FC = NodeComparison("fc", "FullyConnected", "float16", 1e-4, 2e-4, 1.5e-4, 3e-4, 4e-4)
SQUARE = NodeComparison("square", "elemwise_mul", "float16", math.inf, math.inf, math.inf, 1e-3, math.inf)
MEAN = NodeComparison("mean", "mean", "float32", 0.0, math.inf, 0.0, None, None)
FOUND = Comparison("O1", (SQUARE, FC, MEAN), (OutputComparison("mean_output", math.inf),))
HEALTHY = Comparison("O1", (FC,), (OutputComparison("fc_output", 2e-4),))


def test_infinity_is_read_back():
    assert FOUND.to_dict()["outputs"] == [{"name": "mean_output", "error": "inf", "is_finite": True}]
    assert Comparison.from_json(FOUND.to_json()) == FOUND


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


def test_gradients_are_shown_only_if_they_were_compared():
    plain = Comparison("O1", (NodeComparison("fc", "FullyConnected", "float16", 1e-4, 2e-4, 1e-4),), ())
    assert "gradient" not in str(plain) and "gradient" in str(FOUND)
    assert "∞" in str(FOUND) and "0.015 %" in str(FOUND)


def test_names_are_no_markup():
    row = NodeComparison("[red]a[/red]\x1b[31m", "sum", "float16", 1.0, 1.0, 1.0)
    assert "[red]a[/red]\\x1b[31m" in str(Comparison("O1", (row,), ()))


def test_charts_follow_the_network_where_its_order_is_known():
    (section,) = FOUND.sections(order=["fc", "square", "mean"])
    chart = next(block for block in section.blocks if isinstance(block, Lines))
    assert chart.lines[0].values == [2e-4, math.inf, math.inf]
