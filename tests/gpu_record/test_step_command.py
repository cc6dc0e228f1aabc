"""tools.gpu_record.step on the CUDA wheel: a user's own network, and one of symbols."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("step_command")  # its programs run once

ROOT = Path(__file__).resolve().parent.parent.parent
MINE = """
import mxnet as mx

def network():
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(8, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(10))
    inputs, labels = [mx.nd.ones((2, 3, 8, 8))], [mx.nd.zeros((2,))]
    return net, inputs, labels, mx.gluon.loss.SoftmaxCrossEntropyLoss()
"""


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """Run the command; the recorder is built by the first call."""
    folder = tmp_path_factory.mktemp("recorder")

    def step(*arguments, expect=0):
        line = [sys.executable, "-m", "tools.gpu_record.step", "--recorder", str(folder), *map(str, arguments)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == expect, done.stderr
        return done.stdout if expect == 0 else done.stderr

    return step


def test_step_shows_a_users_network_in_each_mode(step, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(MINE)
    steps = json.loads(step(mine, "--json"))
    assert list(steps) == ["float32", "O1", "O2"]
    for mode, dtype in (("float32", "float32"), ("O1", "float16"), ("O2", "float16")):
        forward, update = steps[mode]["forward"], steps[mode]["update"]
        assert [(one["dtype"], one["count"]) for one in forward["convolutions"]] == [(dtype, 1)]
        assert update["host_reads"] == (0 if mode == "float32" else 1)
        assert steps[mode]["bytes_in_use"] > 0
    assert sum(steps["float32"]["forward"]["casts"].values()) == 0
    assert sum(steps["O1"]["forward"]["casts"].values()) > 0


def test_step_shows_a_network_of_symbols_as_a_table(step):
    table = step("lenet", "--shape", "data=2,1,28,28", "--modes", "O1")
    assert "O1" in table and "O2" not in table
    (launches,) = [line for line in table.splitlines() if "kernels launched" in line]
    assert int(launches.split("│")[2]) > 0
    assert "float16 products, float32 sums, tensor_op" in table


def test_step_that_fails_says_why_in_one_line(step):
    error = step("nix", expect=1)
    assert error.startswith("mxmp: unknown network 'nix'") and error.count("\n") == 1
