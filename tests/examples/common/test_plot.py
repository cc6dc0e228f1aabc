"""The picture of a run."""

from __future__ import annotations

import pytest

from examples.common import plot
from examples.common.history import History
from tests.full_disk import files_of_at_most

PNG = b"\x89PNG\r\n\x1a\n"


def make():
    history = History()
    for number in range(4):
        history.add_step({"loss scale": 2.0**number, "loss/critic": 1.0, "loss/generator": 2.0, "seconds": 1.0})
    history.add_epoch({"accuracy": 0.5})
    return history


@pytest.mark.parametrize("epochs", [1, 0])
def test_draw_writes_a_png(epochs, tmp_path):
    history = make()
    del history.epochs[epochs:]
    plot.draw(history, tmp_path / "run.png", "title")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_a_full_disk_leaves_the_earlier_picture(tmp_path):
    picture = tmp_path / "run.png"
    plot.draw(make(), picture, "title")
    before = picture.read_bytes()
    with files_of_at_most(1000), pytest.raises(OSError):
        plot.draw(make(), picture, "another title")
    assert picture.read_bytes() == before and list(tmp_path.iterdir()) == [picture]


@pytest.fixture
def figures(monkeypatch):
    """Return the list of the figures that are saved."""
    found = []
    monkeypatch.setattr(plot, "save", lambda figure, path: found.append(figure))
    return found


def test_series_of_a_kind_share_a_panel_and_the_loss_scale_is_last(figures, tmp_path):
    plot.draw(make(), tmp_path / "run.png", "title")
    losses, accuracy, scale = figures[0].axes
    assert [line.get_label() for line in losses.get_lines()] == ["critic", "generator"]
    assert [list(line.get_ydata()) for line in accuracy.get_lines()] == [[0.5]]
    assert list(scale.get_lines()[0].get_ydata()) == [1.0, 2.0, 4.0, 8.0]
    assert (accuracy.get_yscale(), scale.get_yscale()) == ("linear", "log")


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([-1.0, 0.0, 1.0, 2.0], "linear"),
        ([5.0, 4.0, 2.0, 1.0], "linear"),  # no decade: a logarithmic axis would have one tick, or none
        ([2.0] * 4, "linear"),
        ([0.001, 0.01, 1.0, 90.0], "log"),
        ([None, 90.0, 0.01, 0.001], "linear"),  # means over what is no number
    ],
    ids=["negative", "narrow", "constant", "wide", "nan"],
)
def test_losses_have_a_logarithmic_axis_where_they_span_a_decade(losses, expected, figures, tmp_path):
    history = make()
    history.steps["loss/critic"] = history.steps["loss/generator"] = losses
    plot.draw(history, tmp_path / "run.png", "title")
    assert figures[0].axes[0].get_yscale() == expected


@pytest.mark.parametrize(
    ("scales", "expected"), [([1024.0] * 4, "linear"), ([2.0, 1.0, 1.0, 2.0], "linear"), ([4.0, 2.0, 1.0, 1.0], "log")]
)
def test_a_narrow_range_of_scales_has_ticks_in_plain_numbers(scales, expected, figures, tmp_path):
    history = make()
    history.steps["loss scale"] = scales
    plot.draw(history, tmp_path / "run.png", "title")
    axes = figures[0].axes[-1]
    figures[0].canvas.draw()
    low, high = axes.get_ylim()
    labels = [text.get_text() for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
    assert axes.get_yscale() == expected and len(labels) > 1
    assert axes.yaxis.get_offset_text().get_text() == ""


def test_skipped_steps_are_marked_on_the_loss_scale(figures, tmp_path):
    history = make()
    history.add_step({**{name: 1.0 for name in history.steps}, "loss scale": 8.0}, skipped=True)
    plot.draw(history, tmp_path / "run.png", "title")
    marks = figures[0].axes[-1].get_lines()[1]
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([5], [8.0])
    assert figures[0].axes[-1].get_legend_handles_labels()[1] == ["skipped"]


def test_smooth_averages_over_the_steps_before(monkeypatch):
    monkeypatch.setattr(plot, "WINDOW", 2)
    assert plot.smooth([1.0, 3.0, 5.0]) == [1.0, 2.0, 4.0]
