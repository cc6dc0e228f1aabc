"""The command line as a program: pipes, terminals, signals, and what it imports."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.checkpoints import SHAPE, contents, mxmp, save
from tests.display.runs import report

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def start(*args, columns=100, **streams):
    command, env = [sys.executable, "-m", "mxmp", *map(str, args)], {**ENV, "TERM": "xterm", "COLUMNS": str(columns)}
    return subprocess.Popen(command, env=env, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **streams})


def python(code, *args, cwd=ROOT, **variables):
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, args)]
    done = subprocess.run(command, cwd=cwd, env={**ENV, **variables}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_reader_that_stops_reading_is_no_error(tmp_path):
    """As ``mxmp report ... | head -0``, which prints tables as all commands do."""
    report().save(tmp_path / "RUN.json")
    with start("report", tmp_path / "RUN.json", "-o", tmp_path / "page.html") as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


def read(terminal):
    with contextlib.suppress(OSError):
        yield from iter(lambda: terminal.read(4096), b"")


def on_a_terminal(stream, columns, *args):
    """Run the command line with a real terminal as one of its streams; return what that shows, and the other streams."""
    ours, theirs = pty.openpty()
    with start(*args, columns=columns, **{stream: theirs}) as process, open(ours, "rb", buffering=0) as terminal:
        os.close(theirs)
        shown = b"".join(read(terminal)).decode()
        return shown, process.communicate()


def test_progress_shows_on_a_terminal_and_stdout_stays_for_a_pipe(tmp_path):
    args = "convert", save(tmp_path), 3, "-o", tmp_path / "out", "--shape", SHAPE
    shown, (out, _) = on_a_terminal("stderr", 100, *args)
    assert all(stage in shown for stage in ("load", "convert", "write")) and "operators" in out and "\x1b" not in out


def test_a_narrow_terminal_breaks_no_name(tmp_path):
    shown, _ = on_a_terminal("stdout", 60, "inspect", save(tmp_path), "--policy", "O1", "--shape", SHAPE)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    words = "FullyConnected", "softmax", "conv_weight", "mxmp: O1", "cheapest", "allow: gains from low"
    assert max(map(len, lines)) <= 60
    assert not [word for word in words if not any(word in line for line in lines)]


# ---------------------------------------------------------------------- without MXNet

FORK = """
import json, os, sys, tempfile, traceback

