"""The command line as a program: pipes, terminals, signals, and the README's commands."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import mxnet as mx

from tests.cli.checkpoints import SHAPE, mxmp, save

ROOT = Path(__file__).resolve().parents[2]


def start(*args, **streams):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "mxmp", *map(str, args)]
    return subprocess.Popen(command, env=env, **{"stderr": subprocess.PIPE, "text": True, **streams})


def test_a_reader_that_stops_reading_is_no_error(tmp_path):
    """As ``mxmp inspect ... | head -0``."""
    with start("inspect", save(tmp_path), stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


def test_ctrl_c_ends_with_one_line(tmp_path):
    fifo = tmp_path / "net-symbol.json"
    os.mkfifo(fifo)
    with start("inspect", tmp_path / "net", stdout=subprocess.PIPE) as process:
        with open(fifo, "w"):  # returns as soon as the program has opened it, which then waits for text
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "mxmp: interrupted\n")


def test_progress_shows_on_a_terminal(tmp_path):
    """On stderr, and stdout stays what a pipe can take."""
    ours, theirs = pty.openpty()
    args = "convert", save(tmp_path), 3, "-o", tmp_path / "out", "--shape", SHAPE
    with start(*args, stdout=subprocess.PIPE, stderr=theirs) as process, open(ours, "rb", buffering=0) as terminal:
        os.close(theirs)
        out = process.stdout.read()
        shown = b"".join(read(terminal))
    assert process.returncode == 0
    assert all(stage in shown for stage in (b"load", b"convert", b"write"))
    assert "operators" in out and "\x1b" not in out


def read(terminal):
    """Return what was written to a terminal until its other end was closed, which Linux calls an error."""
    with contextlib.suppress(OSError):
        yield from iter(lambda: terminal.read(4096), b"")


def section():
    """Return the README's commands, and what it says that the first prints."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = text.split("## A checkpoint from the command line\n")[1].split("\n## ")[0]
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```$", body, re.M | re.S) for line in block.splitlines()]
    printed = re.findall(r"^```text\n(.*?)^```$", body, re.M | re.S)
    return [shlex.split(command, comments=True) for command in commands], printed


def test_the_commands_of_the_readme(tmp_path, monkeypatch):
    """On the network of its section on the Symbolic API."""
    monkeypatch.chdir(tmp_path)
    data = mx.sym.Variable("data")
    mlp = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(data, num_hidden=10, name="fc"), name="softmax")
    arrays = {"fc_weight": mx.nd.random.normal(shape=(10, 20)), "fc_bias": mx.nd.zeros(10)}
    mx.model.save_checkpoint("mlp", 3, mlp, arrays, {})
    commands, (printed,) = section()
    assert len(commands) == 3
    outs = []
    for program, *args in commands:
        assert program == "mxmp"
        outs.append(mxmp(*args)[0])
    assert [line.strip() for line in outs[0].splitlines()] == [line.strip() for line in printed.splitlines()]
