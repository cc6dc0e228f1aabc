"""What the files of a package import, read with ast; nothing is imported for it."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where a statement holds others


def files_of(package):
    """Return the files of a package by module; a package's ``__init__`` is the module of the package's name."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        *names, last = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(names if last == "__init__" else [*names, last])] = path
    return files


FILES = files_of(ROOT / "mxmp")


def imports_of(module, files=FILES, types=False):
    """Return the modules that a file imports, wherever the statements stand.

    A file of ``files`` stands by its module: ``from . import x`` and ``from .gluon import trainer`` import the file
    ``x`` and ``gluon/trainer``, ``from .gluon import Trainer`` imports ``gluon/__init__``. What is imported for type
    checkers alone counts with ``types``. Other packages stand by their first name.
    """
    found = set()
    package = module if files[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in _imports_in(files[module].read_text(encoding="utf-8"), types):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base for alias in node.names]
        found.update(name if name in files else name.partition(".")[0] for name in names)
    return found - {module}


def cycles_among(imports):
    """Return the groups of modules that import one another in a circle, each sorted.

    Args:
        imports: What each module imports, by module.
    """
    reached = {module: set(names) for module, names in imports.items()}
    for middle in imports:  # Warshall's transitive closure
        for names in reached.values():
            if middle in names:
                names |= reached[middle]
    return sorted({tuple(sorted(m for m in reached[n] if n in reached[m])) for n in reached if n in reached[n]})


@functools.lru_cache(maxsize=None)
def _imports_in(text, types):
    """Return the import statements of a file; each file is parsed once for all who ask."""
    return [node for node in _statements(_parsed(text), types) if isinstance(node, (ast.Import, ast.ImportFrom))]


@functools.lru_cache(maxsize=None)
def _parsed(text):
    return ast.parse(text)


def _statements(tree, types):
    """Return all statements of a file, at whatever depth; expressions hold none."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        if types or not _is_for_type_checkers(node):
            found.append(node)
            left.extend(child for name in BLOCKS for child in getattr(node, name, ()))
    return found


def _is_for_type_checkers(node):
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"
