"""Why a step was skipped, found once for all who ask."""

from __future__ import annotations

import numpy as np

from mxmp.diagnose import CSVLogger, Ledger
from mxmp.diagnose.ledger import sample
from tests.diagnose.ledger.runs import Run


def test_the_gradients_of_a_skipped_step_are_read_once_for_logs_and_ledger(tmp_path, monkeypatch):
    run, read = Run({"a": (2,), "b": (1,)}), []
    ledger = Ledger(every=20).attach(run.trainer)
    logs = [CSVLogger(str(tmp_path / name)).attach(run.trainer) for name in ("first.csv", "second.csv")]
    run.step({"a": 1.0, "b": 1.0})
    count = sample.count_exponents
    monkeypatch.setattr(sample, "count_exponents", lambda grads: read.append(len(grads)) or count(grads))
    run.step({"a": np.float32([np.inf, 1]), "b": 1.0})
    run.step({"a": 1.0, "b": np.nan})
    for log in logs:
        log.close()
    assert read == [2, 2]
    assert [layer.skips for layer in ledger.layers] == [1, 1]
    lines = [(tmp_path / name).read_text().splitlines() for name in ("first.csv", "second.csv")]
    for first, second in zip(*lines):
        assert first.split(",")[-1] == second.split(",")[-1]
    assert "'a' (50 %)" in lines[0][2] and "'b' (100 %)" in lines[0][3]
