"""Missing and unfit dependencies give an error with the command that mends them."""

from __future__ import annotations

import ast
import subprocess
import sys
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from mxmp import requirements
from mxmp.errors import DependencyError, MxmpError
from tests import messages
from tests.imports import FILES

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = [(3, 8), (3, 11), (3, 12), (3, 13)]


def check(python=PYTHONS[0], numpy=None, mxnet="installed"):
    """Return a call of `check` on another Python, with another numpy, or an MXNet of whose libinfo.py this is the text."""

    def call(tmp_path):
        spec = None if mxnet == "missing" else ModuleSpec("mxnet", None, origin=str(tmp_path / "__init__.py"))
        if mxnet is not None:
            (tmp_path / "libinfo.py").write_text(mxnet)
        patches = [mock.patch.object(requirements, "_PYTHON", python)]
        if numpy:
            patches.append(mock.patch.object(np, "__version__", numpy))
        if mxnet != "installed":
            patches.append(mock.patch.object(requirements, "find_spec", lambda name: spec))
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            requirements.check()

    return call


def without_numpy(python):
    def call():
        with mock.patch.dict(sys.modules), mock.patch.object(requirements, "find_spec", lambda name: None):
            del sys.modules["numpy"]
            with mock.patch.object(requirements, "_PYTHON", python):
                requirements.check()

    return call


def empty_folder():
    with mock.patch.object(requirements, "find_spec", lambda name: ModuleSpec("mxnet", None, origin=None)):
        requirements.check()


INSTALL_MXNET = "pip install './mxmp[cpu]' (or, for NVIDIA GPUs, pip install './mxmp[cu112]')"
INSTALL_MXNET_ON = {
    **dict.fromkeys(PYTHONS, INSTALL_MXNET),
    (3, 13): "pip install './mxmp[cpu]' && pip install --no-deps mxnet==1.9.1 "
    "(or, for NVIDIA GPUs, pip install './mxmp[cu112]' && pip install --no-deps mxnet-cu112==1.9.1)",
}
INSTALL_NUMPY_ON = {
    **dict.fromkeys(PYTHONS, "pip install 'numpy>=1.21,<1.24'"),
    (3, 12): "pip install 'numpy<2'",
    (3, 13): "pip install numpy",
}
TEXTS = {
    "no mxnet": ({"mxnet": "missing"}, "MXNet is not installed; run: {mxnet}"),
    **{
        f"numpy {version}": ({"numpy": version}, f"numpy {version} is installed, but mxmp needs numpy 1.21 or later; run: {{numpy}}")
        for version in ("1.20.3", "1.9.3", "0.1")
    },
    **{
        f"mxnet {version}": (
            {"mxnet": f'"""Info."""\n__version__ = "{version}"\n'},
            f"MXNet {version} is installed in ..., but mxmp needs MXNet 1.9.1; uninstall it, then run: {{mxnet}}",
        )
        for version in ("1.8.0", "1.10.0", "2.0.0b1", "1.90.0")
    },
}  # fmt: skip
MESSAGES = {
    f"{id}, Python {python[1]}": (
        check(python, **options),
        DependencyError,
        text.format(mxnet=INSTALL_MXNET_ON[python], numpy=INSTALL_NUMPY_ON[python]),
    )
    for id, (options, text) in TEXTS.items()
    for python in PYTHONS
}
MESSAGES["an empty folder"] = (empty_folder, DependencyError, "MXNet is not installed; run: ...")
for each in PYTHONS:
    text = f"numpy is not installed; run: {INSTALL_NUMPY_ON[each]}"
    MESSAGES[f"no numpy, Python {each[1]}"] = (without_numpy(each), DependencyError, text)


@messages.each(MESSAGES)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
    assert issubclass(error, MxmpError) and issubclass(error, ImportError)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_the_first_page_has_the_commands_that_install_mxnet(python):
    """Both install from a clone: mxmp is on no index."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    cpu, gpu = INSTALL_MXNET_ON[python][:-1].split(" (or, for NVIDIA GPUs, ")
    assert f"\n{cpu}" in page and f"\n{gpu}" in page


@pytest.mark.parametrize(
    "installed",
    [{}]
    + [{"numpy": version} for version in ("1.21.0", "1.23.5", "1.24.0rc1", "1.26.4", "2.0.0", "2.5.5", "unknown")]
    + [{"mxnet": text} for text in ('__version__ = "1.9.1"', "__version__='1.9.0.post1'", "", None)],
    ids=str,
)
def test_check_accepts_numpy_1_and_2_and_mxnet_1_9(installed, tmp_path):
    check(**installed)(tmp_path)


@pytest.mark.parametrize(
    "name, text, version",
    [
        ("version.py", 'version = "1.26.4"\n__version__ = version\n', "1.26.4"),
        ("version.py", "\nshort_version: str = '1.19.5'\nversion: str = '1.19.5'\n", "1.19.5"),
        ("_version.py", "import json\nversion_json = '''\n{\n \"dirty\": false,\n \"version\": \"1.23.5\"\n}\n'''\n", "1.23.5"),
    ],
    ids=["1.26", "1.19", "versioneer"],
)
def test_the_version_of_numpy_is_read_from_its_files(name, text, version, monkeypatch, tmp_path):
    (tmp_path / name).write_text(text)
    monkeypatch.delitem(sys.modules, "numpy")
    spec = ModuleSpec("numpy", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(requirements, "find_spec", lambda name: spec)
    assert requirements.numpy_version() == version


def test_requirements_import_neither_mxnet_nor_numpy():
    code = "import mxmp.requirements as r, sys; r.check(); print(r.numpy_version(), *(n in sys.modules for n in ('mxnet', 'numpy')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{np.__version__} False False\n"


HIDE_MXNET = """
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'mxnet':
            raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == 'mxnet' else real(name, *rest)
sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize(
    "before, message",
    [
        (HIDE_MXNET, f"MXNet is not installed; run: {INSTALL_MXNET if sys.version_info < (3, 13) else ''}"),
        ("import numpy; numpy.__version__ = '1.20.3'; sys.modules['mxnet'] = None", "numpy 1.20.3 is installed"),
    ],
    ids=["no mxnet", "old numpy"],
)
def test_importing_mxmp_without_what_it_needs_fails_with_the_command(before, message):
    done = subprocess.run([sys.executable, "-c", f"import sys\n{before}\nimport mxmp"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and f"\nmxmp.errors.DependencyError: {message}" in done.stderr


GENERIC = set("dict list tuple set frozenset type defaultdict deque PathLike Popen".split())


def subscripted(node):
    """Yield the subscripts of classes that Python 3.8 cannot subscript, those in annotations left out: `list[int]`."""
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", getattr(node.value, "attr", "")) in GENERIC:
        yield getattr(node.value, "id", getattr(node.value, "attr", ""))
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from subscripted(child)


def test_no_class_is_subscripted_that_python_3_8_cannot_subscript():
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}
    assert not {module: found for module, tree in trees.items() for found in [list(subscripted(tree))] if found}
    assert list(subscripted(ast.parse("def f(x: list[int] = dict[str, int]()): c.deque[str]"))) == ["dict", "deque"]
