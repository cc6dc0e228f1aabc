"""How the program starts: without MXNet where it can, and ready for Ctrl-C from its first line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from tests.cli.checkpoints import save
from tests.cli.test_process import start

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("mxnet", "numpy", "rich", "matplotlib", "scipy")

FORK = f"""
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
                loaded = [name for name in {HEAVY!r} if name in sys.modules]
                print("loaded:", *loaded, file=sys.stderr, flush=True)
                os._exit(e.code or 0)
            except BaseException:
                traceback.print_exc()
            os._exit(99)
        status = os.waitpid(child, 0)[1]
        texts = (file.seek(0) or file.read().decode() for file in (out, err))
        return [os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), *texts]
"""

ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

def python(code, *args, cwd=ROOT):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=ENV, capture_output=True, text=True)


CLICK = tuple(map(int, version("click").split(".")[:2]))
ARGUMENTS = [
    (["--help"], 0),
    (["--version"], 0),
    ([], 0 if CLICK < (8, 2) else 2),
    *(
        ([command, "--help"], 0)
        for command in ("convert", "inspect", "tune", "build", "doctor", "launch", "ranges", "run")
    ),
    (["benchmark", "--help"], 0),
    (["benchmark", "net"], 2),
    (["nonsense"], 2),
    (["convert", "net"], 2),
    (["convert", "net", "three", "-o", "out"], 2),
    (["convert", "net", "3", "-o", "out", "--policy", "O9"], 2),
    (["convert", "net", "3", "-o", "out", "--dtype", "data:int7"], 2),
    (["convert", "net", "3", "-o", "out", "--tuned", "setup.py", "--policy", "O1"], 2),
    (["inspect", "net", "--shape", "data:2x3"], 2),
    (["tune", "net", "3"], 2),
    (["tune", "net", "3", "--shape", "data:2,3", "--objective", "speed"], 2),
    (["inspect", "net-symbol.json"], 2),
    (["doctor", "--policy", "O1,loss_scale=-1"], 2),
    (["launch", "-n", "0", "true"], 2),
    (["run", "nowhere.py"], 2),
    (["launch", "-n", "1", "--hosts", "127.0.0.1", "true"], 0),
]

ANSWER = f"""{FORK}
from mxmp.cli import main
print(json.dumps([fork(lambda: main(args)) for args in json.loads(sys.argv[1])]))
"""


def answers_of(several, folder):
    """Return what arguments come to, by arguments: each in a copy of a process that has just started in a folder."""
    done = python(ANSWER, json.dumps(several), cwd=folder)
    assert done.returncode == 0, done.stderr
    return {tuple(args): answer for args, answer in zip(several, json.loads(done.stdout))}


@pytest.fixture(scope="module")
def answers():
    return answers_of([args for args, _ in ARGUMENTS], ROOT)


@pytest.mark.parametrize(
    "args, code",
    ARGUMENTS,
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_and_wrong_arguments_need_no_mxnet(args, code, answers):
    found, _, err = answers[tuple(args)]
    assert found == code
    assert err.splitlines()[-1] == "loaded:"


MISSING = [
    ["convert", "NET", "3", "-o", "OUT"],
    ["convert", "SAVED", "4", "-o", "OUT"],
    ["convert", "SAVED", "3", "-o", "SAVED"],
    ["convert", "SAVED", "3", "-o", "nowhere/OUT"],
    ["convert", "SAVED", "3", "-o", "TAKEN"],
    ["inspect", "NET"],
    ["inspect", "SAVED", "--epoch", "4"],
    ["tune", "NET", "3", "--shape", "data:1"],
    ["tune", "SAVED", "3", "--shape", "data:1", "-o", "SAVED-0003.params"],
    ["benchmark", "NET", "--shape", "data:1"],
    ["benchmark", "SAVED", "4", "--shape", "data:1"],
    ["compare", "NET", "3", "--shape", "data:1"],
    ["compare", "SAVED", "3", "--shape", "data:1", "-o", "SAVED-0003.params"],
    ["ranges", "NET", "3", "--shape", "data:1"],
]


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """Return what `MISSING` come to, in a folder with three empty files, and the files that are there then."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("SAVED-symbol.json", "SAVED-0003.params", "TAKEN-0003.params"):
        (folder / name).write_text("")
    return answers_of(MISSING, folder), sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("args", MISSING, ids=" ".join)
