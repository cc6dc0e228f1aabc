"""The benchmarks at their smallest: what they write and print. Times are not looked at, but for those that are told."""

import json
import os
import subprocess
import sys
import time
from itertools import chain, repeat

import mxnet as mx
import numpy as np
import pytest

from benchmarks import cases, other_work, runner, zoo
from benchmarks.__main__ import main
from benchmarks.cases import GROUPS, Column, Group, Options, Started
from mxmp.diagnose import runs_bfloat16

COLUMNS = {
    "inference": {
        "symbolic": ["bound", "mxmp float32, folded", "contrib.amp", "mxmp, fused", "mxmp, folded"],
        "Gluon": ["hybridized", "fused", "mxmp float32, frozen", "contrib.amp", "mxmp, fused", "mxmp, frozen"],
    },
    "training": {
        "": ["float32", "contrib.amp", "mixed_bfloat16", "bfloat16, stored", "float16 O1", "float16 O2"],
    },
    "trainer-step": {"": ["mx.gluon", "mxmp"]},
    "conversion": {
        what: ["contrib.amp", "mxmp"]
        for what in ("weights in float32 (O1)", "weights in float16 (O2)", "symbol alone (O1)")
    },
    "placement": {"": ["mxmp", "contrib.amp"]},
}
"""The columns of each group that are there whatever is installed."""


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_gives_a_table_json_and_a_plot(group, tmp_path, capsys):
    file, picture = tmp_path / "found.json", tmp_path / "found.png"
    assert main([group, "--small", "--float16", "--json", str(file), "--plot", str(picture)]) == 0
    result = json.loads(file.read_text())
    assert result["machine"]["mxnet"] == "1.9.1" and result["options"]["rounds"] == 1
    (case,) = result["cases"]
    assert (case["group"], case["case"]) == (group, GROUPS[group].small)
    fronts = {}
    for column in case["columns"]:
        fronts.setdefault(column["front"], []).append(column["name"])
        is_measured = len(column["seconds"]) == 1 or column["values"]
        needs_bfloat16 = "MXNet runs no bfloat16" in column["missing"] and not runs_bfloat16()
        assert is_measured or needs_bfloat16 or column["name"] == "contrib.amp", column
    assert {front: [name for name in names if "O" not in name[:1]] for front, names in fronts.items()} == COLUMNS[group]
    assert picture.read_bytes().startswith(b"\x89PNG")
    captured = capsys.readouterr()
    assert GROUPS[group].small in captured.out and f"[1/1] {group}/" in captured.err


