"""The state of a run in a folder."""

from __future__ import annotations

import json

import click
import pytest

from examples.common import checkpoint
from examples.common.history import History
from tests.examples.common.small import Small, options, params_of
from tests.full_disk import files_of_at_most

SETTINGS = {"network": "small", "seed": 0, "shape": (1, 2)}


@pytest.fixture
def history():
    history = History()
    history.add_step({"loss": 1.0})
    return history


@pytest.fixture
def learner(tmp_path):
    return Small(options(tmp_path))


@pytest.fixture
def folder(tmp_path, learner, history):
    checkpoint.save(tmp_path / "run", learner.parts, SETTINGS, history)
    return tmp_path / "run"


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(folder, settings=SETTINGS):
    """Return how loading is refused; the learner's parameters stay."""
    other = Small(options(folder, seed=8))
    before = params_of(other)
    with pytest.raises(click.ClickException) as caught:
        checkpoint.load(folder, other.parts, settings)
    assert all((before[name] == value).all() for name, value in params_of(other).items())
    return caught.value.message


def test_a_folder_gives_back_history_and_parameters(folder, learner, history):
    other = Small(options(folder, seed=8))
    assert checkpoint.load(folder, other.parts, SETTINGS) == history
    for name, value in params_of(learner).items():
        assert (value == params_of(other)[name]).all(), name


def test_the_files_have_the_names_of_the_parts(folder):
    assert set(content(folder)) == {"run.json", "small-symbol.json", "small-0000.params", "small.states"}


def test_a_checkpoint_of_another_network_is_refused_by_name(folder):
    message = refusal(folder, {**SETTINGS, "network": "large"})
    assert "run.json: a checkpoint with network small, not large; resume with the same network" in message


def test_a_setting_that_is_new_is_refused(folder):
    assert "with momentum null, not 0.9" in refusal(folder, {**SETTINGS, "momentum": 0.9})


@pytest.mark.parametrize("name", ["small-symbol.json", "small-0000.params", "small.states"])
def test_a_file_that_was_changed_or_lost_is_refused_by_name(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert f"{path}: damaged, or of another run than run.json." == refusal(folder)
    path.unlink()
    assert f"{path}: the file is missing" in refusal(folder)


@pytest.mark.parametrize(("text", "message"), [("{", "it cannot be read"), ("[1]", "it is no record of a run")])
def test_a_record_that_is_damaged_is_refused(folder, text, message):
    (folder / "run.json").write_text(text)
    assert message in refusal(folder)


def test_a_folder_without_a_checkpoint_says_how_to_start(tmp_path):
    assert "there is no checkpoint; leave --resume out to start a run there" in refusal(tmp_path)


def test_a_save_that_fails_keeps_what_was_there(folder, learner, history, monkeypatch):
    before = content(folder)
    history.add_step({"loss": 0.5})

    def fail(file):
        raise OSError("no space left")

    monkeypatch.setattr(learner.parts["small"], "save_states", fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoint.save(folder, learner.parts, SETTINGS, history)
    assert content(folder) == before


def test_a_new_run_is_kept_from_replacing_a_checkpoint(folder, tmp_path):
    checkpoint.require_free(tmp_path / "elsewhere")
    with pytest.raises(click.ClickException, match="--resume goes on with it, --force replaces it"):
        checkpoint.require_free(folder)


def test_the_record_is_json_that_any_program_reads(folder):
    record = json.loads((folder / "run.json").read_text())
    assert record["settings"]["network"] == "small"
    assert record["history"]["steps"] == {"loss": [1.0]}


@pytest.mark.parametrize("name", ["small-symbol.json", "small-0000.params", "small.states"])
def test_a_full_disk_leaves_the_earlier_checkpoint(name, folder, learner, history):
    """Each file in turn lacks room for its last byte, of which MXNet says nothing."""
    before = content(folder)
    with pytest.raises(OSError, match="."), files_of_at_most(len(before[name]) - 1):
        checkpoint.save(folder, learner.parts, SETTINGS, history)
    assert content(folder) == before
