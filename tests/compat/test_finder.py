"""Modules that the finder's loader runs: what they import, and that they are modules like others."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from mxmp.compat import finder, old_modules
from mxmp.compat.finder import Finder

ROOT = Path(__file__).resolve().parents[2]
# numpy 1.20 to 1.23 warn of its name as Python looks for it; there nothing is installed.
pytestmark = pytest.mark.filterwarnings(r"ignore:`np\.float` is a deprecated alias:DeprecationWarning")


@pytest.fixture
def load(tmp_path):
    def load(source):
        path = tmp_path / "probe.py"
        path.write_text(source, encoding="utf-8")
        spec = spec_from_file_location("probe", path)
        module = module_from_spec(spec)
        finder._run(spec.loader, spec.loader.exec_module, module)
        return module

    return load


# A module's source, and the `value` that it has of it: old names of a view, and all else of the real modules.
IMPORTS = {
    "import as": ("import numpy as np\nvalue = np.float", float),
    "from": ("from numpy import float as value", float),
    "import of a part": ("import numpy.random\nvalue = numpy.float", float),
    "__import__ of a part": ("value = __import__('numpy.random').float", float),
    "in a function": ("def read():\n    import numpy as np\n    return np.float\nvalue = read()", float),
    "exec": ("exec('import numpy as np; value = np.float')", float),
    "a part as": ("import numpy.random as value", np.random),
    "from, a part": ("from numpy import random as value", np.random),
    "from a part": ("from numpy.random import seed as value", np.random.seed),
    "all of a part": ("from numpy.linalg import *\nvalue = norm", np.linalg.norm),
    "all": ("from numpy import *\nvalue = ndarray", np.ndarray),
    "a name that numpy has": ("import numpy as np\nvalue = np.float32", np.float32),
    "another package": ("import os.path as value", sys.modules["os.path"]),
    "importlib": ("import importlib\nvalue = importlib.import_module('numpy')", np),  # past the module's own import
}
if sys.version_info >= (3, 12):  # before, Python has distutils of its own
    IMPORTS["distutils"] = ("from distutils.version import LooseVersion as value", old_modules.LooseVersion)
    IMPORTS["strict"] = ("from distutils.version import StrictVersion as value", old_modules.StrictVersion)


@pytest.mark.parametrize("source, expected", IMPORTS.values(), ids=IMPORTS)
def test_imports_give_old_names_and_real_modules(load, source, expected):
    assert load(source).value is expected


@pytest.mark.parametrize("source", ["import numpy.nonsense", "from numpy import nonsense", "import nonsense"])
def test_what_is_not_there_raises_as_ever(load, source):
    with pytest.raises(ImportError, match="nonsense"):
        load(source)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that the finder takes for one of MXNet's, on the path and not imported."""
    leaf = "import numpy as np\nfrom .. import part\nvalue = np.float\n\n\ndef double(x):\n    return 2 * x\n"
    files = {
        "__init__.py": "from . import part\nfrom .part.leaf import value\n",
        "part/__init__.py": "",
        "part/leaf.py": leaf,
        "bare/leaf.py": "from numpy import float as value\n",
    }
    for name, text in files.items():
        (tmp_path / "probed" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "probed" / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(finder, "PACKAGES", ("probed",))
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "probed"
    for name in [name for name in sys.modules if name.split(".")[0] == "probed"]:
        del sys.modules[name]


def test_a_package_with_relative_imports_is_loaded_whole(package):
    import probed.bare.leaf

    assert probed.value is probed.part.leaf.value is float and probed.part.leaf.part is probed.part
    assert probed.bare.leaf.value is float  # of a folder without __init__.py


def test_a_module_has_its_source_and_data_and_is_reloaded(package):
    leaf = importlib.import_module("probed.part.leaf")
    source = (package / "part" / "leaf.py").read_text(encoding="utf-8")
    assert inspect.getsource(leaf) == source and inspect.getsource(leaf.double) in source
    assert pkgutil.get_data("probed.part", "leaf.py").decode() == source
    (package / "part" / "leaf.py").write_text("import numpy\nvalue, more = numpy.float, 'more'\n", encoding="utf-8")
    assert importlib.reload(leaf) is leaf and (leaf.value, leaf.more) == (float, "more")


@pytest.mark.parametrize("name", ["probed.nonsense", "probedly", "json", "numpy"])
def test_other_packages_and_missing_modules_are_left_to_the_other_finders(package, name):
    assert Finder().find_spec(name) is None


PROGRAM = """
import importlib, pathlib, sys
from mxmp.compat.finder import AfterImport, Finder
path, seen = pathlib.Path(sys.argv[1], "mxnet"), []
path.mkdir()
(path / "__init__.py").write_text("raise ImportError('no library')")
sys.path.insert(0, sys.argv[1])
after = AfterImport(lambda: seen.append(sys.modules["mxnet"].done))
sys.meta_path[:0] = [after, *([Finder()] if "views" in sys.argv else [])]
try:
    import mxnet
except ImportError as e:
    print(e)
(path / "__init__.py").write_text("done = True  # now")
importlib.invalidate_caches()
for _ in range(2):
    import mxnet
    print(mxnet.done, seen, after in sys.meta_path)
    del sys.modules["mxnet"]
"""


@pytest.mark.parametrize("views", ["alone", "views"])
def test_a_function_is_called_once_as_the_first_import_of_mxnet_that_succeeds_ends(views, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), views]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["no library", *["True [True] False"] * 2]
