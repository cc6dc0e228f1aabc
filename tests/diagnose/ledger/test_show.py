"""A ledger as text."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from mxmp.diagnose import Ledger
from mxmp.errors import TrainerError
from tests.diagnose.ledger.runs import Run, seen


def text_of(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def rows(text):
    """Return the cells of a printed table's rows by the first of them."""
    found = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {cells[0]: cells[1:] for cells in found}


def test_the_table_has_a_row_for_each_parameter_those_that_lose_most_first():
    ledger = seen({"a_weight": np.float64([1, 2]), "b_weight": np.float64([0, 2.0**-30]), "c_weight": np.ones(4)})
    found = rows(str(ledger))
    assert list(found)[0] == "b_weight"
    assert found["b_weight"] == ["2", "50.0%", "50.0%", "9.54e-07", "0", "-"]
    assert found["c_weight"] == ["4", "0.0%", "0.0%", "1.02e+03", "0", "-"]


def test_the_summary_says_it_in_sentences():
    run = Run({"w": (4,)}, loss_scale=4.0)
    ledger = Ledger(every=1).attach(run.trainer)
    assert ledger.summary == "No step was seen yet."
    run.step({"w": np.float16([0, 1, 2.0**-20, 4])})
    run.step({"w": np.inf})
    assert ledger.summary.startswith(
        "1 of 2 steps were skipped. Of the gradients' elements 25.0% were 0 and 25.0% subnormal in float16. "
        "Scales that fit all layers: 2**13 at the most; the last was 4."
    )
    assert ledger.summary in str(ledger)


def test_a_run_without_a_sample_says_so():
    run = Run({"w": (4,)}, loss_scale=4.0)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": np.inf})
    assert ledger.summary.startswith("1 of 1 steps were skipped. No step was taken, so no gradients were counted.")
    assert rows(str(ledger))["w"] == ["4", "-", "-", "-", "1", "-"]


def test_float32_gradients_are_said_to_be():
    run = Run({"w": (2,)}, {"w": "float32"}, loss_scale=1.0)
    ledger = Ledger(every=1).attach(run.trainer)
    run.step({"w": np.float32([1, 1e-9])})
    assert "They were computed in float32, where that is no loss; float16 would lose it." in ledger.summary


def test_long_ledgers_show_what_matters_and_say_how_many_rows_are_left_out():
    text = str(seen({f"w{n}": np.ones(1) for n in range(25)}))
    assert len(rows(text)) == 20 and "5 more layers not shown." in text


def test_two_runs_are_compared_layer_by_layer():
    first = seen({"same": np.ones(2), "other": np.float64([0, 0, 0, 1])})
    second = seen({"same": np.ones(2), "other": np.ones(4), "new": np.ones(1)})
    found = rows(first.compare(second))
    assert list(found) == ["new", "other", "same"]
    assert found["other"][0] == "75.0% / 0.0%" and found["new"][0] == "- / 0.0%"
    lines = first.compare(second).splitlines()
    assert "Only the other run has 'new'." in lines
    assert lines[-1].startswith("Scales that fit: 2**13 at the most in this run, 2**13 at the most in the other.")


def test_runs_of_other_layers_dtypes_and_samples_are_told_apart():
    first, second = seen({"a": np.ones(2)}), seen({"b": np.ones(2)}, dtype="float32")
    assert "The runs have no layer in common: parameters are compared by name." in first.compare(second)
    other = Ledger(every=7, dtype="bfloat16").attach(Run({"a": (2,)}).trainer)
    text = first.compare(other)
    assert "Shares are those of float16 in this run and of bfloat16 in the other." in text
    assert "The other run has no sample: none of its steps (0) was taken." in text
    assert "one in 1." in " ".join(text.split()) and "one in 7" in text


def test_one_of_a_thing_is_said_in_the_singular():
    assert "float16, 1 sample in 1 step, one in 1" in str(seen({"w": np.ones(1)}))
    assert "in 1 sampled step, one in 1." in seen({"w": np.ones(1)}).to_html()
    run = Run({"w": (1,)}, loss_scale=1024.0)
    ledger = Ledger(every=1).attach(run.trainer)
    for scale in (1024.0, 2.0, 2.0, 2.0, 2.0):
        run.trainer.loss_scale = scale
        run.step({"w": 1.0 if scale == 1024 else np.nan})
    assert "float16, 1 sample in 5 steps, one in 1" in str(ledger)
    assert "for 1 step was taken at larger ones" in ledger.advice().sentences[0]
    assert "1 more layer not shown." in str(seen({f"w{n}": np.ones(1) for n in range(21)}))


def test_what_is_no_ledger_is_not_compared():
    with pytest.raises(TrainerError, match="other is a dict; expected a Ledger"):
        Ledger().compare({})


def test_names_cannot_break_a_table():
    text = str(seen({"w\x1b[31m\n": np.ones(1)}))
    assert "\x1b" not in text and "w\\x1b[31m\\n" in text


def test_repr_says_what_was_seen():
    assert repr(seen({"w": np.ones(1)})) == "Ledger(every=1, dtype='float16', steps=1, sampled=1)"
