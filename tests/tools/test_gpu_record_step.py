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
from tests import messages
from tools.gpu_record.recorded_step import UsageError, input_shapes, load
from tools.gpu_record.step import RecordedStep, Summary, main, table
from tools.gpu_record.summary import Convolution, MatrixProduct, Rnn

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
        "memory in use between steps": ["2.5 MB", "2.5 MB"],
        "float16 products, float32 sums, tensor_op": ["0", "5"],
        "float16 recurrent, float32 sums, default": ["0", "1"],
    }.items()


@pytest.mark.parametrize(
    "option, value, text",
    [
        *(("--shape", value, f"{value!r}: expected NAME=SIZE,SIZE,...") for value in ("data", "=1,2", "data=1,x", "data=0")),
        ("--modes", "float32,O4", "unknown mode 'O4'; expected some of float32,O1,O2,O3"),
    ],
)
def test_an_option_that_is_none_is_refused(option, value, text, capsys):
    with pytest.raises(SystemExit):
        main(["lenet", option, value])
    assert text in capsys.readouterr().err


def test_the_command_with_a_cpu_build_says_what_it_needs(tmp_path):
    line = [sys.executable, "-m", "tools.gpu_record.step", "lenet", "--recorder", str(tmp_path / "new")]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, (tmp_path / "new").exists()) == (1, False)
    messages.fit(done.stderr, "mxmp: ... is a CPU build...pip install mxnet-cu112==1.9.1 (0.5 GB, Linux on x86-64)\n")


def test_shapes_of_labels_are_inferred_from_data():
    given = {"data": (2, 1, 28, 28)}
    assert input_shapes(symbols.get_symbol("lenet"), "lenet", given) == (given, {"softmax_label": (2,)})


def test_a_file_gives_what_its_function_returns(tmp_path, monkeypatch):
    (tmp_path / "helper_of_mine.py").write_text("NET = 'net'\n")
    text = "from helper_of_mine import NET\nimport mxnet as mx\ndef network(): return NET, [mx.nd.ones(1)], [], 'loss'\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    net, inputs, labels, loss = load(str(tmp_path / "mine.py"))
    assert (net, len(inputs), labels, loss) == ("net", 1, [], "loss")


def load_text(text, folder):
    (folder / "mine.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        load(str(folder / "mine.py"))


def shapes_of_bert(**shapes):
    input_shapes(symbols.get_symbol("bert_mini"), "bert_mini", shapes)


FILES = {
    "x = 1": "... has no function network(); it returns a net, its inputs, its labels and its loss",
    "network = 3": "... has no function network(); ...",
    "def network(): return 1": "network() of ... returns a int; expected (net, inputs, labels, loss)",
    "def network(): return 1, 2": "network() of ... returns 2 values; expected (net, inputs, labels, loss)",
    "def network(): return 1, [2], [], 3": "the inputs that network() of ... returns are no list of NDArrays",
    "def network(): raise KeyError('my data')": "... fails with KeyError: 'my data'",
    "import nosuchmodule": "... fails with ModuleNotFoundError: No module named 'nosuchmodule'",
    "def network(:": "... fails with SyntaxError: ...",
}
MESSAGES = {
    **{text: (lambda tmp_path, text=text: load_text(text, tmp_path), UsageError, says) for text, says in FILES.items()},
    "no file": (lambda: load("no.py"), UsageError, "no.py is not there; name a Python file, or a network of symbols"),
    "no shapes": (lambda: shapes_of_bert(), UsageError, "bert_mini: the shape of data, token_types, valid_length, softmax_label is not known; give it, batch first, as --shape data=SIZE,SIZE,..., which may be repeated"),
    "one shape": (lambda: shapes_of_bert(data=(8, 64)), UsageError, "... is not known with data=8x64...; give it, ..."),
    "no input": (lambda: shapes_of_bert(images=(1,)), UsageError, "bert_mini has no input images; its inputs are data, token_types, valid_length, softmax_label"),
}


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
