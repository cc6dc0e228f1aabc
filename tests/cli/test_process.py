"""The command line as a program: pipes, terminals, signals."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mxmp.cli.commands import commands
from tests.cli.checkpoints import SHAPE, save

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


AT_THE_SYMBOL = """
import os, signal, sys
from mxmp.cli import main
read = lambda event, args: event == "open" and str(args[0]).endswith("net-symbol.json")
sys.addaudithook(lambda event, args: os.kill(os.getpid(), signal.SIGINT) if read(event, args) else None)
main(sys.argv[1:])
"""


def interrupted(*args):
    """Return what Ctrl-C comes to that is pressed when the program opens the file of a symbol."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", AT_THE_SYMBOL, *map(str, args)], env=env, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_ends_with_one_line(tmp_path):
    assert interrupted("inspect", save(tmp_path)) == (130, "", "mxmp: interrupted\n")


def test_progress_shows_on_a_terminal(tmp_path, monkeypatch, capsys):
    """On stderr, and stdout stays what a pipe can take."""
    args = "convert", save(tmp_path), 3, "-o", tmp_path / "out", "--shape", SHAPE
    shown = on_a_terminal(monkeypatch, "stderr", 100, *args)
    out = capsys.readouterr().out
    assert all(stage in shown for stage in ("load", "convert", "write"))
    assert "operators" in out and "\x1b" not in out


def on_a_terminal(monkeypatch, stream, columns, *args):
    """Run the command line in this process, one of whose streams is a real terminal; return what that shows."""
    ours, theirs = pty.openpty()
    for name, value in {"TERM": "xterm", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    with open(ours, "rb", buffering=0) as terminal, ThreadPoolExecutor(1) as reader:
        shown = reader.submit(lambda: b"".join(read(terminal)))
        with open(theirs, "w", encoding="utf-8") as file, monkeypatch.context() as patch:
            patch.setattr(sys, stream, file)
            commands([*map(str, args)], standalone_mode=False)
        return shown.result().decode()


def read(terminal):
    """Return what was written to a terminal until its other end was closed, which Linux calls an error."""
    with contextlib.suppress(OSError):
        yield from iter(lambda: terminal.read(4096), b"")


def test_a_narrow_terminal_breaks_no_name(tmp_path, monkeypatch):
    shown = on_a_terminal(monkeypatch, "stdout", 60, "inspect", save(tmp_path), "--policy", "O1", "--shape", SHAPE)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 60
    for word in ("FullyConnected", "softmax", "conv_weight", "loss_scale=dynamic", "cheapest", "allow: gains from low"):
        assert any(word in line for line in lines), word
