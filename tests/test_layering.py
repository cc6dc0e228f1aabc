"""Who may import whom: the table of layers, read with ast."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Module -> (layer, modules of its own layer that it may import).
LAYERS = {
    "errors": (0, set()),
    "dtypes": (0, {"errors"}),
    "requirements": (0, {"errors"}),
    "compat": (0, {"errors", "files", "requirements"}),
    "files": (0, {"errors"}),
    "arrays_file": (0, {"errors"}),
    "recent": (0, set()),
    "interrupt": (0, set()),
    "loss_scale": (1, set()),
    "launch": (1, set()),
    "tether": (1, set()),
    "rules": (1, set()),
    "graph": (1, set()),
    "policy": (1, {"loss_scale"}),
    "passes": (2, set()),
    "tally": (2, {"passes"}),
    "legend": (0, set()),
    "report": (2, {"passes", "tally"}),
    "mxnet_private": (3, set()),
    "arrays": (3, set()),
    "distributed": (3, {"arrays"}),
    "masters": (3, {"arrays"}),
    "scaling": (3, {"arrays"}),
    "training": (3, {"arrays", "distributed", "masters", "scaling"}),
    "symbol": (3, {"arrays"}),
    "optimizer": (3, {"arrays", "masters", "scaling", "training"}),
    "gluon": (3, {"arrays", "distributed", "masters", "optimizer", "scaling", "symbol", "training"}),
    "module": (3, {"arrays", "distributed", "masters", "optimizer", "scaling", "symbol", "training"}),
    "estimator": (3, {"arrays", "gluon", "masters", "scaling"}),
    "onnx": (3, {"symbol"}),
    "diagnose": (3, {"symbol"}),
    "amp": (3, {"arrays", "gluon", "masters", "module", "optimizer", "scaling", "symbol", "training"}),
    "__init__": (4, {"cli"}),
    "cli": (4, set()),
    "__main__": (4, set()),
}
MXNET_LAYER = 3
FOR_ALL = {"mxnet_private"}  # which all of its layer may import
FILES = sorted((ROOT / "mxmp").rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "mxmp").with_suffix("").parts[0]


def imports_of(path: Path):
    """Return the absolute names of what a file imports, wherever the statement stands."""
    package = ("mxmp", *path.relative_to(ROOT / "mxmp").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            names = [*base, *(node.module.split(".") if node.module else [])]
            if names == ["mxmp"]:
                yield from (f"mxmp.{alias.name}" for alias in node.names)
            else:
                yield ".".join(names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_layers(path):
    module = module_of(path)
    assert module in LAYERS, f"{path.name}: give the new module {module} a layer here and in the style guide"
    layer, same = LAYERS[module]
    for name in imports_of(path):
        top, _, rest = name.partition(".")
        if top == "mxnet":
            assert layer >= MXNET_LAYER, f"{path}: only layer {MXNET_LAYER} imports mxnet"
        if top != "mxmp":
            assert top != "symbols", f"{path}: mxmp does not import the network library"
            continue
        target = rest.split(".")[0] or "__init__"
        if target == module or layer == 4:
            continue
        assert LAYERS[target][0] < layer or target in same | FOR_ALL, f"{path}: {module} may not import {target}"


def test_the_table_can_fail(tmp_path):
    """The reader of imports sees relative imports of every form."""
    assert set(imports_of(ROOT / "mxmp" / "gluon" / "api.py")) >= {"mxnet", "mxmp.dtypes", "mxmp.policy"}
