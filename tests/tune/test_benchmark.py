"""What a benchmark measures; times by a clock that is told, errors by numpy."""

import json

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.errors import TuneError
from mxmp.tune import benchmark as module
from mxmp.tune.benchmark import benchmark, default_policies, output_error
from mxmp.tune.race import Stopwatch
from mxmp.tune.workload import Workload
from tests.cli.checkpoints import SHAPES, table
from tests.tune.networks import model
from tests.tune.races import failing

BATCH = {"data": mx.nd.array(np.random.RandomState(0).rand(*SHAPES["data"]))}


def measure(*names, objective="inference", for_inference=False):
    policies = {name: Policy.parse(name) for name in names}
    return benchmark(model(), BATCH, policies, objective, for_inference, 1e-3, False)


def test_times_are_medians_relative_to_float32(monkeypatch):
    laps = iter([2.0, 1.0, 4.0, 2.0])  # of the policies in their order

    def lap_of(watch, run):
        mine = next(laps)
        return lambda: mine

    monkeypatch.setattr(Stopwatch, "lap_of", lap_of)
    found = measure("O1", "O2", "O2,output=float16")
    assert [(row.policy, row.seconds, row.ratio, row.verdict) for row in found.rows] == [
        ("float32", 2.0, 1.0, ""),
        ("O1", 1.0, 0.5, "faster"),
        ("O2", 4.0, 2.0, "slower"),
        ("O2,output=float16", 2.0, 1.0, "within the noise"),
    ]
    assert found.rounds >= 5 and found.scatter == 0
    assert [row["policy"] for row in json.loads(found.to_json())["rows"]] == [row.policy for row in found.rows]
    assert [row[0] for row in table(str(found))][:4] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert "float16 is emulated" in str(found)


@pytest.mark.parametrize("objective, folded", [("training", False), ("inference", False), ("inference", True)])
def test_the_error_is_that_of_outputs_in_inference(objective, folded):
    symbol, args, aux = model()

    def output(dtype):
        executor = symbol.simple_bind(mx.cpu(), grad_req="null", **SHAPES)
        values = {name: mx.nd.array(value.asnumpy().astype(dtype)) for name, value in args.items()}
        executor.copy_params_from({**values, **BATCH}, aux)
        return executor.forward()[0].asnumpy()

    exact, low = measure("float32", "O2", objective=objective, for_inference=folded).rows  # float32 once
    of_weights = np.linalg.norm(output("float16") - output("float32")) / np.linalg.norm(output("float32"))
    assert exact.policy == "float32" and low.emulated and of_weights / 10 < low.error < 1e-3


@pytest.mark.parametrize(
    ("output", "exact", "error"),
    [
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 1.5], [np.inf, 1.0], 0.5),
        ([1.5e30, 0.0], [1e30, 0.0], 0.5),
        ([1.5e-30, 0.0], [1e-30, 0.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([1.0], [0.0], np.inf),
    ],
)
def test_errors_of_extreme_outputs(output, exact, error):
    arrays = np.array(output, np.float32), np.array(exact, np.float32)
    assert output_error(*arrays) == pytest.approx(error, rel=1e-6)
    rows = (module.Timed("float32", 1.0, 1.0), module.Timed("O3", 1.0, 1.0, "slower", error))
    text = module.Benchmark("inference", False, 5, 0.0, rows, "cpu").to_json()
    assert json.loads(text, parse_constant=None)["rows"][1]["error"] == ("inf" if error == np.inf else error)


def test_a_policy_that_does_not_run_says_why_and_float32_has_to_run(monkeypatch):
    monkeypatch.setattr(module, "runs_bfloat16", lambda: False)
    row = measure("mixed_bfloat16").rows[1]
    assert row.seconds is row.error is None
    assert row.failure.startswith("MXNet runs no bfloat16 on this processor")
    monkeypatch.setattr(Workload, "start", failing)
    with pytest.raises(TuneError, match="^the network does not run in float32: there is no memory left"):
        measure("O1")


@pytest.mark.parametrize(("runs", "names"), [(True, ["mixed_bfloat16", "bfloat16"]), (False, [])])
def test_the_policies_of_a_processor_are_those_that_it_runs(runs, names, monkeypatch):
    monkeypatch.setattr(module, "runs_bfloat16", lambda: runs)
    assert list(default_policies(False)) == names
    assert list(default_policies(True)) == ["O1", "O2"]
