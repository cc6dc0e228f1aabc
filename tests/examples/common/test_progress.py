"""The line that a run shows: never wider than the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from examples.common import progress

FIGURES = {"loss/real": "0.693", "loss/fake": "0.702", "loss/generator": "0.715", "accuracy": "0.5", "scale": "65536"}


def shown(width, terminal):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    with progress.Display(console) as display:
        display.begin(epoch=123, steps=12345, done=12343)
        display.step(FIGURES)
        display.step(FIGURES)
    return stream.getvalue()


@pytest.mark.parametrize(("width", "last"), [(50, "…"), (60, "…"), (80, "…"), (140, "scale 65536")])
def test_a_bar_is_never_wrapped_and_shows_as_many_figures_as_fit(width, last):
    text = shown(width, terminal=True).split("\x1b[2K")[-1].replace("\x1b[?25h", "")
    assert text.count("\n") == 1
    line = text.split("\n")[0].rstrip()
    assert len(line) <= width and "12345/12345" in line and line.endswith(last)


@pytest.mark.parametrize("width", [30, 80, 120])
def test_where_there_is_no_terminal_an_epoch_is_one_line(width):
    (line,) = shown(width, terminal=False).splitlines()
    assert line.startswith("epoch 123  12345/12345  ") and len(line) <= width
    assert ("real 0.693" in line) == (width > 30)


def test_a_long_epoch_has_lines_in_between(monkeypatch):
    monkeypatch.setattr(progress, "_PAUSE", -1)
    assert [line.split()[2] for line in shown(80, terminal=False).splitlines()] == ["12344/12345", "12345/12345"]
