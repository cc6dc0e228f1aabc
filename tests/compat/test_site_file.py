"""The file in site-packages: what Python makes of it, with and without mxmp, and what may stand in its way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv

import pytest

from mxmp.compat import needed, site_file
from mxmp.errors import SiteError
from tests.cli.checkpoints import mxmp

MXNET_FIRST = "import sys, mxnet as mx; print(mx.nd.ones(3).sum().asscalar(), 'mxmp' in sys.modules)"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Let the file stand in a folder of the test's own."""
    path = tmp_path / site_file.NAME
    monkeypatch.setattr(site_file, "path", lambda: str(path))
    return path


@pytest.fixture
def python(tmp_path):
    """Return a function that runs code in an environment of its own, which has the packages of this one."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "env")
    program = tmp_path / "env" / "bin" / "python"

    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", site_file.SWITCH)}

    def run(*args, **variables):
        done = subprocess.run(
            [program, *args], env={**environ, **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        return done.stdout, done.stderr, done.returncode

    purelib = run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[0].strip()
    with open(f"{purelib}/packages.pth", "w", encoding="utf-8") as file:
        file.write("\n".join(folder for folder in sys.path if folder))
    return run


def test_the_commands_write_show_and_remove_it(path):
    spare = "MXNet does not need it with this Python and numpy"
    ours = "with this Python and numpy programs import mxmp before MXNet, or `mxmp site on` does it for them"
    off, on = ([ours], []) if needed() else ([spare], [spare])
    assert mxmp("site", "status")[0].splitlines() == [f"off: there is no {path}", *off]
    for command in ("on", "on", "status"):
        assert mxmp("site", command)[0].splitlines() == [f"on: {path}", *on]
    assert path.read_text().startswith("# mxmp: ") and len(path.read_text().splitlines()) == 2
    for done in ("removed", "there is no"):
        assert mxmp("site", "off")[0].splitlines() == [f"off: {done} {path}", *off]
    assert not path.exists()


@pytest.mark.parametrize("command", ["on", "off", "status"])
def test_a_folder_in_its_place_is_named(command, path):
    path.mkdir()
    assert f"{path} cannot be read: Is a directory. Remove the folder." in mxmp("site", command, code=1)[1]


def test_the_status_says_that_the_variable_switches_it_off(path, monkeypatch):
    site_file.write()
    monkeypatch.setenv("MXMP_SITE", "0")
    assert "MXMP_SITE=0 is set, so it does nothing here" in mxmp("site", "status")[0]


def test_a_file_of_another_version_is_shown_and_replaced(path):
    path.write_text("# mxmp: older\nimport sys\n")
    assert site_file.is_outdated() and not site_file.is_on()
    assert mxmp("site", "status")[0].startswith(f"outdated: {path}")
    site_file.write()
    assert site_file.is_on() and not site_file.is_outdated()


@pytest.mark.parametrize("command", ["on", "off"])
def test_a_file_that_mxmp_did_not_write_stays(command, path):
    path.write_text("/opt/other\n")
    _, err = mxmp("site", command, code=1)
    assert err == f"mxmp: error: {path} was not written by mxmp; remove it yourself if you do not need it.\n"
    assert path.read_text() == "/opt/other\n"


def test_a_folder_that_cannot_be_written_is_named(path, monkeypatch):
    monkeypatch.setattr(site_file, "path", lambda: f"{path.parent}/nowhere/{site_file.NAME}")
    with pytest.raises(SiteError, match=r"nowhere/mxmp_site.pth cannot be written: .* use a virtual environment"):
        site_file.write()
    path.mkdir()
    monkeypatch.setattr(site_file, "path", lambda: str(path))
    with pytest.raises(SiteError, match="cannot be read: Is a directory"):
        site_file.remove()
    assert [*path.parent.iterdir()] == [path]


def test_the_line_costs_little_at_every_start(path, monkeypatch):
    """Below 0.3 ms at a cold start; here is room for a busy machine."""
    without = [each for each in sys.meta_path if getattr(each, "__name__", "") != "MxmpSite"]
    monkeypatch.setattr(sys, "meta_path", without)
    site_file.write()
    line = path.read_text().splitlines()[1]
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        exec(line)
        seconds.append(time.perf_counter() - begin)
        assert sys.meta_path.pop(0).__name__ == "MxmpSite"
    assert min(seconds) < 1e-3


def test_python_starts_without_any_module_more(python):
    modules = "import sys; print(sorted(sys.modules))"
    before = python("-c", modules)
    assert python("-m", "mxmp", "site", "on")[1:] == ("", 0)
    assert python("-c", modules) == before
    assert python("-c", "import sys; print(sys.meta_path)")[0].count("MxmpSite") == 1  # Python runs the line twice


def test_mxnet_may_be_loaded_when_it_is_used(python, tmp_path):
    """As by importlib.util.LazyLoader, which puts its own loader around; what mxmp adds runs then."""
    python("-m", "mxmp", "site", "on")
    (tmp_path / "mxmp.py").write_text("import sys, adds; sys.meta_path.insert(0, adds.Finder)")
    (tmp_path / "adds.py").write_text(ADDS)
    (tmp_path / "mxnet.py").write_text("value = 1")
    program = """
