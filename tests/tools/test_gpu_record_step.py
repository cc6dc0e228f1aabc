"""tools.gpu_record.step, as far as it needs no CUDA: the table, and its one line without a recorder."""

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from tests import messages
from tools.gpu_record.step import RecordedStep, table
from tools.gpu_record.summary import Convolution, MatrixProduct, Rnn, Summary

ROOT = Path(__file__).resolve().parent.parent.parent


def recorded(**update):
    parts = {"forward": Summary(launches=10), "backward": Summary(launches=1200), "update": Summary(**update)}
    return RecordedStep(parts, 2_500_000)


def test_the_table_adds_up_the_parts_of_a_step():
    update = {"launches": 3, "casts": Counter({"float32->float16": 2}), "host_reads": 1, "host_read_bytes": 4}
    products = {
        "matrix_products": Counter({MatrixProduct("cublasGemmEx", "float16", "float32", "tensor_op"): 2}),
        "convolutions": Counter({Convolution("forward", "float16", "float32", "tensor_op"): 3}),
        "rnns": Counter({Rnn("cudnnRNNForwardTrainingEx", "lstm", "float16", "float32", "default"): 1}),
    }
    console = Console(file=io.StringIO(), width=200)
    console.print(table({"float32": recorded(), "O2": recorded(**update, **products)}))
    lines = [line.split("│")[1:-1] for line in console.file.getvalue().splitlines() if "│" in line]
    rows = {title.strip(): [cell.strip() for cell in cells] for title, *cells in lines}
    assert rows.items() >= {
        "kernels launched": ["1,210", "1,213"],
        "in backward": ["1,200", "1,200"],
        "in update": ["0", "3"],
        "of them casts": ["0", "2"],
        "reads by the host": ["0", "1"],
        "their bytes": ["0", "4"],
        "bytes in use between steps": ["2,500,000", "2,500,000"],
        "float16 products, float32 sums, tensor_op": ["0", "5"],
        "float16 recurrent, float32 sums, default": ["0", "1"],
    }.items()


def test_the_command_without_a_recorder_says_what_it_needs(tmp_path):
    line = [sys.executable, "-m", "tools.gpu_record.step", "mine.py", "--recorder", str(tmp_path / "new")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "new").exists()) == (1, False)
    messages.fit(done.stderr, "mxmp: ...new holds no recorder; run: python -m tools.gpu_record.build ...\n")
