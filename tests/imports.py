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


def dynamic_names(call):
    """Return the module that a call of ``import_module`` or ``__import__`` names, as far as its text does."""
    function = getattr(call.func, "attr", getattr(call.func, "id", None))
    text = call.args[0] if call.args and function in ("import_module", "__import__") else None
    if isinstance(text, ast.JoinedStr):  # what stands before the first value
        text = text.values[0]
    name = text.value.rstrip(".") if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
    while name and name not in FILES and name.startswith("mxmp."):
        name = name.rpartition(".")[0]
    return [name] if name else []


@functools.lru_cache(maxsize=None)
def imports_of(module, types=False):
    """Return the modules that a file imports, wherever the statements stand.

    Imports by a text count too: ``import_module("mxmp.gluon")``. A file of mxmp stands by its module: ``from . import x`` and ``from .gluon import trainer`` import the file
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
        elif isinstance(node, ast.Call):
            names = dynamic_names(node)
        if node not in hidden:
            found.update(name if name in FILES else name.partition(".")[0] for name in names)
    return found - {module}