import importlib.util, sys
spec = importlib.util.find_spec("mxnet")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["mxnet"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.value)
"""
    assert python("-c", program) == ("added\n1\n", "", 0)


@pytest.mark.slow
def test_mxnet_may_be_imported_first(python):
    python("-m", "mxmp", "site", "on")
    out, err, code = python("-W", "ignore", "-c", MXNET_FIRST)
    assert (out, err, code) == ("3.0 True\n", "", 0)
    out, err, code = python("-W", "ignore", "-c", MXNET_FIRST, MXMP_SITE="0")
    assert "AttributeError" in err or "distutils" in err if needed() else (out, err, code) == ("3.0 False\n", "", 0)
    python("-m", "mxmp", "site", "off")
    assert "MxmpSite" not in python("-c", "import sys; print(sys.meta_path)")[0]


@pytest.mark.parametrize(
    "state",
    ["raise ModuleNotFoundError('uninstalled')", "raise RuntimeError('broken')", "half =", ""],
    ids=["uninstalled", "raises", "syntax", "something else"],
)
def test_whatever_became_of_mxmp_mxnet_is_imported(state, python, tmp_path):
    python("-m", "mxmp", "site", "on")
    (tmp_path / "mxmp.py").write_text(state)
    (tmp_path / "mxnet.py").write_text("print('mxnet')")
    code = "import sys, importlib.util; print(importlib.util.find_spec('mxnet').origin); import mxnet; import json"
    assert python("-c", code) == (f"{tmp_path}/mxnet.py\nmxnet\n", "", 0)
    (tmp_path / "mxnet.py").unlink()
    program = "import importlib.util\nprint(importlib.util.find_spec('mxnet') is None or 'real')"
    assert python("-c", program)[1:] == ("", 0)


def test_mxnet_waits_for_a_thread_that_imports_mxmp(python, tmp_path):
    """It holds no lock that this thread needs: the lock of all imports, which finders are asked under."""
    python("-m", "mxmp", "site", "on")
    (tmp_path / "mxmp").mkdir()
    program = "import time, script; script.begun.set(); time.sleep(0.5); import this_is_new"
    (tmp_path / "mxmp/__init__.py").write_text(program)
    (tmp_path / "mxmp/compat.py").touch()
    (tmp_path / "this_is_new.py").write_text("print('mxmp')")
    (tmp_path / "mxnet.py").write_text("print('mxnet')")
    (tmp_path / "script.py").write_text("import threading; begun = threading.Event()")
    program = """
import faulthandler, script, threading
faulthandler.dump_traceback_later(30, exit=True)
thread = threading.Thread(target=lambda: __import__("mxmp"))
thread.start()
script.begun.wait()
import mxnet
thread.join()
"""
    assert python("-c", program) == ("mxmp\nmxnet\n", "", 0)


ADDS = """
from importlib.machinery import PathFinder

class Loader:
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        print("added")
        self.loader.exec_module(module)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name == "mxnet" else None
        if spec:
            spec.loader = Loader(spec.loader)
        return spec
"""

SPAWN = """
import mxnet as mx
import multiprocessing, numpy as np

def total(x):
    return float(mx.nd.ones(np.int64(x)).sum().asscalar())

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(total, [1, 2, 3]))
"""


@pytest.mark.slow
def test_processes_that_are_spawned_find_mxmp_too(python, tmp_path):
    python("-m", "mxmp", "site", "on")
    (tmp_path / "script.py").write_text(SPAWN)
    assert python("-W", "ignore", "script.py") == ("[1.0, 2.0, 3.0]\n", "", 0)


@pytest.mark.slow
@pytest.mark.parametrize("site", ["on", "off"])
def test_threads_may_import_mxnet_at_once(site, python):
    """The packages; threads that begin with different parts of MXNet meet its circular imports on any numpy."""
    python("-m", "mxmp", "site", site)
    code = f"""
import importlib, sys, threading
{"" if site == "on" else "import mxmp"}
sys.setswitchinterval(1e-5)
names = ["mxnet", "gluoncv", "mxnet", "mxmp", "gluoncv", "mxnet"]
gate, failed = threading.Barrier(len(names)), []

def load(name):
    gate.wait()
    try:
        importlib.import_module(name)
    except BaseException as e:
        failed.append((name, e))

threads = [threading.Thread(target=load, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failed, sys.modules["gluoncv"].model_zoo.__name__, sys.modules["mxnet"].nd.ones(3).sum().asscalar())
"""
    assert python("-W", "ignore", "-c", code) == ("[] gluoncv.model_zoo 3.0\n", "", 0)
