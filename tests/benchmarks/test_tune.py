"""The tuning benchmark: three plans of each network, measured on networks of their own."""

from __future__ import annotations

import argparse
import json

import mxnet as mx
import pytest

from benchmarks import requirements, tune
from benchmarks.common import AMX, AVX512_BF16
from benchmarks.comparison import NO_BFLOAT16, Comparison
from benchmarks.tunables import make_tunable
from mxmp import Policy
from tests.benchmarks.columns import column
from tests.tune.results import result

PNG = b"\x89PNG\r\n\x1a\n"
ARGS = argparse.Namespace(policy="mixed_bfloat16", seconds=1.0, rounds=3, cpu_time=False)


class Fake:
    """A network whose plans are built, but take no time; and what the tuner finds."""

    def __init__(self, found, fails=()):
        self.found, self.fails, self.built = found, fails, []

    def tune(self, objective, policy, seconds):
        return self.found

    def build(self, objective, policy):
        name = "float32" if policy is None else str(policy)
        if name in self.fails:
            raise mx.MXNetError("MXNetError: could not create a primitive")
        self.built.append((objective, name))
        return lambda: None


@pytest.mark.parametrize(
    "policy, built, shared",
    [("mixed_bfloat16,op:BatchNorm=float32", 3, None), ("mixed_bfloat16", 2, 1), ("O0", 2, 0)],
    ids=["tuned", "untuned", "float32"],
)
def test_measure_builds_each_plan_once(policy, built, shared):
    fake = Fake(result(policy))
    columns = tune.measure(fake, "training", ARGS, True, until=0)
    assert [each.title for each in columns] == ["float32", "untuned", "tuned"]
    assert len(fake.built) == built and fake.built[0] == ("training", "float32")
    assert all(len(each.seconds) == 3 for each in columns)
    if shared is not None:
        assert columns[2].seconds == columns[shared].seconds
    assert columns[2].notes["returned"] == fake.found.fastest and columns[2].notes["policy"] == str(
        Policy.parse(policy)
    )


def test_measure_says_where_there_is_no_bfloat16():
    fake = Fake(result("O0"))
    _, untuned, tuned = tune.measure(fake, "inference", ARGS, False, until=0)
    assert untuned.missing == NO_BFLOAT16 and not untuned.seconds
    assert len(fake.built) == 1 and tuned.seconds and not tuned.missing


def test_measure_says_what_fails():
    policy = str(Policy.parse("mixed_bfloat16"))
    _, untuned, _ = tune.measure(Fake(result("O0"), [policy]), "inference", ARGS, True, until=0)
    assert untuned.missing == "fails: MXNetError: could not create a primitive"


def tuned(float32, untuned, seconds, front="training", took=30.0):
    return [
        column(front, "float32", "float32", float32, "float32"),
        column(front, "mxmp", "bfloat16", untuned, "untuned"),
        column(front, "mxmp", "bfloat16", seconds, "tuned", notes={"tuning_seconds": took, "returned": "tuned"}),
    ]


@pytest.mark.parametrize("times, ratio", [((2.0, 4.0, 1.0), 2.0), ((4.0, 2.0, 1.0), 2.0), ((2.0, 4.0, 2.5), 0.8)])
def test_the_ratio_is_to_the_better_of_both(times, ratio):
    found = Comparison(tuned(*times))
    assert requirements.against_better("training")(found) == pytest.approx(ratio)
    assert requirements.against_better("inference")(found) is None


def verdicts(found, unit):
    return {check.what: check.verdict for check in requirements.tuning(found, unit)}


def test_requirements_of_tuning():
    slow = {"lstm": Comparison(tuned(2.0, 4.0, 2.5)), "resnet20": Comparison(tuned(1.5, 4.0, 1.0))}
    never = "training: tuned against the better of float32 and untuned"
    on_amx, on_avx = (f"{unit}: ResNet-20 training, tuned against float32" for unit in (AMX, AVX512_BF16))
    assert verdicts(slow, AMX)[never] == requirements.NOT_MET
    assert verdicts({"resnet20": slow["resnet20"]}, AMX)[never] == requirements.MET
    assert verdicts(slow, AMX)[on_amx] == requirements.NOT_MET and verdicts(slow, AMX)[on_avx] == requirements.NOT_HERE
    assert verdicts(slow, AVX512_BF16)[on_avx] == requirements.MET
    assert set(verdicts(slow, "").values()) == {requirements.NOT_HERE}


@pytest.mark.parametrize("took, verdict", [(39.0, requirements.MET), (41.0, requirements.NOT_MET)])
def test_resnet50_is_tuned_within_40_seconds(took, verdict):
    found = {"resnet50_v1": Comparison(tuned(2.0, 2.0, 1.0, "inference", took))}
    assert verdicts(found, AMX)["ResNet-50 inference: 40 s divided by the time that tuning took"] == verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv2_1.0", "lstm", "bert_mini", "ssd"])
def test_networks_have_the_same_names_when_they_are_built_again(name):
    """A policy that names their operators is for both; and they train."""
    tunable = make_tunable(name, batch_size=1)
    first, second = (tunable.tune("inference", "mixed_bfloat16", 0.1) for _ in range(2))
    assert first.holds_for == second.holds_for
    tunable.build("training", None)()


@pytest.mark.slow
def test_tune_writes_json_tables_and_plot(tmp_path, capsys):
    small = ["--networks", "resnet20", "--batch-size", "2", "--rounds", "2", "--seconds", "2"]
    assert tune.main([*small, "--out", str(tmp_path)]) == 0
    columns = json.loads((tmp_path / "tune.json").read_text())["networks"]["resnet20"]
    assert [each["front"] for each in columns] == 3 * ["training"] + 3 * ["inference"]
    assert columns[2]["notes"]["returned"] in columns[2]["notes"]["tuner"] and len(columns[0]["seconds"]) >= 2
    assert (tmp_path / "tune.png").read_bytes().startswith(PNG)
    out = capsys.readouterr().out
    assert "Tuned, training" in out and "against the better" in out
