"""The benchmark of the ledger: its kinds of steps are what they are called."""

from __future__ import annotations

import json

import pytest

from benchmarks import ledger
from mxmp.diagnose import Ledger


@pytest.mark.slow
def test_the_average_is_that_of_one_sample_in_so_many(tmp_path, capsys):
    small = ["--network", "mobilenet0.25", "--policy", "float32", "--batch", "1", "--pixels", "32"]
    assert ledger.main([*small, "--warmup", "1", "--rounds", "3", "--every", "4", "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "ledger.json").read_text())
    seconds, ratios = result["seconds"], result["ratios"]
    for kind, ratio in ratios.items():
        assert ratio == sorted(a / b for a, b in zip(seconds[kind], seconds[ledger.WITHOUT]))[1]
    assert result["average"] == (ratios[ledger.SAMPLE] + 3 * ratios[ledger.BETWEEN]) / 4
    assert "at most 1.05" in capsys.readouterr().out


@pytest.mark.slow
def test_each_kind_of_step_is_what_it_is_called():
    training = ledger.Training("mobilenet0.25", "float32", 1, 32)
    found = ledger.measure(training, 1, 2)
    assert {kind: len(values) for kind, values in found.items()} == dict.fromkeys(found, 2)
    looked = {kind: (each.steps, each.sampled) for kind, each in training.ledgers.items()}
    assert looked == {ledger.BETWEEN: (3, 1), ledger.SAMPLE: (3, 3)}
    assert Ledger().every == 20
