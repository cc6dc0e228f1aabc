"""The training loop: what it records, and how it stops and goes on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal

import click
import pytest

from examples.common import loop
from examples.common.command import INTERRUPTED, Interrupted
from examples.common.workers import Workers
from tests.examples.common.small import Numbers, Small, options, params_of

SETTINGS = {"network": "small"}


class Pair(Workers):
    """One of two workers; the other has the same figures, and is asked to stop in some step."""

    def __init__(self, rank, other_stops_in=None, folder=None):
        super().__init__()
        self.rank, self.size = rank, 2
        self.other_stops_in, self.folder = other_stops_in, folder
        self.steps, self.saved = 0, []

    def sum(self, values):
        self.saved.append((self.folder / "run.json").exists() if self.folder else None)
        if len(values) == 1:
            return [2 * values[0]]
        self.steps += 1
        stop, *figures = values
        return [stop + (self.steps == self.other_stops_in), *(2 * figure for figure in figures)]


def train(options, learner=None, workers=None):
    learner = learner or Small(options)
    return learner, loop.run(learner, Numbers(), options, SETTINGS, "title", workers)


def untimed(history):
    """Return all of a history but the times."""
    return {name: values for name, values in history.steps.items() if name != "seconds"}, history.epochs


def ctrl_c_in_step(number):
    return lambda present: signal.raise_signal(signal.SIGINT) if present == number else None


def interrupt(options, number):
    with pytest.raises(Interrupted) as caught:
        train(options, Small(options, ctrl_c_in_step(number)))
    return str(caught.value)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train(options(tmp_path_factory.mktemp("unbroken")))


def test_a_run_records_each_step_and_each_epoch(unbroken):
    learner, history = unbroken
    assert set(history.steps) == {"loss", "loss scale", "seconds"}
    assert [epoch["step"] for epoch in history.epochs] == [5, 10]
    assert set(map(len, history.steps.values())) == {10}


def test_the_plot_names_the_policy(monkeypatch, tmp_path):
    titles = []
    monkeypatch.setattr(loop, "draw", lambda history, path, title: titles.append(title))
    opts = options(tmp_path)
    train(opts)
    assert titles == ["title\n" + str(opts.policy).replace(",", ", ")]


def test_the_scale_of_a_step_is_the_one_that_it_was_taken_with(unbroken):
    learner, history = unbroken
    scales = [*history.steps["loss scale"], learner.loss_scale]
    assert scales[0] == 2.0**10
    fell = [step for step, (before, after) in enumerate(zip(scales, scales[1:]), 1) if after < before]
    assert history.skipped == fell and len(fell) == learner.skipped_steps > 0


@pytest.mark.parametrize("number", [2, 5, 6, 10], ids=["amid", "end of epoch", "start of epoch", "last"])
def test_a_run_that_was_interrupted_resumes_to_the_bit(tmp_path, unbroken, number):
    opts = options(tmp_path)
    assert f"interrupted after step {number}; it is saved, go on with: " in interrupt(opts, number)
    learner, history = train(dataclasses.replace(opts, resume=True))
    assert untimed(history) == untimed(unbroken[1])
    assert learner.number == 10 - number
    for name, value in params_of(unbroken[0]).items():
        assert (value == params_of(learner)[name]).all(), name


def test_ctrl_c_while_testing_saves_and_tests_again(tmp_path, unbroken):
    opts = options(tmp_path)
    learner = Small(opts)
    evaluate = learner.evaluate

    def interrupted(batches):
        signal.raise_signal(signal.SIGINT)
        return evaluate(batches)

    learner.evaluate = interrupted
    with pytest.raises(Interrupted, match="after step 5"):
        train(opts, learner)
    _, history = train(dataclasses.replace(opts, resume=True))
    assert untimed(history) == untimed(unbroken[1])


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def twice(number):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    opts = options(tmp_path)
    learner = Small(opts, twice)
    with pytest.raises(KeyboardInterrupt):
        train(opts, learner)
    assert learner.number == 1
    assert not (tmp_path / "run.json").exists()


def test_the_handler_of_ctrl_c_is_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    interrupt(options(tmp_path), 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_interruption_tells_the_command_that_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.sys, "argv", ["train x.py", "--force", "--epochs", "2"])
    monkeypatch.setattr(loop.sys, "executable", "/usr/bin/python3")
    assert interrupt(options(tmp_path), 1).endswith("python3 'train x.py' --epochs 2 --resume")


def test_a_run_that_is_over_resumes_to_nothing(tmp_path):
    opts = options(tmp_path, epochs=1)
    train(opts)
    learner, history = train(dataclasses.replace(opts, resume=True))
    assert (learner.number, history.step) == (0, 5)


def test_batches_limit_the_steps_of_an_epoch(tmp_path):
    opts = options(tmp_path, batches=2)
    assert loop.total_steps(Numbers(), opts) == 4
    _, history = train(opts)
    assert [epoch["step"] for epoch in history.epochs] == [2, 4]


def test_a_run_replaces_no_other_unless_it_is_forced(tmp_path):
    opts = options(tmp_path, batches=1, epochs=1)
    train(opts)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(click.ClickException, match="holds the checkpoint of a run"):
        train(dataclasses.replace(opts, seed=1))
    assert (tmp_path / "run.json").read_bytes() == before
    train(dataclasses.replace(opts, seed=1, force=True))
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["seed"] == 1


def test_a_folder_that_cannot_be_made_is_noticed_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    opts = options(tmp_path / "file" / "run")
    learner = Small(opts)
    with pytest.raises(NotADirectoryError):
        train(opts, learner)
    assert learner.number == 0


def test_a_run_with_other_options_does_not_resume(tmp_path):
    opts = options(tmp_path, batches=1, epochs=1)
    train(opts)
    with pytest.raises(click.ClickException, match="a checkpoint with batch-size 4, not 3"):
        train(dataclasses.replace(opts, batch_size=3, resume=True))


def test_data_without_one_batch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Numbers, "count", 3)
    with pytest.raises(click.BadParameter, match="there are fewer than 4 training examples"):
        loop.total_steps(Numbers(), options(tmp_path))


def test_a_run_leaves_a_plot_and_prints_a_table(tmp_path, capsys):
    train(options(tmp_path, batches=1))
    assert (tmp_path / "run.png").exists()
    text = " ".join(capsys.readouterr().out.split())
    assert "epoch loss test loss loss scale ms/step" in text
    assert "steps 2, of which 0 skipped" in text
    assert "float16 is emulated" in text


def test_a_learner_may_write_more_at_the_end(tmp_path, capsys):
    class Writing(Small):
        def finish(self, folder):
            assert (folder / "run.json").exists()
            (folder / "more.txt").write_text(f"{self.number}")
            return [("more", folder / "more.txt")]

    opts = options(tmp_path, batches=2)
    train(opts, Writing(opts))
    assert (tmp_path / "more.txt").read_text() == "4"
    assert "more.txt" in "".join(capsys.readouterr().out.split())  # the table folds a long path


def test_the_first_worker_evaluates_and_writes(tmp_path, capsys):
    _, history = train(options(tmp_path), workers=Pair(0))
    assert [sorted(epoch) for epoch in history.epochs] == [["loss", "step"]] * 2
    assert (tmp_path / "run.json").exists() and (tmp_path / "run.png").exists()
    assert "worker 0 of 2 takes 2 examples of each step" in capsys.readouterr().out


def test_the_others_write_nothing_and_say_who_they_are(tmp_path, capsys):
    opts = options(tmp_path / "run")
    learner = Small(opts)
    learner.evaluate = learner.finish = None  # asked of the first worker alone
    _, history = train(opts, learner, Pair(1))
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr().out == "worker 1 of 2 takes 2 examples of each step\n"
    assert [epoch["step"] for epoch in history.epochs] == [5, 10]


def test_figures_are_means_over_the_workers(tmp_path):
    class Other(Pair):
        def sum(self, values):
            return [value + number for number, value in enumerate(values)]  # the other has a loss of 1

    class Constant(Small):
        def step(self, batch):
            return {**super().step(batch), "loss": 4.0}

    opts = options(tmp_path, batches=1, epochs=1)
    _, history = train(opts, Constant(opts), Other(0))
    assert history.steps["loss"] == [2.5]


@pytest.mark.parametrize("number", [2, 5])
def test_all_workers_stop_after_the_step_in_which_one_was_asked_to(tmp_path, number):
    opts = options(tmp_path / "run")
    second = Small(opts)
    with pytest.raises(click.exceptions.Exit) as caught:
        train(opts, second, Pair(1, number))
    assert (caught.value.exit_code, second.number) == (INTERRUPTED, number)
    first, workers = Small(opts), Pair(0, number, opts.output)
    with pytest.raises(Interrupted, match=f"after step {number}; it is saved, go on with the same command"):
        train(opts, first, workers)
    assert first.number == number
    assert workers.saved == [False] * number + [True]  # nobody ends before the state is saved


def test_a_run_of_two_workers_does_not_resume_with_one(tmp_path):
    opts = options(tmp_path, batches=1, epochs=1)
    train(opts, workers=Pair(0))
    with pytest.raises(click.ClickException, match="a checkpoint with workers 2, not 1"):
        train(dataclasses.replace(opts, resume=True))


def test_noise_differs_from_step_to_step_and_from_worker_to_worker(tmp_path):
    """Dropout is drawn anew in each step, though every step has a seed of its own."""
    seen = []

    class Watching(Small):
        def step(self, batch):
            seen.append(loop.mx.nd.random.uniform(shape=8).asnumpy().tolist())
            return super().step(batch)

    for rank in range(2):
        opts = options(tmp_path / str(rank), batches=2, epochs=1)
        train(opts, Watching(opts), Pair(rank))
    assert all(one != other for one, other in itertools.combinations(seen, 2))
    assert len(seen) == 4
