"""What importing mxmp installs, where, and what it leaves alone."""

from __future__ import annotations

import ast
import sys

import numpy as np
import pytest

from mxmp import compat, requirements
from mxmp.compat.finder import Finder
from tests.compat.fresh import ROOT, observe

NEEDED = sys.version_info >= (3, 12) or tuple(map(int, np.__version__.split(".")[:2])) >= (1, 24)
OLD = [
    *("bool", "int", "float", "object", "Inf", "PINF", "NaN", "PZERO", "float_", "alltrue", "product", "msort"),
    *("in1d", "trapz", "round_", "row_stack"),
]


@pytest.mark.parametrize(
    ("python", "numpy", "needed"),
    [
        ((3, 8), "1.17.0", False),
        ((3, 11), "1.23.5", False),
        ((3, 11), "1.9.3", False),
        ((3, 11), "1.24.0rc1", True),
        ((3, 11), "1.26.4", True),
        ((3, 9), "2.0.2", True),
        ((3, 12), "1.23.5", True),
        ((3, 13), "2.5.5", True),
        ((3, 11), "unknown", False),
    ],
)
def test_the_views_are_needed_from_numpy_1_24_and_python_3_12_on(python, numpy, needed):
    assert compat.needed(python, numpy) is needed


def test_without_numpy_the_views_are_left_to_the_error(monkeypatch):
    monkeypatch.setattr(requirements, "numpy_version", lambda: None)
    assert compat.needed((3, 11)) is False


def test_here_they_are_installed_where_they_are_needed():
    assert compat.needed() is NEEDED
    assert [isinstance(finder, Finder) for finder in sys.meta_path].count(True) == NEEDED
    assert isinstance(sys.meta_path[0], Finder) is NEEDED or not NEEDED


@pytest.fixture
def meta_path(monkeypatch):
    """As before mxmp was imported; MXNet counts as not imported."""
    finders = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k.split(".")[0] != "mxnet"})
    return finders


def test_where_numpy_and_python_fit_nothing_is_installed(monkeypatch, meta_path):
    monkeypatch.setattr(compat, "needed", lambda: False)
    before = list(meta_path)
    compat.install()
    assert meta_path == before


def test_a_second_install_adds_nothing(monkeypatch, meta_path):
    monkeypatch.setattr(compat, "needed", lambda: True)
    before = list(meta_path)
    compat.install()
    compat.install()
    assert isinstance(meta_path[0], Finder) and meta_path[1:] == before


def test_what_is_left_of_an_import_that_failed_is_dropped(monkeypatch, meta_path):
    monkeypatch.setattr(compat, "needed", lambda: True)
    for name in ("mxnet.base", "gluoncv.check", "mxnetlike.base"):
        sys.modules[name] = np
    sys.modules.pop("gluoncv", None)
    compat.install()
    assert [name in sys.modules for name in ("mxnet.base", "gluoncv.check", "mxnetlike.base")] == [False, False, True]


FIRST = """
def attempt(name):
    try:
        __import__(name)
        return "imported"
    except (AttributeError, ImportError) as e:
        return str(e)

found["gluoncv"] = attempt("gluoncv")
found["mxnet"] = attempt("mxnet")
import mxmp
import mxnet as mx
import gluoncv
found["finders"] = [type(finder).__module__ for finder in sys.meta_path].count("mxmp.compat.finder")
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.BatchNorm())
net.initialize(mx.init.One())
net.hybridize()
found["sum"] = net(mx.nd.ones((4, 3))).sum().asscalar().item()
found["inf"] = mx.np.PINF
found["net"] = len(list(gluoncv.model_zoo.get_model("cifar_resnet20_v1").collect_params())) > 50
"""


def test_mxnet_imports_behind_mxmp_after_an_import_that_failed():
    pytest.importorskip("gluoncv", reason="a first import of gluoncv is part of it")
    found = observe(FIRST)
    assert (found["mxnet"] == "imported") is not NEEDED
    assert found["finders"] == NEEDED
    assert found["sum"] == pytest.approx(24, rel=1e-4)  # 4 rows of 2 units, each a sum of 3 ones; BatchNorm's epsilon
    assert found["inf"] == float("inf") and found["net"]


REFUSED = """
sys.path.insert(0, sys.argv[1])
before = list(sys.meta_path)
try:
    import mxmp
except ImportError as e:
    found["said"] = str(e)
found["kept"] = sys.meta_path == before
"""


