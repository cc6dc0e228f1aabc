"""The table at the end."""

from __future__ import annotations

import io

from rich.console import Console

from examples.common.history import History
from examples.common.summary import LAST, epochs_table, pairs_table


def text_of(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip()]


def test_an_epoch_has_its_means_its_figures_the_last_scale_and_the_median_time():
    history = History()
    for loss, scale, seconds in ((4.0, 8, 0.1), (2.0, 16, 0.2), (3.0, 4, 9.0)):
        history.add_step({"loss": loss, "loss scale": scale, "seconds": seconds})
    history.add_epoch({"accuracy": 0.25})
    _, header, _, row = text_of(epochs_table(history, "title"))
    assert header == "epoch loss test accuracy loss scale ms/step".split()
    assert row == ["1", "3.0000", "0.2500", "4", "200.0"]


def test_a_long_run_shows_its_last_epochs():
    history = History()
    for _ in range(LAST + 3):
        history.add_step({"loss scale": 1, "seconds": 1})
        history.add_epoch({})
    rows = text_of(epochs_table(history, "title"))[3:]
    assert [int(row[0]) for row in rows] == list(range(4, LAST + 4))


def test_pairs_are_printed_as_they_are():
    assert text_of(pairs_table([("policy", "[bold]"), ("steps", 3)])) == [["policy", "[bold]"], ["steps", "3"]]