def test_files_that_are_missing_or_in_the_way_are_told_without_mxnet(args, failures):
    code, out, err = failures[0][tuple(args)]
    said, loaded = err.splitlines()
    assert (code, out, loaded) == (1, "", "loaded:") and said.startswith("mxmp: error: ")
    assert failures[1] == ["SAVED-0003.params", "SAVED-symbol.json", "TAKEN-0003.params"]


def test_importing_mxmp_imports_no_mxnet_until_a_part_is_used():
    code = "import sys, mxmp; before = 'mxnet' in sys.modules; mxmp.gluon; print(before, 'mxnet' in sys.modules)"
    assert python(code).stdout == "False True\n"


CONVERTING = """
import sys, mxmp
from mxnet.gluon import nn
net = nn.HybridSequential()
net.add(nn.Dense(4, in_units=4), nn.Activation("relu"), nn.Dense(2, in_units=4))
net.initialize()
mxmp.gluon.convert(net, sys.argv[1])
print("matplotlib" in sys.modules)
"""


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_converting_imports_no_matplotlib_and_writes_nothing_to_a_read_only_home(policy, tmp_path):
    home = tmp_path / "home"
    home.mkdir(0o555)
    pytest.importorskip("matplotlib")
    env = {name: value for name, value in ENV.items() if not name.startswith(("XDG_", "MPL"))}
    done = subprocess.run(
        [sys.executable, "-c", CONVERTING, policy],
        cwd=ROOT, env={**env, "HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert list(home.iterdir()) == []  # root may write to any folder


MODULES = [
    "click",
    "mxmp.cli.environment",
    f"numpy.{'_core' if np.__version__ >= '2' else 'core'}._multiarray_umath",  # extensions make an ImportError of an exception
    "numpy.random.mtrand",
    "mxnet.libinfo",
    "mxnet._ctypes.ndarray",
    "rich.table",
]

AT_IMPORTS = f"""{FORK}
import signal
found = {{}}

class Press:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split() and name not in found:
            found[name] = None
            found[name] = fork(lambda: os.kill(os.getpid(), signal.SIGINT))

sys.meta_path.insert(0, Press())
from mxmp.cli import main
try:
    main(["inspect", sys.argv[2]])
except SystemExit:
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Return what Ctrl-C at the import of each of `MODULES` came to: one program goes on, copies of it get the signal."""
    done = python(AT_IMPORTS, " ".join(MODULES), save(tmp_path_factory.mktemp("inspected")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_at_an_import_ends_with_one_line(module, interrupted):
    assert interrupted[module] == [130, "", "mxmp: interrupted\n"]


@pytest.mark.parametrize("mapped", ["_multiarray_umath", "libmxnet.so"])
def test_ctrl_c_while_a_library_is_loaded_ends_with_one_line(mapped, tmp_path):
    """From outside, at whatever instruction that is."""
    with start("inspect", save(tmp_path), stdout=subprocess.PIPE) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while mapped not in maps.read_text():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "mxmp: interrupted\n")


def test_a_lost_interrupt_ends_the_program_too():
    """An exception in a destructor is not raised."""
    code = """
import os, signal
from mxmp.cli.interrupts import end_at_once, raising
end_at_once()
class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
with raising():
    Lost()
print("went on")
"""
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mxmp: interrupted\n")


def test_a_program_that_ignores_ctrl_c_goes_on_ignoring_it():
    code = (
        "import signal; from mxmp.cli.interrupts import end_at_once; end_at_once(); signal.raise_signal(signal.SIGINT)"
    )
    ignoring = f"import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, [sys.executable, '-c', {code!r}])"
    assert python(ignoring).returncode == 0
