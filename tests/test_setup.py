"""What setup.py declares: versions, extras, and that only one extra brings the CPU wheel."""

import contextlib
import re
import runpy
from importlib import metadata
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]


@pytest.fixture(scope="module")
def declared():
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args[1]


def closure(requirements):
    """Return all installed distributions that some requirements bring, extras left out."""
    found, waiting = set(), list(requirements)
    while waiting:
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", waiting.pop()).group()).lower()
        if name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # required on another platform only
                waiting += [line for line in metadata.requires(name) or () if "extra ==" not in line]
    return found


def on(python, requirements):
    """Return the versions, by name, that requirements ask for on a Python like "3.8"."""
    environment = {"python_version": python, "extra": ""}
    parsed = map(Requirement, requirements)
    return {one.name: str(one.specifier) for one in parsed if one.marker is None or one.marker.evaluate(environment)}


def test_setup_has_the_version_packages_mxmp_alone_and_supports_python_3_8_to_3_13_and_numpy_1_and_2(declared):
    assert f'__version__ = "{declared["version"]}"' in (ROOT / "mxmp" / "__init__.py").read_text()
    # A package called symbols would hide a user's folder of that name.
    assert {name.split(".")[0] for name in declared["packages"]} == {"mxmp"} and "mxmp.graph" in declared["packages"]
    assert declared["python_requires"] == ">=3.8,<3.14"
    assert [line.rpartition(" ")[2] for line in declared["classifiers"] if "Python :: 3." in line] == PYTHONS
    assert not re.search(r"^\s*(import|from) (mxmp|mxnet|numpy)", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert {on(python, declared["install_requires"])["numpy"] for python in PYTHONS} == {">=1.21"}


@pytest.mark.parametrize(("extra", "wheel"), [("cpu", "mxnet"), ("cu112", "mxnet-cu112")])
def test_extra_brings_its_own_mxnet_with_numpy_that_it_imports(declared, extra, wheel):
    found = {python: on(python, declared["extras_require"][extra]) for python in PYTHONS}
    for python in ("3.8", "3.9", "3.10", "3.11"):
        assert found[python] == {wheel: "==1.9.1", "numpy": "<1.24"}
    assert found["3.12"] == {wheel: "==1.9.1"}  # its own pin is below 2


@pytest.mark.parametrize("extra", ["cpu", "cu112"])
def test_extra_brings_what_mxnet_requires_where_pip_cannot_install_mxnet(declared, extra):
    required, found = on("3.13", metadata.requires("mxnet")), on("3.13", declared["extras_require"][extra])
    assert required.pop("numpy") == "<2.0.0,>1.16.0"  # no such wheel for Python 3.13
    assert found.keys() == required.keys()
    for name in found:
        ours, theirs = SpecifierSet(found[name]), SpecifierSet(required[name])
        versions = "0.8.4" if name == "graphviz" else "2.32.3", "0.8", "0.8.1", "0.9.0", "2.19.1", "2.20.0", "3.0"
        assert ours.contains(versions[0]) and not [each for each in versions[1:] if ours.contains(each) != theirs.contains(each)]


def test_extra_onnx_has_wheels_on_every_python(declared):
    for python in PYTHONS:
        versions = ">=1.13,<1.14" if python in ("3.8", "3.9", "3.10", "3.11") else ">=1.16,<1.24"
        assert SpecifierSet(on(python, declared["extras_require"]["onnx"])["onnx"]) == SpecifierSet(versions)


def test_no_other_extra_brings_mxnet_even_indirectly(declared):
    extras = [lines for name, lines in declared["extras_require"].items() if name not in ("cpu", "cu112")]
    required = closure(line for lines in [declared["install_requires"], *extras] for line in lines)
    assert "opencv-python" in required  # otherwise GluonCV's own requirements were not followed
    assert not [name for name in required if name.startswith("mxnet")]
