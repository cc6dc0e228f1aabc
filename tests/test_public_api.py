"""The reference (docs/reference) says what is public: all of it is there, and users' code needs nothing else."""

import ast
import functools
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import mxmp
from tests.imports import tree_of

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.rst")))
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(module|class|data|function):: ([\w.]+)\n((?: {3}.+\n)*)", re.MULTILINE)
MEMBERS = re.compile(r":members:([^:]*)")
FOR_DEVELOPERS = {ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "maintaining").glob("*.md")}
PAGES = sorted({*(ROOT / "docs").rglob("*.md")} - FOR_DEVELOPERS)
USERS = [ROOT / "README.md", *PAGES, *sorted([*(ROOT / "examples").rglob("*.md"), *(ROOT / "examples").rglob("*.py")])]

PACKAGES = ["mxmp", *(module.name for module in pkgutil.walk_packages(mxmp.__path__, "mxmp.") if module.ispkg)]

LISTED_MODULES, LISTED = set(), set()  # the modules that the reference has, and the names that it lists, in full
for kind, name, options in DIRECTIVE.findall(REFERENCE):
    (LISTED_MODULES if kind == "module" else LISTED).add(name)
    LISTED.update(f"{name}.{each}" for each in re.findall(r"\w+", " ".join(MEMBERS.findall(options))))


def names_in(package, names):
    return sorted(name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == package)


def found_at(path):
    """Return what a path leads to, at any depth; None if it leads to nothing."""
    return functools.reduce(lambda value, name: getattr(value, name, None), path.split(".")[1:], mxmp)


def is_public(path):
    """Return whether the reference has a path: a name that it lists, an attribute of one, or a module."""
    starts = {path[: end.start()] for end in re.finditer(r"\.|$", path)}
    listed = starts & LISTED and found_at(path) is not None and "._" not in path
    return bool(listed) or path in LISTED_MODULES | {"mxmp.__version__"}


def test_the_reference_lists_names_one_by_one_and_they_are_there_and_documented():
    """``:members:`` without names would list whatever a module happens to have."""
    assert len(LISTED) > 80 and {"mxmp.Policy", "mxmp.gluon.Trainer", "mxmp.module.Module"} <= LISTED
    assert len(re.findall(r"^\.\. \w", REFERENCE, re.MULTILINE)) == len(DIRECTIVE.findall(REFERENCE))
    assert not [path for path in LISTED | LISTED_MODULES if not (getattr(found_at(path), "__doc__", "") or "").strip()]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_reexports_what_the_reference_lists(package):
    """As type checkers want it; one of which nothing is listed says in its docstring that it is internal."""
    listed = names_in(package, LISTED | LISTED_MODULES if package == "mxmp" else LISTED)
    aliases = [alias for node in ast.walk(tree_of(package)) if isinstance(node, ast.ImportFrom) for alias in node.names]
    if package in LISTED_MODULES | {"mxmp"}:
        assert sorted(alias.asname for alias in aliases if alias.asname == alias.name) == listed
    elif package.count(".") == 1:
        internal = "Internal: " in importlib.import_module(package).__doc__
        assert internal == (not listed), "begin the docstring with 'Internal: ', or do not"


@pytest.mark.parametrize("page", USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_guides_and_examples_name_what_is_public(page):
    text = page.read_text(encoding="utf-8")
    code = text if page.suffix == ".py" else "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    imports = re.findall(r"^from (mxmp[\w.]*) import (.+)$", code, re.MULTILINE)
    imported = {f"{module}.{name}" for module, names in imports for name in re.findall(r"\w+", names)}
    found = {path for path in re.findall(r"\bmxmp(?:\.[a-zA-Z_]\w*)+", text) if path not in dict(imports)}
    assert not sorted(path for path in found | imported if not is_public(path)), "these are not in docs/reference"


def test_the_top_has_the_parts_of_the_engine_and_a_star_import_brings_the_public_names(monkeypatch):
    """Where no part has been imported yet."""
    for name in mxmp.__all__:
        monkeypatch.delattr(mxmp, name, raising=False)
    namespace = {}
    exec("from mxmp import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == sorted(mxmp.__all__)
    assert namespace["initialize"] is mxmp.amp.initialize and mxmp.Policy.parse("O1").is_mixed
    assert mxmp.passes is importlib.import_module("mxmp.passes")  # of the engine, found when asked for
    assert not any(hasattr(mxmp, name) for name in ("gloun", "numpy", "mxnet"))
    tops = [node.name for node in tree_of("mxmp").body if isinstance(node, ast.FunctionDef)]
    assert "__getattr__" not in tops  # kept from type checkers, for which it would stand for any name
