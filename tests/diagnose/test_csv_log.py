"""Steps in a file of comma separated values, read by Python's own reader."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from mxmp.diagnose import CSVLogger
from mxmp.errors import CheckpointError, NonFiniteLossError
from mxmp.loss_scale import DynamicLossScale
from tests.full_disk import files_of_at_most
from tests.train.adapters import Trainer

COLUMNS = "step,seconds,taken,scale,next_scale,grad_norm,loss,zero_share,subnormal_share,largest,error,why"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def trained(path, steps=1, **options):
    adapter = Trainer(4.0)
    with CSVLogger(path, **options).attach(adapter.owner):
        for _ in range(steps):
            adapter.run(0.25)


def test_the_file_of_a_run_has_a_line_per_step(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    with CSVLogger(tmp_path / "run", every=2).attach(adapter.owner) as log:
        adapter.run(0.25)
        log.log(loss=1.5)
        adapter.run(0.25, bad=np.inf)
    assert log.path == str(tmp_path / "run" / "steps.csv")
    first, second = rows(log.path)
    assert ",".join(first) == COLUMNS
    assert (first["step"], first["taken"], first["loss"], first["error"]) == ("1", "1", "1.5", "")
    assert float(first["scale"]) == float(first["next_scale"]) == 256
    assert float(first["grad_norm"]) == pytest.approx(0.25 * np.sqrt(3))
    assert (second["step"], second["taken"], second["loss"], second["grad_norm"]) == ("2", "0", "", "")
    assert float(second["next_scale"]) == 128
    assert first["zero_share"] == first["subnormal_share"] == first["largest"] == ""


def test_a_path_that_ends_in_csv_is_the_file(tmp_path):
    trained(tmp_path / "mine.csv")
    assert len(rows(tmp_path / "mine.csv")) == 1


def test_a_message_with_commas_and_quotes_is_one_cell(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    log = CSVLogger(tmp_path).attach(adapter.owner)
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError) as caught:
        adapter.step()
    (row,) = rows(log.path)
    assert row["error"] == f"NonFiniteLossError: {caught.value}" and "," in row["error"]
    log.close()


def test_a_resumed_run_goes_on_in_the_file(tmp_path):
    trained(tmp_path, 2)
    before = (tmp_path / "steps.csv").read_bytes()
    trained(tmp_path)
    after = (tmp_path / "steps.csv").read_bytes()
    assert after.startswith(before)
    found = rows(tmp_path / "steps.csv")
    assert [row["step"] for row in found] == ["1", "2", "1"]
    assert float(found[2]["seconds"]) >= float(found[1]["seconds"])


def test_seconds_go_on_where_a_log_is_attached_again(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mxmp.diagnose.step_log.time.monotonic", lambda: clock[0])
    adapter = Trainer(4.0)
    for _run in range(2):  # two fits, and a resumed run
        log = CSVLogger(tmp_path)
        for _ in range(2):
            log.attach(adapter.owner)
            clock[0] += 0.5
            adapter.run(0.25)
            log.detach()
            clock[0] += 10
        log.close()
    assert [row["seconds"] for row in rows(log.path)] == ["0.5", "1.0", "1.5", "2.0"]


@pytest.mark.parametrize("kept", ["", COLUMNS[:10]])
def test_a_file_without_a_whole_line_is_begun_anew(tmp_path, kept):
    (tmp_path / "steps.csv").write_text(kept)
    trained(tmp_path)
    assert (tmp_path / "steps.csv").read_text().startswith(f"{COLUMNS}\n1,")


def test_a_line_that_was_never_finished_is_taken_out(tmp_path):
    trained(tmp_path)
    before = (tmp_path / "steps.csv").read_text()
    (tmp_path / "steps.csv").write_text(f"{before}2,0.5,1,65")
    trained(tmp_path)
    assert (tmp_path / "steps.csv").read_text().startswith(f"{before}1,")


def test_lines_are_in_the_file_as_soon_as_the_next_step_ends(tmp_path):
    """Whole, and none waits in a buffer: a process that is killed then has lost the last step alone."""
    adapter = Trainer(4.0)
    log = CSVLogger(tmp_path).attach(adapter.owner)
    for count in range(3):
        adapter.run(0.25)
        assert len(rows(log.path)) == count
        with open(log.path) as file:
            assert file.read().endswith("\n")
    log.close()


def test_a_full_disk_is_an_error_that_leaves_whole_lines(tmp_path):
    adapter = Trainer(4.0)
    log = CSVLogger(tmp_path).attach(adapter.owner)
    adapter.run(0.25)
    size = (tmp_path / "steps.csv").stat().st_size
    with files_of_at_most(size + 10), pytest.raises(
        CheckpointError, match="steps.csv cannot be written: File too large"
    ):
        adapter.run(0.25)
    assert (tmp_path / "steps.csv").stat().st_size == size
    adapter.run(0.25)
    log.close()
    assert [row["step"] for row in rows(log.path)] == ["3"]


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "a network\n", "no line at all"])
def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path, text):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(CheckpointError, match=r"steps\.csv: its columns are '.*'; expected 'step,seconds"):
        CSVLogger(tmp_path)
    assert (tmp_path / "steps.csv").read_text() == text


def test_a_file_that_another_log_writes_is_refused(tmp_path):
    with CSVLogger(tmp_path):
        with pytest.raises(CheckpointError, match="another log is writing it"):
            CSVLogger(tmp_path)
    CSVLogger(tmp_path).close()


@pytest.mark.parametrize("path", ["", None, 3, b"run"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(CheckpointError, match="^CSVLogger: path is .*; expected the folder of a run"):
        CSVLogger(path)


def test_a_missing_folder_of_a_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder .*absent"):
        CSVLogger(tmp_path / "absent" / "mine.csv")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file/run: the folder cannot be made"):
        CSVLogger(tmp_path / "file" / "run")


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    (tmp_path / "steps.csv").mkdir()
    with pytest.raises(CheckpointError, match=r"steps\.csv cannot be written: Is a directory"):
        CSVLogger(tmp_path)
