"""``mxmp run``: a program finds, does and leaves what it does under Python alone, which is the oracle here."""

import os
import py_compile
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
PYTHON, RUN = [sys.executable], [sys.executable, "-m", "mxmp", "run"]
REPORT = """
from __future__ import annotations
import logging, os, signal, sys
print(__name__, __package__ or None, getattr(__spec__, "name", None), sys.modules["__main__"].__dict__ is globals())
print(os.path.abspath(__file__), os.path.abspath(sys.argv[0]), sys.argv[1:], os.getcwd(), __doc__)
print([os.path.abspath(path) for path in sys.path if path != os.environ["PYTHONPATH"]])
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.excepthook, sys.unraisablehook)
print(logging.getLogger().handlers, sys._getframe().f_code.co_filename)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name in ("scripts/report.py", "app/__main__.py", "pack/__init__.py", "pack/inner.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(REPORT if name != "pack/__init__.py" else "")
    (folder / "link.py").symlink_to("scripts/report.py")
    py_compile.compile(str(folder / "link.py"), str(folder / "scripts" / "compiled.pyc"))
    with zipfile.ZipFile(folder / "app.zip", "w") as file:
        file.writestr("__main__.py", REPORT)
    return folder


def run(command, *args, folder=None, **variables):
    done = subprocess.run([*command, *args], cwd=folder, env={**ENV, **variables}, capture_output=True, text=True, timeout=60)
    return done.stdout, done.stderr, done.returncode


def both(*args, **options):
    expected, found = run(PYTHON, *args, **options), run(RUN, *args, **options)
    assert found == expected
    return found


def script(folder, text):
    (folder / "script.py").write_text(text)
    return str(folder / "script.py")


PROGRAMS = ["./scripts/../link.py", "scripts/compiled.pyc", "app.zip", "-m pack.inner", "-m app"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_finds_what_it_finds_under_python(program, folder):
    out, err, code = both(*program.split(), "--help", "-m", "--", "-x=1", "", folder=folder)
    assert (err, code) == ("", 0) and "'--help', '-m', '--', '-x=1', ''" in out


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH means nothing before")
def test_python_may_keep_the_path_clean(folder):
    both("app", folder=folder, PYTHONSAFEPATH="1")


ENDS = {
    "exit text": "import sys; sys.exit('no such thing')",
    "error": "def f():\n    raise ValueError('x')\n\nf()",
    "chained error": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise OSError(32, 'x') from e",
    "error that click would catch": "raise EOFError",
    "syntax": "a = (1,\nb = 2",
    "own hook": "import sys\nsys.excepthook = lambda k, e, tb: print(k, e, tb.tb_frame.f_lineno, tb.tb_next)\n1 / 0",
    "at exit": "import atexit, sys\natexit.register(lambda: print(x))\nx = 1\nsys.exit(4)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_a_program_ends_as_under_python(text, tmp_path):
    both(script(tmp_path, text))


MISSING = {
    "-m no_such_module": "ImportError: No module named no_such_module",
    "-m json.nothing": "ImportError: No module named json.nothing",
    "scripts": "ImportError: can't find '__main__' module in '{}/scripts'",
    "-m broken": "ValueError: x",
}


@pytest.mark.parametrize("program", MISSING)
def test_a_program_that_is_not_there_is_named_and_an_error_of_a_module_shows_no_frame_of_mxmp(program, folder):
    (folder / "broken.py").write_text("raise ValueError('x')")
    out, err, code = run(RUN, *program.split(), folder=folder)
    assert (out, err.splitlines()[-1], code) == ("", MISSING[program].format(folder), 1)
    assert program != "-m broken" or err.count("File ") == 1


SLEEPS = "import sys, time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"


@pytest.mark.parametrize(
    "text, code, said",
    [
        ("finally:\n    pass", -signal.SIGINT, "KeyboardInterrupt"),
        ("except KeyboardInterrupt:\n    sys.exit(print('caught', file=sys.stderr))", 0, "caught"),
    ],
    ids=["ends", "caught"],
)
def test_ctrl_c_is_the_programs(text, code, said, tmp_path):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*RUN, script(tmp_path, SLEEPS + text)], env=ENV, **streams) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (code, said) and "mxmp" not in err


PROCESSES = """
import multiprocessing, pickle, sys

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(2 * point.x)

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print([point.x for point in pool.map(double, [Point(1), Point(2)])])
    print(pickle.loads(pickle.dumps(Point(5))).x, file=sys.stderr)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_and_pickles_know_the_program(method, tmp_path):
    assert both(script(tmp_path, PROCESSES), method) == ("[2, 4]\n", "5\n", 0)


def test_a_script_may_import_mxnet_first(tmp_path):
    """Before it runs, mxmp is there and has seen to it; MXNet is not imported for one that does without."""
    text = "import sys; print('mxmp.compat' in sys.modules, 'mxnet' in sys.modules)"
    assert run(RUN, script(tmp_path, text)) == ("True False\n", "", 0)
