"""The picture of a run."""

from __future__ import annotations

from matplotlib.figure import Figure

from examples.common import plot
from examples.common.history import History

PNG = b"\x89PNG\r\n\x1a\n"


def make():
    history = History()
    for number in range(4):
        history.add_step({"loss scale": 2.0**number, "loss/critic": 1.0, "loss/generator": 2.0, "seconds": 1.0})
    history.add_epoch({"accuracy": 0.5})
    return history


def test_draw_writes_a_png(tmp_path):
    plot.draw(make(), tmp_path / "run.png", "title")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_draw_takes_a_run_without_an_epoch(tmp_path):
    history = make()
    history.epochs.clear()
    plot.draw(history, tmp_path / "run.png", "title")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_series_of_a_kind_share_a_panel_and_the_loss_scale_is_last(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    plot.draw(make(), tmp_path / "run.png", "title")
    losses, accuracy, scale = figures[0].axes
    assert [line.get_label() for line in losses.get_lines()] == ["critic", "generator"]
    assert [list(line.get_ydata()) for line in accuracy.get_lines()] == [[0.5]]
    assert list(scale.get_lines()[0].get_ydata()) == [1.0, 2.0, 4.0, 8.0]
    assert (losses.get_yscale(), accuracy.get_yscale(), scale.get_yscale()) == ("log", "linear", "log")


def test_losses_that_are_not_positive_are_drawn_on_a_linear_axis(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    history = make()
    history.steps["loss/critic"] = [-1.0, 0.0, 1.0, 2.0]
    plot.draw(history, tmp_path / "run.png", "title")
    assert figures[0].axes[0].get_yscale() == "linear"


def test_smooth_averages_over_the_steps_before():
    assert plot.smooth([1.0, 3.0, 5.0], window=2) == [1.0, 2.0, 4.0]
