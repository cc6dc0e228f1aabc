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
        "Scales that fit: 2**"
    )
    assert "the last was 4." in ledger.summary and ledger.summary in str(ledger)


def test_long_ledgers_show_what_matters_and_say_how_many_rows_are_left_out():
    text = str(seen({f"w{n}": np.ones(1) for n in range(25)}))
    assert len(rows(text)) == 20 and "5 more layers are not shown." in text


def test_two_runs_are_compared_layer_by_layer():
    first = seen({"same": np.ones(2), "other": np.float64([0, 0, 0, 1])})
    second = seen({"same": np.ones(2), "other": np.ones(4), "new": np.ones(1)})
    found = rows(first.compare(second))
    assert list(found) == ["new", "other", "same"]
    assert found["other"][0] == "75.0% / 0.0%" and found["new"][0] == "- / 0.0%"


def test_what_is_no_ledger_is_not_compared():
    with pytest.raises(TrainerError, match="other is a dict; expected a Ledger"):
        Ledger().compare({})


def test_names_cannot_break_a_table():
    text = str(seen({"w\x1b[31m\n": np.ones(1)}))
    assert "\x1b" not in text and "w\\x1b[31m\\n" in text


def test_repr_says_what_was_seen():
    assert repr(seen({"w": np.ones(1)})) == "Ledger(every=1, dtype='float16', steps=1, sampled=1)"
