"""``mxmp tune``, ``benchmark`` and ``convert --tuned``: from a checkpoint to times and a plan, and from a plan back."""

import dataclasses
import json
from unittest import mock

import pytest

from mxmp import tune as package
from mxmp.devices.speed import read_machine
from mxmp.tune import TuneResult, load
from mxmp.tune import benchmark as times
from mxmp.tune import plan as plans
from mxmp.tune.plan import digest
from tests.cli.checkpoints import SHAPE, SHAPES, contents, mxmp, network, said, save, table
from tests.cli.test_errors import refused
from tests.cli.test_process import FORK, python
from tests.tune.results import result

POLICY = "mixed_bfloat16,op:BatchNorm=float32"


@pytest.fixture
def prefix(tmp_path):
    return save(tmp_path)


@pytest.fixture
def plan(tmp_path):
    def write(policy=POLICY, **options):
        result(policy, network=digest([network()]), **options).save(str(tmp_path / "plan.json"))
        return tmp_path / "plan.json"

    return write


def test_tune_prints_what_it_measured_and_writes_a_plan_that_convert_takes(prefix, tmp_path):
    before, file = contents(tmp_path), tmp_path / "plan.json"
    out, _ = mxmp("tune", prefix, 3, "--shape", SHAPE, "--seconds", "0.1", "--for-inference", "-o", file)
    assert contents(tmp_path) == {**before, file: file.read_bytes()} and said(out)["written"] == str(file)
    assert table(out)[0][0] == "plan" and table(out)[1][0].startswith("float32")
    assert said(out)["holds for"].endswith(f"data (2, 3, 8, 8); network {digest([network()])}")
    found = load(str(file), network(), shapes=SHAPES)
    assert said(mxmp("convert", prefix, 3, "-o", tmp_path / "out", "--tuned", file)[0])["policy"] == str(found.policy)


def test_tune_takes_the_seconds_and_the_policy(prefix):
    options = ["--policy", "bfloat16", "--keep-float32", "fc", "--seconds", "7.5", "--objective", "inference"]
    with mock.patch.object(package, "tune", return_value=result()) as tune:
        mxmp("tune", prefix, 3, "--shape", SHAPE, *options)
    _, _, policy, objective = tune.call_args[0]
    assert str(policy).startswith("param=bfloat16") and policy.names == (("fc", "float32"),)
    assert objective == "inference" and tune.call_args[1] == {"seconds": 7.5, "for_inference": False}


def test_convert_does_what_a_plan_says(prefix, plan, tmp_path):
    calls = {
        "a": ("--tuned", plan()),
        "b": ("--policy", POLICY, "--shape", SHAPE),
        "c": ("--tuned", plan(), "--shape", SHAPE),
    }
    outs = {name: mxmp("convert", prefix, 3, "-o", tmp_path / name, *options)[0] for name, options in calls.items()}
    symbols = {(tmp_path / f"{name}-symbol.json").read_text() for name in calls}
    assert "BatchNorm=float32" in said(outs["a"])["policy"] and len(symbols) == 1 and "amp_cast" in symbols.pop()
    folding = plan("mixed_bfloat16", for_inference=True, objective="inference")
    mxmp("convert", prefix, 3, "-o", tmp_path / "folded", "--tuned", folding)
    assert "BatchNorm" not in (tmp_path / "folded-symbol.json").read_text()


def test_convert_refuses_a_plan_of_another_machine(prefix, plan, tmp_path, monkeypatch):
    machine = dataclasses.replace(read_machine(), cores=97)
    monkeypatch.setattr(plans, "read_machine", lambda: machine)
    refused("cores: found 97", "convert", prefix, 3, "-o", tmp_path / "a", "--tuned", plan())


INTERRUPTS = f"""{FORK}
import mxmp, mxnet, signal
from mxmp.cli import main
from mxmp.tune import by_time, race

class Interrupted(race.Race):
    interrupted = False

    def _build(self, name):
        if not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the interrupt comes before")
        return super()._build(name)

def at_the_symbol():
    read = lambda event, args: event == "open" and str(args[0]).endswith("net-symbol.json")
    sys.addaudithook(lambda event, args: os.kill(os.getpid(), signal.SIGINT) if read(event, args) else None)
    main(sys.argv[1:])

def in_the_search():
    by_time.Race = Interrupted
    main(sys.argv[1:])

print(json.dumps([fork(at_the_symbol), fork(in_the_search)]))
"""


def test_ctrl_c_before_the_search_ends_with_one_line_and_in_it_still_gives_the_result(prefix):
    args = "tune", prefix, 3, "--shape", SHAPE, "--for-inference", "--json"  # with more candidates than float32
    before, (code, out, err) = json.loads(python(INTERRUPTS, *args)[1])
    assert before[:2] == [130, ""] and before[2].startswith("mxmp: interrupted\nloaded: ")
    found = TuneResult.from_json(out)
    assert code == 0 and err.startswith("loaded: ") and json.loads(out)["record"] == "tuned plan"  # nothing else is printed
    assert found.proved and found.for_inference and found.objective == "inference" and found.seconds["float32"] > 0
    assert any("Interrupted" in note for note in found.notes)


# ---------------------------------------------------------------------- benchmark

SHORT = ("--shape", SHAPE, "--seconds", "0.001")


@pytest.mark.parametrize("options", [[], ["--for-inference"]], ids=["training", "for inference"])
def test_policies_that_benchmark_is_asked_for_have_a_row_each(options, prefix, tmp_path):
    before = contents(tmp_path)
    out, err = mxmp("benchmark", prefix, *SHORT, "--policy", "O1", "--policy", "O2", *options)
    assert err == "" and contents(tmp_path) == before
    assert [row[0] for row in table(out) if len(row) == 5] == ["policy", "float32", "O1 (emulated)", "O2 (emulated)"]
    assert ("BatchNorm folded" in out) == bool(options)


def test_without_bfloat16_benchmark_has_float32_and_a_note_of_what_to_do(prefix, monkeypatch):
    monkeypatch.setattr(times, "runs_bfloat16", lambda: False)
    out, _ = mxmp("benchmark", prefix, 3, *SHORT)
    assert [row[0] for row in table(out) if len(row) == 3] == ["policy", "float32"] and "--policy O2 emulates float16" in out


def test_the_json_of_benchmark_has_the_same(prefix):
    options = "--policy", "O2", "--keep-float32", "fc", "--objective", "inference", "--json"
    found = json.loads(mxmp("benchmark", prefix, *SHORT, *options)[0])
    assert [row["policy"] for row in found["rows"]] == ["float32", "O2"] and found["objective"] == "inference"
    assert found["rows"][1]["emulated"] and found["rows"][1]["error"] > 0
