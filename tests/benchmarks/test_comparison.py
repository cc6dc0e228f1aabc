"""What is made of the times of several forms: base, best, speed, JSON, table, plot."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from benchmarks import comparison, tables
from benchmarks.comparison import FLOAT32, OWN, PEER, Comparison
from tests.benchmarks.columns import SCATTERED, column, compared

PNG = b"\x89PNG\r\n\x1a\n"


def text_of(table):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_base_is_the_fastest_float32_of_a_front():
    slow, fast = (column("gluon", FLOAT32, "float32", seconds, str(seconds)) for seconds in (3, 2))
    found = Comparison([slow, fast, column("symbolic", FLOAT32, "float32", 1), column("gluon", OWN, "float32", 1)])
    assert found.base("gluon") is fast
    assert found.speed(slow) == pytest.approx(2 / 3)
    assert found.speed(found.columns[-1]) == 2


def test_best_leaves_out_what_did_not_run_and_other_dtypes():
    found = compared(own=0.5, peer=None)
    assert found.best("gluon", PEER) is None
    assert found.best("gluon", OWN, "bfloat16").dtype == "bfloat16"
    assert found.best("gluon", OWN, "float16") is None
    assert found.speed(found.best("gluon", PEER)) is None


def test_speed_is_unknown_without_float32():
    only = column("gluon", OWN, "float32", 1)
    assert Comparison([only]).speed(only) is None and not Comparison([only]).noisy("gluon")


def test_noisy_looks_at_float32_alone():
    assert compared(own=0.5, rounds=SCATTERED).noisy("gluon")
    steady = column("gluon", FLOAT32, "float32", 1), column("gluon", OWN, "bfloat16", 1, rounds=SCATTERED)
    assert not Comparison(steady).noisy("gluon")


def test_json_has_summary_speed_and_reasons():
    found = Comparison(
        [
            column("gluon", FLOAT32, "float32", 2.0),
            column("gluon", OWN, "bfloat16", 1.0, error=0.004, notes={"skipped": 0}),
            column("gluon", PEER, "bfloat16", None, missing="fails: badly"),
        ]
    )
    base, own, peer = json.loads(json.dumps(comparison.to_json(found)))
    assert (base["median"], base["rounds"], base["speed"]) == (2.0, 3, 1.0)
    assert base["lower"] == pytest.approx(1.99) and base["upper"] == pytest.approx(2.01)
    assert base["scatter"] == pytest.approx(0.01)
    assert own["speed"] == 2.0 and own["error"] == 0.004 and own["notes"] == {"skipped": 0}
    assert len(own["seconds"]) == 3 and own["noisy"] is False
    assert peer["missing"] == "fails: badly" and "median" not in peer and "seconds" not in peer
    assert found.columns[2].failed and not found.columns[1].failed


def test_table_has_a_row_for_each_network_and_their_mean():
    found = {"one": compared(own=0.5, peer=1.0), "two": compared(own=0.125, peer=None, rounds=SCATTERED)}
    shown = text_of(tables.table(found, "gluon", "title"))
    one, two, mean = (line for line in shown.splitlines() if line.startswith("│"))
    assert "1000.0" in one and "2.00" in one and "noisy" not in one
    assert "noisy" in two and "8.00" in two and "-" in two  # contrib.amp did not run
    assert "4.00" in mean and mean.count("-") == 1  # and has no mean


def test_table_leaves_out_columns_that_ran_nowhere():
    found = {"one": compared(own="does not run", peer=1.0)}
    shown = text_of(tables.table(found, "gluon", "title"))
    assert "contrib.amp bfloat16" in shown and "mxmp bfloat16" not in shown


@pytest.mark.parametrize("share, text", [(0.0, "0 %"), (0.004, "0.4 %"), (0.0567, "5.7 %"), (1.234, "120 %")])
def test_percent_has_two_digits(share, text):
    assert tables.percent(share) == text


def test_missing_lines_are_one_for_each_column():
    found = {"one": compared(own="no bfloat16"), "two": compared(own="no bfloat16", gluon="fails: x")}
    assert tables.missing_lines(found) == [
        "symbolic, mxmp bfloat16: no bfloat16",
        "gluon, mxmp bfloat16: no bfloat16 (one)",
        "gluon, mxmp bfloat16: fails: x (two)",
    ]


def test_plot_draws_what_ran(tmp_path):
    found = {"one": compared(own=0.5, peer=1.0), "two": compared(own="fails: x")}
    tables.plot(found, str(tmp_path / "plot.png"), "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
