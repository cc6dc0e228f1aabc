"""The reference (docs/reference) says what is public: all of it is there, and users' code needs nothing else."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mxmp

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.rst")))
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(module|class|data|function):: ([\w.]+)\n((?: {3}.+\n)*)", re.MULTILINE)
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))

MODULES = ["mxmp", *(m.name for m in pkgutil.walk_packages(mxmp.__path__, "mxmp."))]
PACKAGES = [module for module in MODULES if hasattr(importlib.import_module(module), "__path__")]


def read_reference():
    """Return the modules that the reference has, and the names that it lists, in full."""
    modules, names = set(), set()
    for kind, name, options in DIRECTIVE.findall(REFERENCE):
        (modules if kind == "module" else names).add(name)
        if kind == "module":
            members = re.search(r":members:([^:]*)", options)
            names.update(f"{name}.{each}" for each in re.findall(r"\w+", members.group(1) if members else ""))
    return modules, names


LISTED_MODULES, LISTED = read_reference()


def names_in(package, names):
    return sorted(name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == package)


def reexported(package):
    """Return what a package's ``__init__`` gives under the name that it has: ``import x as x``."""
    tree = ast.parse(Path(importlib.import_module(package).__file__).read_text(encoding="utf-8"))
    found = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return sorted(alias.asname for alias in found if alias.asname == alias.name)


def used_by(code):
    """Return what a program uses of mxmp, in full: names that it imports, with the attributes that it reads of them."""
    tree, bound, found = ast.parse(code), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in (alias for alias in node.names if alias.name.partition(".")[0] == "mxmp"):
                bound[alias.asname or "mxmp"] = alias.name if alias.asname else "mxmp"
                found.add(alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mxmp" and not node.level:
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        names = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id in bound:
            found.add(".".join([bound[node.id], *names]))
    return (found | set(bound.values())) - {"mxmp"}


def is_public(path):
    """Return whether the reference has a path: a name that it lists, an attribute of one, or a module."""
    names = path.split(".")
    starts = {".".join(names[:count]) for count in range(1, len(names) + 1)}
    return path in LISTED_MODULES | {"mxmp.__version__"} or any(
        start in LISTED and resolves(path) and "._" not in path for start in starts
    )


def resolves(path):
    """Return whether a path leads to something, at any depth."""
    value = mxmp
    for name in path.split(".")[1:]:
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def python_of(page):
    """Return the Python of a page's blocks of code, as one program."""
    return "".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def test_the_reference_lists_names_one_by_one():
    """``:members:`` without names would list whatever a module happens to have."""
    assert len(LISTED) > 80 and {"mxmp.Policy", "mxmp.gluon.Trainer", "mxmp.module.Module"} <= LISTED
    assert len(re.findall(r"^\.\. \w", REFERENCE, re.MULTILINE)) == len(DIRECTIVE.findall(REFERENCE))


def test_what_the_reference_lists_is_there_and_documented():
    assert not [path for path in LISTED | LISTED_MODULES if not resolves(path)]
    values = [functools.reduce(getattr, path.split(".")[1:], mxmp) for path in LISTED | LISTED_MODULES]
    assert not [value for value in values if not (value.__doc__ or "").strip()]


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != "mxmp"])
def test_a_package_reexports_what_the_reference_lists(package):
    """One of which nothing is listed says in its docstring that it is internal."""
    if package in LISTED_MODULES:
        assert reexported(package) == names_in(package, LISTED)
    elif package.count(".") == 1:
        internal = "Internal: " in importlib.import_module(package).__doc__
        assert internal == (not names_in(package, LISTED)), "begin the docstring with 'Internal: ', or do not"


def test_the_top_has_the_modules_of_the_reference_and_its_own_names():
    assert sorted(mxmp.__all__) == names_in("mxmp", LISTED | LISTED_MODULES)
    assert mxmp.initialize is mxmp.amp.initialize and mxmp.Policy.parse("O1").is_mixed


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_guides_name_what_is_public(page):
    text = page.read_text(encoding="utf-8")
    found = used_by(python_of(page)) | set(re.findall(r"\bmxmp(?:\.[a-zA-Z_]\w*)+", text))
    assert not sorted(path for path in found if not is_public(path))


def test_examples_use_what_is_public():
    found = set().union(*(used_by(path.read_text(encoding="utf-8")) for path in EXAMPLES))
    assert not sorted(path for path in found if not is_public(path)), "these are not in docs/reference"


def public_names(module):
    for name, value in vars(module).items():
        if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if value.__module__ == module.__name__:
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                for attribute, member in vars(value).items():
                    if not attribute.startswith("_") and (
                        inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
                    ):
                        yield f"{module.__name__}.{name}.{attribute}", getattr(member, "__func__", member)


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(module):
    loaded = importlib.import_module(module)
    assert loaded.__doc__, f"{module} has no docstring"
    missing = [name for name, value in public_names(loaded) if not (value.__doc__ or "").strip()]
    assert not missing


def test_the_top_finds_parts_of_the_engine_and_refuses_others():
    assert mxmp.passes is importlib.import_module("mxmp.passes")  # of the engine, found when asked for
    assert not any(hasattr(mxmp, name) for name in ("gloun", "numpy", "mxnet"))


def test_a_star_import_brings_the_public_names():
    """In a process of its own, where no part has been imported yet."""
    code = "from mxmp import *; print(*sorted(name for name in dir() if not name.startswith('__')))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == sorted(mxmp.__all__), done.stderr


def test_type_checkers_see_the_public_names_and_no_others():
    """``__getattr__``, which would stand for any name, is kept from them."""
    top = ast.parse((ROOT / "mxmp" / "__init__.py").read_text(encoding="utf-8")).body
    seen = [node for node in top if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    assert sorted(alias.asname for node in seen for each in node.body for alias in each.names) == sorted(mxmp.__all__)
    assert not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in top)
