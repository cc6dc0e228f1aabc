"""The benchmarks, run small: what they write and print."""

from __future__ import annotations

import json
import os
import sys

import pytest

from benchmarks import accuracy, common, conversion, import_time, placement, trainer_step
from mxmp.devices.processor import Processor
from tests.full_disk import files_of_at_most

PNG = b"\x89PNG\r\n\x1a\n"


def test_accuracy_compares_means_over_the_seeds(tmp_path, capsys, monkeypatch):
    given = {("float32", 0): 0.98, ("float32", 1): 1.0, ("O1", 0): 0.97, ("O1", 1): 0.98}

    def train(mode, data, epochs, batch_size, seed):
        return accuracy_run(given[mode, seed]), None

    monkeypatch.setattr(accuracy, "train", train)
    assert accuracy.main(["--modes", "O1", "--seeds", "0", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "accuracy.json").read_text())
    assert result["accuracies"]["O1"] == [97.0, 98.0]
    assert result["differences"] == {"float32": 0.0, "O1": pytest.approx(-1.5)}
    assert (tmp_path / "accuracy.png").read_bytes().startswith(PNG)
    assert "-1.50" in capsys.readouterr().out


def test_a_full_disk_leaves_the_earlier_result(tmp_path):
    file = common.write(tmp_path, "any", {"value": 1})
    before = file.read_bytes()
    with files_of_at_most(100), pytest.raises(OSError):
        common.write(tmp_path, "any", {"value": 2})
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "flags, bfloat16, amx_on, unit",
    [
        ("avx2", False, False, ""),
        ("avx2 avx512f", True, False, common.AVX512),
        ("avx512f avx512_bf16", True, False, common.AVX512_BF16),
        ("avx512f avx512_bf16 amx_tile amx_bf16", True, False, common.AVX512_BF16),
        ("avx512f avx512_bf16 amx_tile amx_bf16", True, True, common.AMX),
    ],
)
def test_bfloat16_unit_is_the_strongest_in_use(flags, bfloat16, amx_on, unit):
    assert common.bfloat16_unit(Processor("any", frozenset(flags.split())), bfloat16, amx_on) == unit


def test_describe_names_what_a_result_depends_on():
    line = common.describe({**common.machine(), "processor": "Any 9000", "bfloat16": "AMX", "amx": "on", "threads": "2"})
    assert line.startswith("Any 9000; bfloat16: AMX; AMX: on; threads: 2; MXNet 1.9.1, oneDNN; 20")
    assert "bfloat16: not run by MXNet" in common.describe({**common.machine(), "bfloat16": ""})


def test_first_line_is_the_one_that_says_what_is_wrong():
    traced = "Traceback (most recent call last):\n  File x\nMXNetError: could not create a reorder\n"
    assert common.first_line(RuntimeError(traced)) == "MXNetError: could not create a reorder"
    assert common.first_line(RuntimeError("one\ntwo")) == "two"
    assert common.first_line(RuntimeError()) == "RuntimeError()"


@pytest.mark.parametrize("threads, given, again", [("3", "2", True), ("2", "2", False), ("2", None, True)])
def test_use_threads_starts_again_with_the_threads_that_are_wanted(threads, given, again, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *args: calls.append(args))
    monkeypatch.setattr(sys, "argv", ["prog", "--threads", threads, "--rounds", "1"])
    monkeypatch.setenv("OMP_NUM_THREADS", given) if given else monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    common.use_threads("benchmarks.any")
    assert bool(calls) == again
    if again:
        ((_, command, environment),) = calls
        assert command[1:] == ["-m", "benchmarks.any", "--threads", threads, "--rounds", "1"]
        assert environment["OMP_NUM_THREADS"] == threads


def test_use_threads_leaves_the_threads_alone_unless_told(monkeypatch):
    monkeypatch.setattr(os, "execve", None)
    monkeypatch.setattr(sys, "argv", ["prog", "--rounds", "1"])
    common.use_threads("benchmarks.any")


def accuracy_run(value):
    from examples.digits import Run

    return Run("any", [], [], [], accuracy=value)


@pytest.mark.slow
def test_placement_writes_times_table_and_plot(tmp_path, capsys):
    assert placement.main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "placement.json").read_text())
    assert set(result["seconds"]) == set(result["targets"]) == {"ResNet-152", "5,000 free nodes"}
    assert (tmp_path / "placement.png").read_bytes().startswith(PNG)
    assert "under 50" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("option, rounds", [("--cpu-time", 2), ("--processes", 1)])
def test_conversion_compares_with_its_peer(option, rounds, tmp_path, capsys):
    small = ["--network", "mobilenet0.25", "--rounds", str(rounds), option]
    assert conversion.main([*small, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "conversion.json").read_text())
    assert len(result["ratios"]) == 3 and result["processes"] == (option == "--processes")
    for row in result["seconds"].values():
        assert {who: len(values) for who, values in row.items()} == {"mxmp": rounds, "contrib.amp": rounds}
    assert (tmp_path / "conversion.png").read_bytes().startswith(PNG)
    assert "at most 1.5" in capsys.readouterr().out


@pytest.mark.slow
def test_trainer_step_compares_with_its_peer(tmp_path, capsys):
    arguments = ["--network", "mobilenet0.25", "--warmup", "1", "--rounds", "3", "--out", str(tmp_path)]
    assert trainer_step.main(arguments) == 0
    result = json.loads((tmp_path / "trainer_step.json").read_text())
    assert set(result["ratios"]) == set(result["seconds"]) == set(trainer_step.ROWS)
    for row, found in result["seconds"].items():
        assert {who: len(values) for who, values in found.items()} == {"mxmp": 3, "mx.gluon": 3}
        ratios = sorted(a / b for a, b in zip(found["mxmp"], found["mx.gluon"]))
        assert result["ratios"][row] == ratios[1]
    assert (tmp_path / "trainer_step.png").read_bytes().startswith(PNG)
    out = capsys.readouterr().out
    assert "at most 1.05" in out and "at most 1.2 " in out


def test_trainer_step_times_a_step_that_is_taken_like_its_peers():
    """Both sides start alike, see the same gradients, and end alike: neither does less."""
    params = {who: trainer_step.parameters("mobilenet0.25", "float32") for who in ("own", "peer")}
    for own, peer in zip(*params.values()):
        peer.set_data(own.data())
    before = params["own"][0].data().asnumpy()
    for side in (trainer_step.Own(params["own"]), trainer_step.Peer(params["peer"])):
        for _ in range(2):
            assert trainer_step.seconds_of(side) > 0
    for own, peer in zip(*params.values()):
        assert (own.data() == peer.data()).min().asscalar()
    assert (params["own"][0].data().asnumpy() != before).all()


@pytest.mark.slow
def test_import_time_compares_with_its_peer(tmp_path, capsys, monkeypatch):
    seconds_of, asked = import_time.seconds_of, []

    def timed(code):
        """Leave out the first round, which warms the file cache and counts for nothing."""
        asked.append(code)
        return seconds_of(code) if len(asked) > 2 else 0.0

    monkeypatch.setattr(import_time, "seconds_of", timed)
    assert import_time.main(["--rounds", "1", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "import_time.json").read_text())
    (own,), (peer,) = result["seconds"]["mxmp and MXNet"], result["seconds"]["MXNet"]
    assert result["added_ms"] == pytest.approx(1e3 * (own - peer)) and own > 0 and peer > 0
    assert asked[:2] == asked[:1:-1] and len(set(asked)) == 2  # the two take turns
    assert "at most 20" in capsys.readouterr().out