def test_an_mxnet_that_is_refused_gets_nothing(tmp_path):
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").touch()
    (tmp_path / "mxnet" / "libinfo.py").write_text('__version__ = "2.0.0b1"\n')
    found = observe(REFUSED, str(tmp_path))
    assert found["said"].startswith("MXNet 2.0.0b1 is installed") and found["kept"]


SEEN = """
import types, importlib, pathlib, tempfile
folder = tempfile.mkdtemp()
pathlib.Path(folder, "another.py").write_text(
    "import numpy\\ndef has(name):\\n    try:\\n        return bool(getattr(numpy, name) or True)\\n"
    "    except AttributeError:\\n        return False\\n"
)
sys.path.insert(0, folder)
import another, builtins, numpy
old = OLD
names, attributes, has, own = dir(numpy), dict(vars(numpy)), [another.has(name) for name in old], dict(vars(builtins))
import mxmp, mxnet
def is_part(name):
    return isinstance(vars(numpy).get(name), types.ModuleType)
found["kept"] = all(vars(numpy).get(name) is value for name, value in attributes.items())
found["added"] = [name for name in vars(numpy) if name not in attributes and not is_part(name)]
found["listed"] = [name for name in {*dir(numpy)} ^ {*names} if not is_part(name)]
found["builtins"] = all(vars(builtins)[name] is value for name, value in own.items())
found["type"] = type(numpy).__name__
found["same"] = sys.modules["numpy"] is numpy is importlib.import_module("numpy")
importlib.reload(another)
found["has"] = [another.has(name) for name in old] == has
found["missing"] = has.count(False)
found["distutils"] = [name for name in sys.modules if name.startswith("distutils")]
"""


def test_numpy_and_python_stay_as_they_are_for_all_others():
    found = observe(SEEN.replace("OLD", repr(OLD), 1))
    assert found["kept"] and found["has"] and found["same"] and found["builtins"]
    assert found["added"] == found["listed"] == []
    assert found["type"] == "module"
    if NEEDED:
        assert found["missing"]  # else it shows nothing
    if sys.version_info >= (3, 12):
        assert found["distutils"] == []


BY_OTHER_MEANS = """
import importlib, numpy, types, warnings
sys.modules["tables"] = types.ModuleType("tables")  # those of mxmp.compat, without the import of mxmp
sys.modules["tables"].__path__ = [f"{sys.argv[1]}/mxmp/compat"]
for name, value in importlib.import_module("tables.old_modules").numpy_names(numpy).items():
    if not hasattr(numpy, name):
        setattr(numpy, name, value)
if sys.version_info >= (3, 12):
    sys.modules["distutils"] = types.ModuleType("distutils")
    sys.modules["distutils.version"] = importlib.import_module("tables.old_modules")
import mxnet
module = mxnet.nd
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import mxmp
    import mxmp.errors
import mxnet
found["same"] = mxnet.nd is module
found["warnings"] = [(type(w.message).__name__, str(w.message), w.filename) for w in caught]
"""


def test_an_mxnet_that_other_means_imported_is_kept_with_a_warning_that_names_the_line():
    found = observe(BY_OTHER_MEANS, str(ROOT))
    assert found["same"]
    message = (
        "MXNet was imported before mxmp and does without the names that mxmp gives it on this numpy and Python; "
        "put the line `import mxmp` before the first import of mxnet"
    )
    assert found["warnings"] == ([["RuntimeWarning", message, "<string>"]] if NEEDED else [])


def scripts():
    """Yield (name, code) of the scripts that use mxmp; tests/test_docs.py has the guides."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if "__main__" in code and "import mxmp" in code:
            yield str(path.relative_to(ROOT)), code


def packages(tree):
    """Yield the packages that the import statements name, in the order of their lines."""
    statements = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(statements, key=lambda node: node.lineno):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        yield from (name.split(".")[0] for name in names)


@pytest.mark.parametrize(("name", "code"), [pytest.param(*each, id=each[0]) for each in scripts()])
def test_what_users_copy_imports_mxmp_before_mxnet(name, code):
    ours = {"mxmp", "symbols", "examples"}  # each imports mxmp first
    order = [package for package in packages(ast.parse(code)) if package in {"mxnet", "gluoncv"} | ours]
    assert not order or order[0] in ours
