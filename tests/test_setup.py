"""What setup.py declares: versions, extras, and that only one extra brings the CPU wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN_SETUP = """
import json, runpy, setuptools
declared = {}
setuptools.setup = lambda **keywords: declared.update(keywords)
runpy.run_path("setup.py")
import sys
declared["imports"] = [name for name in sys.modules if name.split(".")[0] in ("mxmp", "mxnet", "numpy")]
print(json.dumps(declared))
"""


@pytest.fixture(scope="module")
def declared():
    done = subprocess.run([sys.executable, "-c", RUN_SETUP], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def distribution(requirement):
    """Return the normalized name that a requirement starts with."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement).group()).lower()


def closure(names):
    """Return all installed distributions that some distributions require, extras left out."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # required on another platform only
            continue
        waiting += [distribution(line) for line in requirements if "extra ==" not in line]
    return found


def test_setup_reads_the_version_and_imports_nothing_of_ours(declared):
    text = (ROOT / "mxmp" / "__init__.py").read_text()
    assert f'__version__ = "{declared["version"]}"' in text
    assert declared["imports"] == []


def test_setup_packages_mxmp_and_symbols_alone(declared):
    assert {name.split(".")[0] for name in declared["packages"]} == {"mxmp", "symbols"}
    assert "mxmp.graph" in declared["packages"]


def test_setup_supports_python_3_8_to_3_11_and_caps_numpy(declared):
    assert declared["python_requires"] == ">=3.8,<3.12"
    assert [line for line in declared["install_requires"] if line.startswith("numpy")] == ["numpy>=1.21,<1.24"]


def test_cuda_extra_brings_its_own_mxnet(declared):
    assert declared["extras_require"]["cpu"] == ["mxnet==1.9.1"]
    assert declared["extras_require"]["cu112"] == ["mxnet-cu112==1.9.1"]


def test_no_other_extra_requires_mxnet_even_indirectly(declared):
    extras = declared["extras_require"]
    lines = declared["install_requires"] + [
        line for name in extras if name not in ("cpu", "cu112") for line in extras[name]
    ]
    required = closure(distribution(line) for line in lines)
    assert "opencv-python" in required  # otherwise GluonCV's own requirements were not followed
    assert not [name for name in required if name.startswith("mxnet")]
