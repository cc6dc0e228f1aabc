"""Missing and unfit dependencies give an error with the command that mends them."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from mxmp import requirements
from mxmp.errors import DependencyError, MxmpError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def install_mxnet(monkeypatch, tmp_path):
    """Let find_spec find an MXNet whose libinfo.py holds a text; None: no such file."""

    def install(libinfo):
        if libinfo is not None:
            (tmp_path / "libinfo.py").write_text(libinfo)
        spec = ModuleSpec("mxnet", None, origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(requirements, "find_spec", lambda name: spec)

    return install


def test_check_accepts_this_environment():
    requirements.check()


@pytest.mark.parametrize("spec", [None, ModuleSpec("mxnet", None, origin=None)], ids=["missing", "empty folder"])
def test_check_without_mxnet_names_both_extras(monkeypatch, spec):
    monkeypatch.setattr(requirements, "find_spec", lambda name: spec)
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == (
        "MXNet is not installed; run: pip install 'mxmp[cpu]' (or, for NVIDIA GPUs, pip install 'mxmp[cu112]')"
    )
    assert isinstance(caught.value, (MxmpError, ImportError))


@pytest.mark.parametrize("version", ["1.24.0", "1.24.0rc1", "1.26.4", "2.0.0"])
def test_check_refuses_numpy_without_bool(monkeypatch, version):
    monkeypatch.setattr(np, "__version__", version)
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == (
        f"numpy {version} is installed, but MXNet 1.9.1 needs numpy below 1.24 (it uses np.bool); "
        "run: pip install 'numpy<1.24'"
    )


@pytest.mark.parametrize("version", ["1.23.5", "1.21.0", "1.9.3"])
def test_check_accepts_numpy_below_the_limit(monkeypatch, version):
    monkeypatch.setattr(np, "__version__", version)
    requirements.check()


@pytest.mark.parametrize(
    "name, text, version",
    [
        ("version.py", 'version = "1.26.4"\n__version__ = version\n', "1.26.4"),
        ("version.py", "\nshort_version: str = '1.19.5'\nversion: str = '1.19.5'\n", "1.19.5"),
        (
            "_version.py",
            "import json\nversion_json = '''\n{\n \"dirty\": false,\n \"version\": \"1.23.5\"\n}\n'''\n",
            "1.23.5",
        ),
    ],
    ids=["1.26", "1.19", "versioneer"],
)
def test_the_version_of_numpy_is_read_from_its_files(name, text, version, monkeypatch, tmp_path):
    (tmp_path / name).write_text(text)
    monkeypatch.delitem(sys.modules, "numpy")
    spec = ModuleSpec("numpy", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(requirements, "find_spec", lambda name: spec)
    assert requirements._numpy_version() == version


def test_the_version_of_numpy_is_that_of_the_installed_one():
    code = "import mxmp.requirements as r, sys; print(r._numpy_version(), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{np.__version__} False\n"


def test_check_without_numpy_names_the_command(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="numpy is not installed; run: pip install 'numpy<1.24'"):
        requirements.check()


@pytest.mark.parametrize("version", ["1.8.0", "1.10.0", "2.0.0b1", "1.90.0"])
def test_check_refuses_other_versions_of_mxnet(install_mxnet, version):
    install_mxnet(f'"""Info."""\n__version__ = "{version}"\n')
    with pytest.raises(DependencyError, match=f"MXNet {version} is installed in .*, but mxmp needs MXNet 1.9.1"):
        requirements.check()


@pytest.mark.parametrize("libinfo", ['__version__ = "1.9.1"', "__version__='1.9.0.post1'", "", None])
def test_check_accepts_version_1_9_and_a_build_without_version(install_mxnet, libinfo):
    install_mxnet(libinfo)
    requirements.check()


def import_mxmp(before: str) -> subprocess.CompletedProcess:
    code = f"import sys\n{before}\nimport mxmp"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_importing_mxmp_without_mxnet_fails_with_the_command():
    hide = """
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'mxnet':
            raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == 'mxnet' else real(name, *rest)
sys.meta_path.insert(0, Hide())
"""
    done = import_mxmp(hide)
    assert done.returncode == 1
    assert "mxmp.errors.DependencyError: MXNet is not installed; run: pip install 'mxmp[cpu]'" in done.stderr


def test_importing_mxmp_with_new_numpy_fails_before_mxnet_does():
    done = import_mxmp("import numpy; numpy.__version__ = '1.26.0'; sys.modules['mxnet'] = None")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("mxmp.errors.DependencyError: numpy 1.26.0 is installed")


def test_requirements_import_neither_mxnet_nor_numpy():
    code = "import mxmp.requirements as r, sys; r.check(); print('mxnet' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
