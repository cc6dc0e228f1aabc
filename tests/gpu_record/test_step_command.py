"""tools.gpu_record.step on the CUDA wheel, with a network of a user."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.gpu_record.build import build, find_libmxnet
from tools.gpu_record.step import record_step

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
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorder")
    build(find_libmxnet(), folder)
    (folder / "mine.py").write_text(MINE)
    return folder


def test_step_records_a_users_network_in_each_mode(folder):
    steps = {mode: record_step(str(folder / "mine.py"), mode, folder) for mode in ("float32", "O1", "O2")}
    for mode, dtype in (("float32", "float32"), ("O1", "float16"), ("O2", "float16")):
        forward, update = steps[mode].sections["forward"], steps[mode].sections["update"]
        assert [(one.dtype, count) for one, count in forward.convolutions.items()] == [(dtype, 1)]
        assert update.host_reads == (0 if mode == "float32" else 1)
        assert steps[mode].bytes_in_use > 0
    assert sum(steps["float32"].sections["forward"].casts.values()) == 0
    assert sum(steps["O1"].sections["forward"].casts.values()) > 0


def test_the_command_shows_a_table_and_what_fails_in_one_line(folder):
    line = [sys.executable, "-m", "tools.gpu_record.step", str(folder / "mine.py"), "--recorder", str(folder)]
    table = subprocess.run([*line, "--modes", "O1"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "O1" in table and "O2" not in table
    (launches,) = [line for line in table.splitlines() if "kernels launched" in line]
    assert int(launches.split("│")[2]) > 0
    assert "float16 products, float32 sums, tensor_op" in table
    (folder / "mine.py").write_text("def network(): raise KeyError('my data')")
    failed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.endswith("mine.py fails with KeyError: 'my data'\n")