def fork(act):
    \"""Do something in a copy of this process; return its exit code, what it printed, and what it had imported.\"""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
            try:
                act()
            except SystemExit as e:
                sys.stdout.flush()
                loaded = [name for name in ("mxnet", "numpy", "rich", "matplotlib", "scipy") if name in sys.modules]
                print("loaded:", *loaded, file=sys.stderr, flush=True)
                os._exit(e.code or 0)
            except BaseException:
                traceback.print_exc()
            os._exit(99)
        status = os.waitpid(child, 0)[1]
        texts = (file.seek(0) or file.read().decode() for file in (out, err))
        return [os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), *texts]
"""
ANSWER = f"""{FORK}
from mxmp.cli import main
print(json.dumps([fork(lambda: main(args.split())) for args in json.loads(sys.argv[1])]))
"""
COMMANDS = "benchmark build convert doctor inspect launch ranges run".split()
CLICK = tuple(map(int, version("click").split(".")[:2]))
ANSWERED = {  # and the exit codes; the files that NET and SAVED stand for
    "--help": 0,
    "--version": 0,
    "": 0 if CLICK < (8, 2) else 2,
    **{f"{command} --help": 0 for command in COMMANDS},
    "benchmark net": 2,
    "nonsense": 2,
    "convert net": 2,
    "convert net three -o out": 2,
    "convert net 3 -o out --policy O9": 2,
    "convert net 3 -o out --dtype data:int7": 2,
    "inspect net --shape data:2x3": 2,
    "benchmark net 3 --shape data:2,3 --seconds 0": 2,
    "tune net 3": 2,
    "inspect net-symbol.json": 2,
    "doctor --policy O1,loss_scale=-1": 2,
    "launch -n 0 true": 2,
    "run nowhere.py": 2,
    "launch -n 1 --hosts 127.0.0.1 true": 0,
    "report RUN.json -o PAGE.html": 0,
    "convert NET 3 -o OUT": 1,
    "convert SAVED 4 -o OUT": 1,
    "convert SAVED 3 -o SAVED": 1,
    "convert SAVED 3 -o nowhere/OUT": 1,
    "convert SAVED 3 -o TAKEN": 1,
    "inspect NET": 1,
    "inspect SAVED 4": 1,
    "benchmark SAVED": 2,
    "compare SAVED 3": 2,
    "ranges SAVED 3": 2,
    "benchmark NET --shape data:1": 1,
    "benchmark SAVED 4 --shape data:1": 1,
    "compare NET 3 --shape data:1": 1,
    "compare SAVED 3 --shape data:1 -o SAVED-0003.params": 1,
    "ranges NET 3 --shape data:1": 1,
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return what the arguments come to, each in a copy of one process, in a folder with three empty files and a report."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("SAVED-symbol.json", "SAVED-0003.params", "TAKEN-0003.params"):
        (folder / name).write_text("")
    report().save(folder / "RUN.json")
    code, out, err = python(ANSWER, json.dumps([*ANSWERED]), cwd=folder)
    assert (code, len(list(folder.iterdir()))) == (0, 5), err
    return dict(zip(ANSWERED, json.loads(out)))


@pytest.mark.parametrize("args", ANSWERED)
def test_help_wrong_arguments_and_missing_files_need_no_mxnet(args, answers):
    code, out, err = answers[args]
    *said, loaded = err.splitlines()
    assert (code, loaded) == (ANSWERED[args], "loaded: numpy rich" if args.startswith("report") else "loaded:")
    if code == 1:
        assert out == "" and len(said) == 1 and said[0].startswith("mxmp: error: ")


# ---------------------------------------------------------------------- Ctrl-C

AT_A_WRITE = """
import os, signal, sys
from mxmp.cli import main
from mxmp.symbol import checkpoint

def press(*args):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

checkpoint.mx.nd.save = press
main(sys.argv[1:])
"""


def test_ctrl_c_ends_a_command_with_one_line_and_an_exit_code_and_leaves_no_file(tmp_path):
    prefix = save(tmp_path)
    before = contents(tmp_path)
    args = "convert", prefix, 3, "-o", tmp_path / "out"
    assert python(AT_A_WRITE, *args) == (130, "", "mxmp: interrupted\n") and contents(tmp_path) == before


NO_HOME = """
import sys
import mxmp
from mxnet.gluon import nn
for policy in ("O1", "O2"):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Activation("relu"), nn.Dense(2, in_units=4))
    net.initialize()
    mxmp.gluon.convert(net, policy)
print("matplotlib" in sys.modules)
"""


def test_matplotlib_is_not_imported_nor_a_home_written_to(tmp_path):
    """Root may write to any folder."""
    home = tmp_path / "home"
    home.mkdir(0o555)
    pytest.importorskip("matplotlib")
    unset = {name: "" for name in ENV if name.startswith(("XDG_", "MPL"))}
    assert python(NO_HOME, HOME=str(home), **unset) == (0, "False\n", "") and list(home.iterdir()) == []


# ---------------------------------------------------------------------- mxmp launch


def test_launch_passes_on_options_output_and_exit_code_ends_in_time_and_leaves_signals_as_they_were():
    before = signal.getsignal(signal.SIGTERM)
    out, err = mxmp("launch", "-n", "1", "sh", "-c", "echo $DMLC_ROLE $DMLC_NUM_WORKER; exit 5", code=5)
    assert out == "[worker 0] worker 1\n" and signal.getsignal(signal.SIGTERM) is before
    assert err.splitlines()[-1] == "mxmp: worker 0 failed with exit code 5; ended the others."
    assert mxmp("launch", "-n", "1", "echo", "-n", "2", "--timeout", "x")[0] == "[worker 0] 2 --timeout x\n"
    _, err = mxmp("launch", "-n", "1", "--timeout", "0.5", "sleep", "60", code=124)
    assert err.splitlines()[-1] == "mxmp: the job took longer than 0.5 s; ended scheduler, server 0, worker 0."


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_launch_ends_the_workers_too(number, code):
    with start("launch", "-n", "1", "sh", "-c", "echo $$; exec sleep 60") as process:
        pid = int(process.stdout.readline().rsplit(maxsplit=1)[-1])
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == code
    assert subprocess.run(["kill", "-0", str(pid)], stderr=subprocess.PIPE).returncode == 1


def test_launch_prints_the_commands_for_several_machines():
    out, _ = mxmp("launch", "-n", "2", "--hosts", "10.0.0.1, 10.0.0.2", "python", "train.py", "--name", "a b")
    shared = "DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9091 DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=2 DMLC_NODE_HOST=10.0.0"
    worker, other = "python train.py --name 'a b'", f"{sys.executable} -c 'import mxmp, mxnet'"
    assert out.splitlines() == [
        "# on 10.0.0.1",
        f"DMLC_ROLE=scheduler {shared}.1 PORT=9091 {other} &  # scheduler",
        f"DMLC_ROLE=server {shared}.1 PORT=9092 {other} &  # server 0",
        f"DMLC_ROLE=worker {shared}.1 PORT=9093 {worker} &  # worker 0",
        "wait",
        "# on 10.0.0.2",
        f"DMLC_ROLE=worker {shared}.2 PORT=9094 {worker} &  # worker 1",
        "wait",
    ]