@pytest.mark.parametrize(
    "name, text",
    [
        ("trainng", "there is no group 'trainng'; the nearest are training, trainer-step."),
        ("training/lstn", "training has no case 'lstn'; the nearest are lstm."),
        ("trainer-step/lstm", "trainer-step has no case 'lstm'; expected one of float16, float32."),
    ],
)
def test_a_name_of_no_case_gives_one_message(name, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"python -m benchmarks: {text}\n"


def test_cases_are_chosen_by_group_by_name_and_by_any_classifier():
    assert runner.choose([]) == [(name, case) for name, group in GROUPS.items() for case in group.cases]
    wanted = ["training/lstm", "placement/mobilenet0.25", "training/lstm"]
    assert runner.choose(wanted) == [("training", "lstm"), ("placement", "mobilenet0.25")]
    assert runner.choose(["training"], small=True) == [("training", "cifar_resnet20_v1")]


def run(monkeypatch, columns, options, **how):
    """Run a group of one case with these columns; return the result of each."""
    monkeypatch.setitem(GROUPS, "told", Group("", lambda case, options: columns, ("case",), "case", 0.0, **how))
    return runner.run([("told", "case")], options)["told", "case"]


def told(monkeypatch, columns, others=(), **how):
    """Have a group of one case whose laps take the seconds that are told, and other programs cores, round by round."""
    cores = chain(others, repeat(0.0))
    monkeypatch.setattr(other_work.OtherWork, "cores", lambda self: next(cores))

    class Timer:
        def __init__(self, started, cpu_time):
            self.facts = True, None, {}
            self.lap = iter(started.run()).__next__

    monkeypatch.setattr(runner, "Timer", Timer)
    made = [Column(name, lambda times=times: Started(lambda: times), is_base=base) for name, base, times in columns]
    return run(monkeypatch, made, Options(rounds=3), **how)


@pytest.mark.parametrize("is_speed, shown", [(True, "2.00"), (False, "0.50")])
def test_columns_are_compared_with_the_fastest_base_within_rounds(is_speed, shown, monkeypatch, capsys):
    columns = [("slow", True, [4, 8, 4]), ("fast", True, [2, 4, 2]), ("mine", False, [1, 2, 4])]
    found = {result.name: result for result in told(monkeypatch, columns, is_speed=is_speed)}
    assert {name: (result.base, result.ratio) for name, result in found.items()} == {
        "slow": ("fast", 2.0),
        "fast": ("fast", 1.0),
        "mine": ("fast", 0.5),
    }
    cells = [cell.strip() for line in capsys.readouterr().out.splitlines() if "│ case" in line for cell in line.split("│")]
    assert cells[2:5] == ["0.50" if is_speed else "2.00", "2000.0 ms", shown]


def test_a_case_whose_base_scatters_is_called_noisy(monkeypatch, capsys):
    assert told(monkeypatch, [("base", True, [1, 2, 4])])[0].noisy
    assert "case (noisy)" in capsys.readouterr().out


def test_rounds_with_much_other_work_are_left_out(monkeypatch, capsys):
    found = told(monkeypatch, [("base", True, [1, 9, 2, 3])], others=[0.14, 0.16])[0]
    assert (found.seconds, found.left_out) == ([1, 2, 3], 1)
    said = "rounds left out, in which other programs took more than 0.15 of a core: told/case 1"
    assert said in capsys.readouterr().out


def test_on_a_machine_that_is_never_free_a_case_ends_without_a_time(monkeypatch):
    found = told(monkeypatch, [("base", True, [1, 2, 3, 4])], others=[1.0] * 9)[0]
    assert (found.seconds, found.left_out) == ([], 3)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only Linux counts it there")
def test_other_work_is_that_of_all_processes_but_those_that_are_timed():
    """The other process works for half a second, as long as it takes on a busy machine."""
    work = "import time\ninput()\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        everything, others = other_work.OtherWork(), other_work.OtherWork([other.pid])
        begin = time.perf_counter()
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()
        seconds = (everything.cores() - others.cores()) * (time.perf_counter() - begin)
        other.stdin.close()
    assert 0.3 < seconds < 0.6


def test_a_column_that_fails_is_a_line_and_no_end(monkeypatch, capsys):
    def fail():
        raise mx.MXNetError("Traceback:\n  File x\nMXNetError: no such kernel")

    columns = [Column("base", lambda: Started(mx.nd.waitall), is_base=True), Column("broken", fail)]
    base, broken = run(monkeypatch, columns, Options(rounds=2, cpu_time=True))
    assert len(base.seconds) == 2 and broken.seconds == []
    assert "told, broken: fails: " in capsys.readouterr().out and "no such kernel" in broken.missing


@pytest.mark.slow
def test_a_column_in_a_process_of_its_own_gives_the_same_output():
    case, options = ("training", "cifar_resnet20_v1"), Options(batch_size=2, image_size=32)
    remote = runner.Remote(case, 0, options)
    try:
        here = runner.Timer(cases.training(case[1], options)[0].start(), False)
        np.testing.assert_array_equal(remote.facts[1], here.facts[1])
        assert remote.lap() > 0
    finally:
        remote.close()


def test_casts_are_counted_with_their_bytes():
    data = mx.sym.Cast(mx.sym.var("data"), dtype="float16", name="down")
    symbol = mx.sym.amp_cast(mx.sym.amp_cast(data, dtype="float16"), dtype="float32")
    assert cases.casts_of(symbol, {"data": (1000, 1000)}) == {"casts": 2, "MB": 12.0}


def test_a_copy_of_a_network_gives_the_same_logits():
    model = zoo.make_model("mobilenet0.25", 2, 32)
    np.testing.assert_array_equal(model.copy()(model.images).asnumpy(), model.net(model.images).asnumpy())


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
    assert runner.output_error(*arrays) == pytest.approx(error, rel=1e-6)
