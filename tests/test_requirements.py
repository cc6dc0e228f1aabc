"""Missing and unfit dependencies give an error with the command that mends them."""

import subprocess
import sys
from importlib.machinery import ModuleSpec
from unittest import mock

import numpy as np
import pytest

from mxmp import requirements
from mxmp.errors import DependencyError, MxmpError
from tests import messages
from tests.imports import ROOT

PYTHONS = [(3, 8), (3, 11), (3, 12), (3, 13)]


def check(python=PYTHONS[0], numpy=np.__version__, mxnet='__version__ = "1.9.1"', has_files=True):
    """Return a call of `check` on another Python, with another numpy or none, or an MXNet of whose libinfo.py this is the text."""

    def call(tmp_path):
        (tmp_path / "libinfo.py").write_text(mxnet)
        spec = ModuleSpec("mxnet", None, origin=str(tmp_path / "__init__.py") if has_files else None)
        patches = {"_PYTHON": python, "numpy_version": lambda: numpy, "find_spec": lambda name: spec if mxnet else None}
        with mock.patch.multiple(requirements, **patches):
            requirements.check()

    return call


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
    "no numpy": ({"numpy": None}, "numpy is not installed; run: {numpy}"),
    "no mxnet": ({"mxnet": ""}, "MXNet is not installed; run: {mxnet}"),
    "an empty folder": ({"has_files": False}, "MXNet is not installed; run: {mxnet}"),
    **{
        f"numpy {version}": ({"numpy": version}, f"numpy {version} is installed, but mxmp needs numpy 1.21 or later; run: {{numpy}}")
        for version in ("1.20.3", "1.9.3")
    },
    **{
        f"mxnet {version}": (
            {"mxnet": f'"""Info."""\n__version__ = "{version}"\n'},
            f"MXNet {version} is installed in ..., but mxmp needs MXNet 1.9.1; uninstall it, then run: {{mxnet}}",
        )
        for version in ("1.8.0", "2.0.0b1")
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


INSTALLED = [
    *({"numpy": version} for version in ("1.21.0", "1.24.0rc1", "2.5.5", "unknown")),
    *({"mxnet": text} for text in ('__version__ = "1.9.1"', "__version__='1.9.0.post1'", "# no version")),
]


@pytest.mark.parametrize("installed", INSTALLED, ids=str)
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


def test_importing_mxmp_without_mxnet_fails_with_the_command():
    hide = "import importlib.util as u; real = u.find_spec; u.find_spec = lambda name: None if name == 'mxnet' else real(name)"
    done = subprocess.run([sys.executable, "-c", f"{hide}\nimport mxmp"], cwd=ROOT, capture_output=True, text=True)
    text = f"\nmxmp.errors.DependencyError: MXNet is not installed; run: {INSTALL_MXNET if sys.version_info < (3, 13) else ''}"
    assert done.returncode == 1 and text in done.stderr
