"""What the files of mxmp import, read with ast; nothing is imported for it."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def files_of(package):
    """Return the files of a package by module; a package's ``__init__`` is the module of the package's name."""
    parts = {path.relative_to(package.parent).with_suffix("").parts: path for path in sorted(package.rglob("*.py"))}
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for names, path in parts.items()}


FILES = files_of(ROOT / "mxmp")


@functools.lru_cache(maxsize=None)
def tree_of(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=None)
def imports_of(module, types=False):
    """Return the modules that a file imports, wherever the statements stand.

    A file of mxmp stands by its module: ``from . import x`` and ``from .gluon import trainer`` import the file
    ``x`` and ``gluon/trainer``, ``from .gluon import Trainer`` imports ``gluon/__init__``. What is imported for type
    checkers alone counts with ``types``. Other packages stand by their first name.
    """
    nodes, found = list(ast.walk(tree_of(module))), set()
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for_checkers = [node for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    hidden = {child for node in for_checkers for child in ast.walk(node) if not types}
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base for alias in node.names]
        if node not in hidden:
            found.update(name if name in FILES else name.partition(".")[0] for name in names)
    return found - {module}
