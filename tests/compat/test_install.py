"""What importing mxmp installs, where, and what it leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxmp import compat

ROOT = Path(__file__).resolve().parents[2]
NEEDED = sys.version_info >= (3, 12) or tuple(map(int, np.__version__.split(".")[:2])) >= (1, 24)


def observe(code, *arguments):
    """Return the dict ``found`` that code fills in a Python into which neither MXNet nor mxmp has been imported."""
    program = f"import json, sys\nfound = {{}}\n{code}\nprint(json.dumps(found))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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


NEWER = """
import numpy
numpy.__version__ = "2.0.0"
left = ("mxnet.base", "gluoncv.check", "mxnetlike.base")  # as a failed import leaves them
sys.modules.update(dict.fromkeys(left, numpy))
import mxmp
mxmp.compat.install()
found["finders"] = [type(finder).__name__ for finder in sys.meta_path].count("Finder"), type(sys.meta_path[0]).__name__
found["left"] = [name for name in left if name in sys.modules]
"""


def test_a_newer_numpy_gets_one_finder_that_is_first_and_no_module_of_a_failed_import_stays():
    assert observe(NEWER) == {"finders": [1, "Finder"], "left": ["mxnetlike.base"]}


WHOLE = """
import builtins, importlib.util, pathlib, types
def attempt(name):
    try:
        __import__(name)
        return "imported"
    except (AttributeError, ImportError) as e:
        return str(e)

with_gluoncv = importlib.util.find_spec("gluoncv") is not None
found["mxnet"] = with_gluoncv and attempt("gluoncv"), attempt("mxnet")

sys.path.insert(0, sys.argv[1])
pathlib.Path(sys.argv[1], "another.py").write_text("import numpy\\nhas = [hasattr(numpy, name) for name in names]\\n")
builtins.names = sys.argv[2:]
import another, numpy
names, attributes, has, own = dir(numpy), dict(vars(numpy)), another.has, dict(vars(builtins))

import mxmp
import mxnet as mx
found["finders"] = [type(finder).__module__ for finder in sys.meta_path].count("mxmp.compat.finder")
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.BatchNorm())
net.initialize(mx.init.One())
net.hybridize()
found["sum"] = net(mx.nd.ones((4, 3))).sum().asscalar().item()
found["inf"] = mx.np.PINF
if with_gluoncv:
    import gluoncv
    assert len(list(gluoncv.model_zoo.get_model("cifar_resnet20_v1").collect_params())) > 50

def is_part(name):
    return isinstance(vars(numpy).get(name), types.ModuleType)
found["kept"] = all(vars(numpy).get(name) is value for name, value in attributes.items())
found["added"] = [name for name in {*vars(numpy)} - {*attributes} | {*dir(numpy)} ^ {*names} if not is_part(name)]
found["builtins"] = all(vars(builtins)[name] is value for name, value in own.items())
found["same"] = sys.modules["numpy"] is numpy is importlib.import_module("numpy") and type(numpy) is types.ModuleType
found["missing"] = has.count(False)
found["has"] = importlib.reload(another).has == has
found["distutils"] = [name for name in sys.modules if name.startswith("distutils")]
"""
OLD = "bool int float object Inf PINF NaN PZERO float_ alltrue product msort in1d trapz round_ row_stack".split()


@pytest.mark.slow
def test_mxnet_imports_behind_mxmp_after_a_failed_import_and_nothing_else_changes(tmp_path):
    found = observe(WHOLE, str(tmp_path), *OLD)
    assert (found["mxnet"][1] == "imported") is not NEEDED and found["finders"] == NEEDED
    assert found["sum"] == pytest.approx(24, rel=1e-4)  # 4 rows of 2 units, each a sum of 3 ones; BatchNorm's epsilon
    assert found["inf"] == float("inf")
    assert found["kept"] and found["has"] and found["same"] and found["builtins"] and found["added"] == []
    assert found["missing"] or not NEEDED  # else it shows nothing
    assert sys.version_info < (3, 12) or found["distutils"] == []


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


@pytest.mark.slow
def test_an_mxnet_that_other_means_imported_is_kept_with_a_warning_that_names_the_line():
    found = observe(BY_OTHER_MEANS, str(ROOT))
    message = (
        "MXNet was imported before mxmp and does without the names that mxmp gives it on this numpy and Python; "
        "put the line `import mxmp` before the first import of mxnet"
    )
    assert found == {"same": True, "warnings": [["RuntimeWarning", message, "<string>"]] if NEEDED else []}
