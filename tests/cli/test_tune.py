"""``mxmp tune``, and ``mxmp convert --tuned``: from a checkpoint to a plan, and from a plan to a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest

from mxmp import tune as package
from mxmp.devices.speed import read_machine
from mxmp.tune import TuneResult, load
from mxmp.tune import plan as plans
from mxmp.tune.plan import digest
from tests.cli.checkpoints import SHAPE, contents, mxmp, network, save, table
from tests.cli.test_errors import refused
from tests.cli.test_process import interrupted, start
from tests.tune.results import result

QUICK = ("--seconds", "2")
POLICY = "mixed_bfloat16,op:BatchNorm=float32"


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.fixture
def plan(tmp_path):
    """Return the file of a plan for the small network."""
    path = str(tmp_path / "plan.json")
    result(POLICY, network=digest([network()])).save(path)
    return path


def cells(out):
    """Return what is said of each thing, in tables of two columns or in lines."""
    lines = (re.fullmatch(r" (\S.*?)  +(\S.*)", line.rstrip()) for line in out.splitlines())
    return {**{row[0]: row[1] for row in table(out) if len(row) == 2}, **dict(line.groups() for line in lines if line)}


@pytest.mark.parametrize("options", [[], ["--objective", "inference"], ["--for-inference"]], ids=" ".join)
def test_tune_prints_what_it_measured_and_changes_no_file(options, prefix, tmp_path):
    before = contents(tmp_path)
    out, _ = mxmp("tune", prefix, 3, "--shape", SHAPE, *QUICK, *options)
    assert contents(tmp_path) == before
    assert table(out)[0][0] == "plan" and table(out)[1][0].startswith("float32")
    assert cells(out)["holds for"].endswith(f"data (2, 3, 8, 8); network {digest([network()])}")


def test_tune_writes_a_plan_that_convert_takes(prefix, tmp_path):
    file = tmp_path / "plan.json"
    out, _ = mxmp("tune", prefix, 3, "--shape", SHAPE, *QUICK, "--objective", "inference", "-o", file)
    assert cells(out)["written"] == str(file)
    found = load(str(file), network(), shapes={"data": (2, 3, 8, 8)})
    out, _ = mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--tuned", file)
    assert cells(out)["policy"] == str(found.policy)


def test_tune_prints_json(prefix):
    out, _ = mxmp("tune", prefix, 3, "--shape", SHAPE, *QUICK, "--for-inference", "--json")
    found = TuneResult.from_json(out)
    assert found.for_inference and found.objective == "inference" and found.seconds["float32"] > 0


def test_tune_takes_the_seconds_and_the_policy(prefix, monkeypatch):
    given = {}

    def fake(net_or_model, batches, policy, objective, **options):
        given.update(options, policy=policy, objective=objective)
        return result()

    monkeypatch.setattr(package, "tune", fake)
    options = ["--policy", "bfloat16", "--keep-float32", "fc", "--seconds", "7.5", "--objective", "inference"]
    mxmp("tune", prefix, 3, "--shape", SHAPE, *options)
    assert str(given["policy"]).startswith("param=bfloat16") and given["policy"].names == (("fc", "float32"),)
    assert given["seconds"] == 7.5 and given["objective"] == "inference" and not given["for_inference"]


def test_convert_does_what_a_plan_says(prefix, plan, tmp_path):
    """As the same policy and shapes by hand do."""
    out, _ = mxmp("convert", prefix, 3, "-o", tmp_path / "a", "--tuned", plan)
    assert "BatchNorm=float32" in cells(out)["policy"]
    mxmp("convert", prefix, 3, "-o", tmp_path / "b", "--policy", POLICY, "--shape", SHAPE)
    assert (tmp_path / "a-symbol.json").read_bytes() == (tmp_path / "b-symbol.json").read_bytes()
    assert "amp_cast" in (tmp_path / "a-symbol.json").read_text()
    mxmp("convert", prefix, 3, "-o", tmp_path / "c", "--tuned", plan, "--shape", SHAPE)
    assert (tmp_path / "a-symbol.json").read_bytes() == (tmp_path / "c-symbol.json").read_bytes()


def test_convert_folds_what_a_plan_for_inference_folded(prefix, plan, tmp_path):
    folded = {"for_inference": True, "objective": "inference"}
    result("mixed_bfloat16", network=digest([network()]), **folded).save(plan)
    mxmp("convert", prefix, 3, "-o", tmp_path / "a", "--tuned", plan)
    assert "BatchNorm" not in (tmp_path / "a-symbol.json").read_text()


def test_convert_refuses_a_plan_of_another_machine(prefix, plan, tmp_path, monkeypatch):
    here = read_machine()
    monkeypatch.setattr(plans, "read_machine", lambda: dataclasses.replace(here, cores=97))
    refused("cores: found 97", "convert", prefix, 3, "-o", tmp_path / "a", "--tuned", plan)


TUNING = """
import os, signal, sys
from mxmp.tune import by_time, race

class Interrupted(race.Race):
    interrupted = False

    def _build(self, name):
        if not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the interrupt comes before")
        return super()._build(name)

by_time.Race = Interrupted
from mxmp.cli import main
main(sys.argv[1:])
"""


def test_ctrl_c_ends_the_search_and_still_gives_the_result(prefix, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", TUNING, "tune", prefix, "3", "--shape", SHAPE]
    command += ["--for-inference", "--json"]  # which has more than one candidate where MXNet runs no bfloat16
    done = subprocess.run(command, capture_output=True, text=True)
    found = TuneResult.from_json(done.stdout)
    assert done.returncode == 0 and found.proved and found.seconds["float32"] > 0
    assert any("Interrupted" in note for note in found.notes)


def test_ctrl_c_before_the_search_ends_with_one_line(prefix):
    assert interrupted("tune", prefix, 3, "--shape", SHAPE) == (130, "", "mxmp: interrupted\n")


def test_nothing_but_the_result_is_printed(prefix):
    """MXNet's own lines about its backend neither, which would go through the bar."""
    with start(
        "tune", prefix, 3, "--shape", SHAPE, *QUICK, "--for-inference", "--json", stdout=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "") and json.loads(out)["record"] == "tuned plan"
