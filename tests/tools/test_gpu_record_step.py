"""tools.gpu_record.step and recorded_step, as far as they need no CUDA: arguments, shapes, users' files, the table."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

import symbols
from tools.gpu_record.recorded_step import UsageError, input_shapes, load
from tools.gpu_record.step import RecordedStep, Summary, main, table
from tools.gpu_record.summary import Convolution, MatrixProduct, Rnn

ROOT = Path(__file__).resolve().parent.parent.parent


def recorded(**update):
    parts = {"forward": Summary(launches=10), "backward": Summary(launches=1200), "update": Summary(**update)}
    return RecordedStep(parts, 2_500_000)


def printed(steps):
    console = Console(file=io.StringIO(), width=200)
    console.print(table(steps))
    rows = [line.split("│")[1:-1] for line in console.file.getvalue().splitlines() if "│" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


def test_table_adds_up_the_parts_of_a_step():
    update = {"launches": 3, "casts": Counter({"float32->float16": 2}), "host_reads": 1, "host_read_bytes": 4}
    rows = printed({"float32": recorded(), "O2": recorded(**update)})
    assert rows["kernels launched"] == ["1,210", "1,213"]
    assert rows["in backward"] == ["1,200", "1,200"]
    assert rows["in update"] == ["0", "3"]
    assert rows["of them casts"] == ["0", "2"]
    assert (rows["reads by the host"], rows["their bytes"]) == (["0", "1"], ["0", "4"])
    assert rows["memory in use between steps"] == ["2.5 MB", "2.5 MB"]


def test_table_counts_products_by_what_they_are_computed_in():
    mixed = {
        "matrix_products": Counter({MatrixProduct("cublasGemmEx", "float16", "float32", "tensor_op"): 2}),
        "convolutions": Counter({Convolution("forward", "float16", "float32", "tensor_op"): 3}),
        "rnns": Counter({Rnn("cudnnRNNForwardTrainingEx", "lstm", "float16", "float32", "default"): 1}),
    }
    rows = printed({"float32": recorded(), "O1": recorded(**mixed)})
    assert rows["float16 products, float32 sums, tensor_op"] == ["0", "5"]
    assert rows["float16 recurrent, float32 sums, default"] == ["0", "1"]


@pytest.mark.parametrize("text", ["data", "data=", "=1,2", "data=1,x", "data=0,2"])
def test_a_shape_that_is_none_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        main(["lenet", "--shape", text])
    assert f"{text!r}: expected NAME=SIZE,SIZE,..." in capsys.readouterr().err


def test_an_unknown_mode_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["lenet", "--modes", "float32,O4"])
    assert "unknown mode 'O4'; expected some of float32,O1,O2,O3" in capsys.readouterr().err


def test_command_with_a_cpu_build_says_what_it_needs(tmp_path):
    line = [sys.executable, "-m", "tools.gpu_record.step", "lenet", "--recorder", str(tmp_path / "new")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("mxmp: ") and done.stderr.count("\n") == 1
    assert "is a CPU build" in done.stderr and "pip install mxnet-cu112==1.9.1" in done.stderr
    assert not (tmp_path / "new").exists()


def test_input_shapes_infers_labels_from_data():
    data, labels = input_shapes(symbols.get_symbol("lenet"), "lenet", {"data": (2, 1, 28, 28)})
    assert data == {"data": (2, 1, 28, 28)}
    assert labels == {"softmax_label": (2,)}


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({}, "the shape of data, token_types, valid_length, softmax_label is not known; give it, batch first, as --shape"),
        ({"data": (8, 64)}, "is not known with data=8x64"),
        ({"images": (1,)}, "bert_mini has no input images; its inputs are data, token_types, valid_length"),
    ],
)
def test_input_shapes_names_what_is_missing_or_unknown(shapes, text):
    with pytest.raises(UsageError) as caught:
        input_shapes(symbols.get_symbol("bert_mini"), "bert_mini", shapes)
    assert text in str(caught.value)


def test_load_returns_what_the_function_of_a_file_gives(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    (tmp_path / "helper_of_mine.py").write_text("NET = 'net'\n")
    text = "from helper_of_mine import NET\nimport mxnet as mx\ndef network():\n    return NET, [mx.nd.ones(1)], [], 'loss'\n"
    file.write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    net, inputs, labels, loss = load(str(file))
    assert (net, len(inputs), labels, loss) == ("net", 1, [], "loss")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = 1", "has no function network()"),
        ("network = 3", "has no function network()"),
        ("def network(): return 1", "returns a int; expected (net, inputs, labels"),
        ("def network(): return 1, 2", "returns 2 values; expected (net, inputs, labels"),
        ("def network(): return 1, [2], [], 3", "the inputs that network() of"),
        ("def network(): raise KeyError('my data')", "fails with KeyError: 'my data'"),
        ("import nosuchmodule", "fails with ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def network(:", "fails with SyntaxError"),
    ],
)
def test_load_says_what_a_file_has_to_hold(tmp_path, text, part, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(str(file))
    assert part in str(caught.value)
