"""Modules that the finder's loader runs: what they import, and that they are modules like others."""

from __future__ import annotations

import builtins
import importlib
import inspect
import pkgutil
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import numpy as np
import pytest

from mxmp.compat import finder, old_modules
from mxmp.compat.finder import Finder

# numpy 1.20 to 1.23 warn of its name as Python looks for it; there nothing is installed.
pytestmark = pytest.mark.filterwarnings(r"ignore:`np\.float` is a deprecated alias:DeprecationWarning")

FORMS = {
    "import as": "import numpy as np\nvalue = np.float",
    "import": "import numpy\nvalue = numpy.float",
    "from": "from numpy import float as value",
    "import of a part": "import numpy.random\nvalue = numpy.float",
    "two imports": "import sys, numpy as np\nvalue = np.float",
    "in a function": "def read():\n    import numpy as np\n    return np.float\nvalue = read()",
    "in a function, from": "def read():\n    from numpy import float as value\n    return value\nvalue = read()",
    "in a class": "class Reader:\n    import numpy as np\n    value = np.float\nvalue = Reader.value",
    "in try": "try:\n    from numpy import float as value\nexcept ImportError:\n    value = None",
    "__import__": "value = __import__('numpy').float",
    "__import__ of a part": "value = __import__('numpy.random').float",
    "exec": "exec('import numpy as np; value = np.float')",
    "eval": "value = eval('__import__(\"numpy\").float')",
}


@pytest.fixture
def load(tmp_path):
    """Return a function that runs source as a module of MXNet is run."""

    def load(source):
        path = tmp_path / "probe.py"
        path.write_text(source, encoding="utf-8")
        spec = spec_from_file_location("probe", path)
        module = module_from_spec(spec)
        finder._run(spec.loader, spec.loader.exec_module, module)
        return module

    return load


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in FORMS.items()])
def test_each_form_of_import_gives_the_old_names(load, source):
    assert load(source).value is float


def test_a_function_that_is_called_later_gets_them_too(load):
    assert load("def read():\n    import numpy as np\n    return np.float\n").read() is float


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import numpy.random as value", np.random),
        ("from numpy import random as value", np.random),
        ("from numpy.random import seed as value", np.random.seed),
        ("from numpy.linalg import *\nvalue = norm", np.linalg.norm),
        ("from numpy import *\nvalue = ndarray", np.ndarray),
        ("import numpy as np\nvalue = np.float32", np.float32),
        ("import os.path as value", sys.modules["os.path"]),
        ("import importlib\nvalue = importlib.import_module('numpy')", np),  # past the module's own import
    ],
)
def test_what_numpy_has_is_numpys_own(load, source, expected):
    assert load(source).value is expected


@pytest.mark.parametrize("source", ["import numpy.nonsense", "from numpy import nonsense", "import nonsense"])
def test_what_is_not_there_raises_as_ever(load, source):
    with pytest.raises(ImportError, match="nonsense"):
        load(source)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has distutils of its own")
def test_distutils_version_has_a_stand_in(load):
    code = "def read():\n    from distutils.version import LooseVersion\n    return LooseVersion\nvalue = read()"
    assert load(code).value is old_modules.LooseVersion
    assert load("from distutils.version import StrictVersion").StrictVersion is old_modules.StrictVersion


def test_builtins_and_other_modules_stay_as_they_are(load):
    before = dict(vars(builtins))
    module = load("import numpy as np\nlong = len(str(10 ** 3))")
    assert vars(builtins) == before and module.long == 4
    assert module.np is not np and sys.modules["numpy"] is np
    assert vars(module)["__builtins__"]["len"] is len


def test_names_of_the_module_come_before_those_of_builtins(load):
    module = load("def read():\n    return len('abc')\nlen = lambda text: -1")
    assert module.read() == -1


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that the finder takes for one of MXNet's, on the path and not imported."""
    folder = tmp_path / "probed"
    (folder / "part").mkdir(parents=True)
    (folder / "bare").mkdir()
    files = {
        "__init__.py": "from . import part\nfrom .part.leaf import value\n",
        "part/__init__.py": "",
        "part/leaf.py": "import numpy as np\nfrom .. import part\nvalue = np.float\n\n\ndef fails():\n    raise ValueError('here')\n",
        "bare/leaf.py": "from numpy import float as value\n",
        "data.txt": "some text",
        "broken.py": "value = (\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(finder, "PACKAGES", ("probed",))
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "probed"]:
        del sys.modules[name]


def test_a_package_with_relative_imports_is_loaded_whole(package):
    import probed.bare.leaf

    assert probed.value is probed.part.leaf.value is float
    assert probed.part.leaf.part is probed.part
    assert probed.bare.leaf.value is float  # of a folder without __init__.py


def test_a_loader_of_several_modules_stays_as_it_is(package, monkeypatch):
    """As that of pytest, which loads ``mxnet.test_utils`` and all tests."""
    shared = importlib.util.find_spec("json").loader
    spec = importlib.util.spec_from_loader("probed", shared)
    monkeypatch.setattr(sys, "meta_path", [Finder(), SimpleNamespace(find_spec=lambda *_: spec)])
    assert Finder().find_spec("probed").loader is not shared and "exec_module" not in vars(shared)


@pytest.mark.parametrize("name", ["probed.nonsense", "probed.part.nonsense"])
def test_a_module_that_is_not_there_is_not_found(package, name):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        importlib.import_module(name)


@pytest.mark.parametrize("name", ["probedly", "json", "numpy"])
def test_other_packages_are_left_to_the_other_finders(package, name):
    assert Finder().find_spec(name) is None


def test_a_module_that_cannot_be_parsed_raises_with_its_file(package):
    with pytest.raises(SyntaxError) as caught:
        importlib.import_module("probed.broken")
    assert caught.value.filename == str(package / "broken.py")
    assert "probed.broken" not in sys.modules


def test_source_data_and_tracebacks_are_found(package):
    leaf = importlib.import_module("probed.part.leaf")
    assert inspect.getsource(leaf.fails).startswith("def fails():")
    assert inspect.getsource(leaf) == (package / "part" / "leaf.py").read_text(encoding="utf-8")
    assert pkgutil.get_data("probed", "data.txt") == b"some text"
    assert leaf.__file__ == str(package / "part" / "leaf.py") and leaf.__spec__.name == "probed.part.leaf"
    with pytest.raises(ValueError) as caught:
        leaf.fails()
    assert "raise ValueError('here')" in traceback.format_tb(caught.value.__traceback__)[-1]


def test_a_reload_and_a_walk_of_the_package_work(package):
    leaf = importlib.import_module("probed.part.leaf")
    (package / "part" / "leaf.py").write_text("import numpy\nvalue, more = numpy.float, 'more'\n", encoding="utf-8")
    assert importlib.reload(leaf) is leaf and leaf.more == "more" and leaf.value is float
    names = [info.name for info in pkgutil.iter_modules(importlib.import_module("probed").__path__)]
    assert names == ["broken", "part"]
