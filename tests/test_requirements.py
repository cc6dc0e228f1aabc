"""Missing and unfit dependencies give an error with the command that mends them."""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from mxmp import requirements
from mxmp.errors import DependencyError, MxmpError
from tests.imports import FILES

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


@pytest.fixture(params=[(3, 8), (3, 11), (3, 12), (3, 13)], ids=lambda python: "{}.{}".format(*python))
def python(request, monkeypatch):
    """Let requirements take this Python for another."""
    monkeypatch.setattr(requirements, "_PYTHON", request.param)
    return request.param


INSTALL_MXNET = "pip install './mxmp[cpu]' (or, for NVIDIA GPUs, pip install './mxmp[cu112]')"
INSTALL_MXNET_3_13 = (
    "pip install './mxmp[cpu]' && pip install --no-deps mxnet==1.9.1 "
    "(or, for NVIDIA GPUs, pip install './mxmp[cu112]' && pip install --no-deps mxnet-cu112==1.9.1)"
)


def install_mxnet_on(python):
    return INSTALL_MXNET if python < (3, 13) else INSTALL_MXNET_3_13


def install_numpy_on(python):
    if python < (3, 12):
        return "pip install 'numpy>=1.21,<1.24'"
    return "pip install 'numpy<2'" if python == (3, 12) else "pip install numpy"


@pytest.mark.parametrize("spec", [None, ModuleSpec("mxnet", None, origin=None)], ids=["missing", "empty folder"])
def test_check_without_mxnet_names_both_extras(monkeypatch, spec, python):
    monkeypatch.setattr(requirements, "find_spec", lambda name: spec)
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == f"MXNet is not installed; run: {install_mxnet_on(python)}"
    assert isinstance(caught.value, (MxmpError, ImportError))


def test_readme_has_the_commands_that_install_mxnet(python):
    """Both install from a clone: mxmp is on no index."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cpu, gpu = install_mxnet_on(python)[:-1].split(" (or, for NVIDIA GPUs, ")
    assert f"\n{cpu} " in readme
    assert f"\n{gpu}" in readme


@pytest.mark.parametrize("version", ["1.20.3", "1.19.5", "1.9.3", "0.1"])
def test_check_refuses_numpy_older_than_what_setup_declares(monkeypatch, version, python):
    monkeypatch.setattr(np, "__version__", version)
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == (
        f"numpy {version} is installed, but mxmp needs numpy 1.21 or later; run: {install_numpy_on(python)}"
    )


@pytest.mark.parametrize("version", ["1.21.0", "1.23.5", "1.24.0rc1", "1.26.4", "2.0.0", "2.5.5", "unknown"])
def test_check_accepts_numpy_1_and_2(monkeypatch, version):
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
    assert requirements.numpy_version() == version


def test_the_version_of_numpy_is_that_of_the_installed_one():
    code = "import mxmp.requirements as r, sys; print(r.numpy_version(), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{np.__version__} False\n"


def test_check_without_numpy_names_the_command(monkeypatch, python):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == f"numpy is not installed; run: {install_numpy_on(python)}"


@pytest.mark.parametrize("version", ["1.8.0", "1.10.0", "2.0.0b1", "1.90.0"])
def test_check_refuses_other_versions_of_mxnet(install_mxnet, version, tmp_path, python):
    install_mxnet(f'"""Info."""\n__version__ = "{version}"\n')
    with pytest.raises(DependencyError) as caught:
        requirements.check()
    assert str(caught.value) == (
        f"MXNet {version} is installed in {tmp_path}, but mxmp needs MXNet 1.9.1; uninstall it, then run: "
        f"{install_mxnet_on(python)}"
    )


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
    assert f"mxmp.errors.DependencyError: MXNet is not installed; run: {install_mxnet_on(sys.version_info)}" in done.stderr


def test_importing_mxmp_with_old_numpy_fails_with_the_command():
    done = import_mxmp("import numpy; numpy.__version__ = '1.20.3'; sys.modules['mxnet'] = None")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("mxmp.errors.DependencyError: numpy 1.20.3 is installed")


def test_requirements_import_neither_mxnet_nor_numpy():
    code = "import mxmp.requirements as r, sys; r.check(); print('mxnet' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


class Subscripted(ast.NodeVisitor):
    """Finds subscripts, run and not only read as annotations, of classes that Python 3.8 cannot subscript: `list[int]`.

    Those are builtins and classes of the standard library that a file imports, but typing's and enumerations.
    """

    def __init__(self, text):
        self.found, self.names, self.lazy = [], vars(builtins).copy(), False
        self.visit(ast.parse(text))

    def visit_ImportFrom(self, node):
        if node.module == "__future__":
            self.lazy |= any(alias.name == "annotations" for alias in node.names)
        if not node.level and node.module.split(".")[0] in sys.stdlib_module_names:
            module = importlib.import_module(node.module)
            for alias in node.names:
                self.names[alias.asname or alias.name] = getattr(module, alias.name, None)

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.split(".")[0] in sys.stdlib_module_names:
                module = importlib.import_module(alias.name)
                first = sys.modules[alias.name.split(".")[0]]
                self.names[alias.asname or alias.name.split(".")[0]] = module if alias.asname else first

    def visit_Subscript(self, node):
        value = self.value_of(node.value)
        if isinstance(value, type) and value.__module__ != "typing" and not issubclass(value, enum.Enum):
            self.found.append((node.lineno, ast.unparse(node)))
        self.generic_visit(node)

    def value_of(self, node):
        if isinstance(node, ast.Attribute):
            return getattr(self.value_of(node.value), node.attr, None)
        return self.names.get(node.id) if isinstance(node, ast.Name) else None

    def visit_AnnAssign(self, node):
        self.visit_all(node, "annotation")

    visit_arg = visit_AnnAssign

    def visit_FunctionDef(self, node):
        self.visit_all(node, "returns")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_all(self, node, annotation):
        for name, value in ast.iter_fields(node):
            if not (self.lazy and name == annotation):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self.visit(each)


needs_names = pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is of Python 3.10")


@needs_names
def test_no_class_is_subscripted_that_python_3_8_cannot_subscript():
    found = {module: Subscripted(path.read_text(encoding="utf-8")).found for module, path in FILES.items()}
    assert not {module: lines for module, lines in found.items() if lines}


@needs_names
@pytest.mark.parametrize(
    "text, count",
    [
        ("from collections import Counter\nseen = Counter[str]()", 1),
        ("import collections as c\nseen = c.deque[str]()", 1),
        ("import os\nPath = os.PathLike[str]", 1),
        ("from collections.abc import Iterable as I\nAlias = I[str]", 1),
        ("def f(x=dict[str, int]):\n    return tuple[int, ...]", 2),
        ("class A(list[int]): pass", 1),
        ("def f(x: list[int]) -> dict[str, int]:\n    y: set[int] = set()", 0),
        ("from typing import List\nAlias = List[int]", 0),
        ("import enum\nclass E(enum.Enum): pass\nE['a']", 0),
        ("names = dict(a=1)\nnames['a']", 0),
    ],
)
def test_a_subscript_that_runs_is_told_from_an_annotation(text, count):
    assert len(Subscripted(f"from __future__ import annotations\n{text}").found) == count
    if "->" in text:
        assert len(Subscripted(text).found) == 3
