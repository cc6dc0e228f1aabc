"""The modes of training, in this process and in another one, and the benchmark run small."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time

import pytest

from benchmarks import tasks, training, trainings
from benchmarks.comparison import FLOAT32, NO_BFLOAT16, PEER
from benchmarks.training import Mode, modes

PNG = b"\x89PNG\r\n\x1a\n"


def test_modes_have_contrib_amp_beside_bfloat16_alone():
    assert [mode.text for mode in modes(["mixed_bfloat16"])] == [FLOAT32, PEER, "mixed_bfloat16"]
    assert [mode.text for mode in modes(["O1", "O2"])] == [FLOAT32, "O1", "O2"]
    assert [mode.dtype for mode in modes(training.POLICIES)] == ["float32", "bfloat16", "bfloat16", "bfloat16"]


def test_start_says_why_a_mode_does_not_run(monkeypatch):
    def fails(*args):
        raise RuntimeError("the process ended with exit code -4")

    args = argparse.Namespace(batch_size=1, seed=0, cpu_time=False)
    low = Mode("mixed_bfloat16", "mxmp", "bfloat16")
    assert training.start(low, "resnet20", args, bfloat16=False) == (None, NO_BFLOAT16)
    monkeypatch.setattr(training, "Remote", fails)
    found = training.start(Mode(PEER, PEER, "bfloat16"), "resnet20", args, bfloat16=True)
    assert found == (None, "fails: the process ended with exit code -4")


class Fake:
    """A training that takes as long as it is told."""

    def __init__(self, seconds, loss):
        self.seconds, self.loss, self.skipped, self.closed = seconds, loss, 0, False

    def step(self):
        return self.seconds

    def close(self):
        self.closed = True


def test_measure_compares_times_and_losses(monkeypatch):
    made = {FLOAT32: Fake(2.0, 2.0), "mixed_bfloat16": Fake(1.0, 2.02)}
    monkeypatch.setattr(training, "start", lambda mode, *rest: (made.get(mode.text), "" if mode.text in made else "no"))
    args = argparse.Namespace(rounds=4)
    found = training.measure("any", modes(["mixed_bfloat16"]), args, True, until=1e9)
    base, peer, own = found.columns
    assert found.speed(own) == 2.0 and own.error == pytest.approx(0.01) and base.error == 0
    assert peer.missing == "no" and not peer.seconds and own.notes == {"first_loss": 2.02, "skipped": 0}
    assert all(fake.closed for fake in made.values())


def test_measure_goes_on_without_float32(monkeypatch):
    own = Fake(1.0, 2.0)
    monkeypatch.setattr(training, "start", lambda mode, *rest: (own, "") if mode.text == "O1" else (None, "fails: x"))
    found = training.measure("any", modes(["O1"]), argparse.Namespace(rounds=3), True, until=1e9)
    assert found.columns[0].failed and found.columns[1].seconds and found.speed(found.columns[1]) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet1.0", "lstm", "bert"])
def test_tasks_train_in_mixed_precision(name):
    """The same seed gives the same values, so that the first losses agree but for rounding."""
    plain, mixed = (trainings.Training(name, mode, batch_size=1, seed=3) for mode in (FLOAT32, "O2"))
    assert mixed.loss == pytest.approx(plain.loss, rel=0.02) and mixed.loss != plain.loss
    assert mixed.step() > 0 and mixed.skipped == 0
    assert tasks.make_task(name, 1, 3).net is not plain.task.net


@pytest.mark.slow
def test_a_remote_training_does_what_a_training_does():
    far, near = (make("resnet20", FLOAT32, 2, 1) for make in (trainings.Remote, trainings.Training))
    assert far.loss == pytest.approx(near.loss, rel=1e-5)
    assert far.step() > 0
    far._process.kill()
    with pytest.raises(RuntimeError, match="ended with exit code -9"):
        far.step()
    assert not far._process.is_alive()


def test_a_remote_training_says_what_it_skipped():
    ours, theirs = multiprocessing.Pipe()
    remote = object.__new__(trainings.Remote)
    remote._pipe, remote.skipped = ours, 0
    theirs.send((0.5, 3, None))
    assert remote.step() == 0.5 and remote.skipped == 3


def test_serve_hands_its_failure_on():
    ours, theirs = multiprocessing.Pipe()
    trainings.serve(theirs, "no such network", FLOAT32, 1, 0, time.perf_counter)
    assert ours.recv() == (None, 0, "KeyError: 'no such network'")


@pytest.mark.slow
@pytest.mark.bfloat16
def test_contrib_amp_trains_in_its_process_and_changes_nothing_here():
    far, near = trainings.Remote("resnet20", PEER, 2, 1), trainings.Training("resnet20", FLOAT32, 2, 1)
    assert far.loss == pytest.approx(near.loss, rel=0.05) and far.loss != near.loss
    assert far.step() > 0
    far.close()


@pytest.mark.slow
def test_training_writes_json_table_and_plot(tmp_path, capsys):
    arguments = ["--networks", "resnet20", "--batch-size", "2", "--rounds", "2", "--budget", "0"]
    assert training.main([*arguments, "--policies", "O1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "training.json").read_text())
    base, own = result["networks"]["resnet20"]
    assert base["speed"] == 1.0 and own["title"] == "float16 O1" and len(own["seconds"]) == 2
    assert own["notes"]["skipped"] == 0 and own["error"] < 0.02
    wanted = {check["what"]: check for check in result["requirements"]}
    assert wanted["emulated float16 against float32: resnet20"]["found"] == own["speed"] or base["noisy"]
    assert (tmp_path / "training.png").read_bytes().startswith(PNG)
    assert "One training step, gluon" in capsys.readouterr().out
