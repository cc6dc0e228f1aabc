"""The demo, run small, as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from examples import digits
from mxmp.devices.processor import Processor
from tests.examples.processes import finish, start

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def data():
    return digits.load_data()


@pytest.mark.slow
@pytest.mark.bfloat16
def test_demo_prints_a_table_draws_and_exports(tmp_path):
    demo = ("examples/digits.py", "--epochs", 1, "--modes", "O2", "mixed_bfloat16", "--out", tmp_path)
    text = finish(start(*demo))
    rows = [line.split() for line in text.splitlines()]
    (float16,) = [row for row in rows if row[:2] == ["float16", "O2"] and "%" in row]
    (bfloat16,) = [row for row in rows if row[:1] == ["bfloat16"] and "%" in row]
    assert int(float16[5].replace(",", "")) < 0.6 * int(bfloat16[4].replace(",", ""))  # parameter bytes
    assert int(bfloat16[5]) > 0  # casts
    assert int(float16[-2]) <= 1  # skipped steps
    assert "float16 is emulated" in " ".join(text.split())
    assert "the same as here" in " ".join(text.split())
    assert (tmp_path / "digits.png").read_bytes().startswith(PNG)
    assert {"nodes", "heads"} <= set(json.loads((tmp_path / "digits-symbol.json").read_text()))


@pytest.mark.parametrize(
    ("args", "message"),
    [(["--modes", "O9"], "unknown policy 'O9'"), (["--epochs", "0"], "--epochs has to be at least 1")],
)
def test_demo_refuses_bad_options_in_one_line(args, message, capsys):
    with pytest.raises(SystemExit) as caught:
        digits.parse_args(args)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_demo_fails_if_the_exported_network_scores_differently(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digits, "score_exported", lambda net, data, folder: 0.5)
    run = digits.Run("mixed_bfloat16", accuracy=0.75)
    assert not digits.check_export([(run, None)], data, tmp_path, digits.Console())
    assert "NOT the same" in " ".join(capsys.readouterr().out.split())


def test_load_data_splits_the_images_without_overlap(data):
    assert data.train_images.shape == (1200, 1, 16, 16)
    assert data.test_images.shape == (597, 1, 16, 16)
    assert data.train_images.dtype == np.float32
    assert 0.0 == data.train_images.min() < data.train_images.max() == 1.0
    train, test = ({image.tobytes() for image in images} for images in data[:2])
    assert not train & test


def test_batches_shift_each_image_by_at_most_one_pixel(data):
    images, labels = next(digits.batches(data, 4, np.random.RandomState(0)))
    order = np.random.RandomState(0).permutation(1200)[:4]
    assert (labels == data.train_labels[order]).all()
    for image, original in zip(images, data.train_images[order]):
        rolled = [np.roll(original, shift, axis=(1, 2)) for shift in np.ndindex(3, 3)]
        shifted = [np.roll(image, 1, axis=(1, 2))] * 9
        # Pixels that the shift brought in from outside are 0; all others are the original's.
        assert any(((a == b) | (a == 0)).all() for a, b in zip(shifted, rolled))


def test_batches_are_the_same_for_the_same_seed(data):
    first, second = (list(digits.batches(data, 500, np.random.RandomState(3))) for _ in range(2))
    assert len(first) == 2  # 200 images are left out
    for one, other in zip(first, second):
        assert all((a == b).all() for a, b in zip(one, other))


def test_every_mode_starts_from_the_same_weights(data):
    images = digits.mx.nd.array(data.train_images[:2])
    first, second = (digits.make_net(mode, images, seed=5) for mode in ("float32", "O1"))
    pairs = list(zip(first.collect_params().values(), second.collect_params().values()))
    assert len(pairs) > 60
    for one, other in pairs:
        assert (one.data().asnumpy() == other.data().asnumpy()).all()


def test_table_and_plot_need_no_loss_scale(tmp_path, capsys):
    run = digits.Run("O0", [2.0, 1.0], [1.0, 1.0], [0.1, 0.1], cast_bytes=None)
    digits.Console(width=100).print(digits.table([run]))
    digits.plot([run], tmp_path / "plot.png")
    assert "unknown" in capsys.readouterr().out
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)


def test_the_plot_marks_skipped_steps(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(digits, "save", lambda figure, path: figures.append(figure))
    digits.plot([digits.Run("O1", [30.0, 2.0, 1.0], [8.0, 4.0, 2.0], [0.1] * 3, skipped=[1, 2])], tmp_path / "plot.png")
    losses, scales = figures[0].axes
    line, marks = scales.get_lines()
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([1, 2], [8.0, 4.0])
    assert list(line.get_xdata()) == list(losses.get_lines()[0].get_xdata()) == [1, 2, 3]


@pytest.fixture
def old_processor(monkeypatch):
    """Let this processor be one that MXNet does not run bfloat16 on."""
    monkeypatch.setattr("examples.digits.runs_bfloat16", lambda: False)
    monkeypatch.setattr("mxmp.devices.check.read_processor", lambda: Processor("X", frozenset(["avx2"])))


def test_demo_leaves_out_what_the_processor_does_not_run(old_processor, capsys):
    modes = digits.explain(["float32", "O1", "mixed_bfloat16"], digits.Console(width=200))
    assert modes == ["float32", "O1"]
    assert "bfloat16 does not run, because MXNet needs AVX-512" in capsys.readouterr().out


def test_demo_without_a_mode_that_runs_fails(old_processor, tmp_path):
    assert digits.main(["--modes", "mixed_bfloat16", "--out", str(tmp_path)]) == 1
