"""Private names of MXNet stand in mxmp.mxnet_private alone, and MXNet has them all."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import warnings
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import pytest

from mxmp import mxnet_private
from mxmp.errors import DependencyError
from mxmp.mxnet_private import ParameterBase, TrainerBase, blocks, parameters, trainers

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "mxmp" / "mxnet_private"
PYTHONS_OWN = {name for name in dir(namedtuple("_", "")) if not name.startswith("__")}  # _replace and its like

NAMES_OF_CLASSES = {entry.name for entry in mxnet_private.REGISTERED if inspect.isclass(entry.owner)}
FILES = sorted(path for path in (ROOT / "mxmp").rglob("*.py") if HOME not in path.parents)


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def assigned(tree):
    """Yield the names of attributes that a class's methods assign on self."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and getattr(node.value, "id", "") == "self"
        ):
            yield node.attr


def library_files():
    root = Path(mx.__file__).parent
    return [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("contrib", "tools")]


def parse(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's strings have escapes that are none
        return ast.parse(path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=None)
def names_of_mxnet():
    """Return the private names that MXNet's sources define: of modules, of classes, and of their instances."""
    found = set()
    for tree in map(parse, library_files()):
        bodies = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
        for node in (node for body in bodies for node in body.body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found.update(target.id for target in node.targets if isinstance(target, ast.Name))
        found.update(assigned(tree))
    return {name for name in found if is_private(name)} - PYTHONS_OWN


@functools.lru_cache(maxsize=None)
def names_of_class(kind):
    """Return the private names of those bases of a class that are MXNet's, None if it has none."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "mxnet"]
    found = set()
    for base in bases:
        found.update(vars(base))
        found.update(assigned(ast.parse(inspect.cleandoc(f"\n{inspect.getsource(base)}"))))
    return {name for name in found if is_private(name)} if bases else None


def private_uses(path):
    """Yield (line, name) of each private name of MXNet that a file names."""
    module = path.relative_to(ROOT).with_suffix("")
    parts = module.parts[:-1] if module.name == "__init__" else module.parts
    yield from uses_in(parse(path), None, ".".join(parts))


def uses_in(node, kind, module):
    """Yield the uses below a node; ``kind`` is the class that it stands in."""
    if isinstance(node, ast.ClassDef):
        kind = getattr(importlib.import_module(module), node.name, kind)
    known = names_of_class(kind) if isinstance(kind, type) else None
    if isinstance(node, ast.Attribute):
        on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") or is_super(node.value)
        if node.attr in ((known or ()) if on_self and kind is not None else names_of_mxnet()):
            yield node.lineno, node.attr
    elif isinstance(node, ast.ClassDef) and known:
        yield from ((each.lineno, each.name) for each in node.body if getattr(each, "name", None) in known)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mxnet":
        yield from ((node.lineno, name) for name in named_by(node) if is_private(name))
    elif isinstance(node, ast.Constant) and node.value in NAMES_OF_CLASSES:  # operators have such names too
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        return
    for child in ast.iter_child_nodes(node):
        yield from uses_in(child, kind, module)


def is_super(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", None) == "super"


def named_by(node):
    return [*node.module.split("."), *(alias.name for alias in node.names)]


def test_no_other_file_names_a_private_name():
    found = {str(path): sorted(set(private_uses(path))) for path in FILES}
    assert not {path: uses for path, uses in found.items() if uses}, "give these a name in mxmp/mxnet_private"


@pytest.mark.parametrize("entry", mxnet_private.REGISTERED, ids=lambda entry: entry.label)
def test_each_name_is_in_the_sources_of_mxnet(entry):
    """By the sources, where the check at import looks at what is loaded."""
    assert entry.purpose and entry.is_there
    if not hasattr(entry.owner, entry.name):
        assert entry.name in names_of_class(entry.owner)


def test_the_package_names_only_what_is_registered():
    """A name that is used past the table would not be checked at import."""
    used = {name for path in HOME.glob("*.py") for _, name in private_uses(path)}
    assert used <= {entry.name for entry in mxnet_private.REGISTERED}


def test_a_missing_name_is_reported_with_all_others(monkeypatch):
    monkeypatch.delattr(mx.gluon.HybridBlock, "_get_graph")
    monkeypatch.delattr(mx.model, "_create_kvstore")
    text = (
        "MXNet 1.9.9 lacks what mxmp relies on in MXNet 1.9.1: mxnet.gluon.block.HybridBlock._get_graph, "
        "mxnet.model._create_kvstore. Install MXNet 1.9.1."
    )
    with pytest.raises(DependencyError, match=re.escape(text)):
        mxnet_private.check("1.9.9")


def test_a_missing_attribute_of_instances_is_reported(monkeypatch):
    class Plain:
        def __init__(self):
            self._here = 1

    entries = [mxnet_private.PrivateName(Plain, name, "a test", is_assigned=True) for name in ("_here", "_gone")]
    monkeypatch.setattr(mxnet_private, "REGISTERED", entries)
    with pytest.raises(DependencyError, match=r"Plain\._gone\."):
        mxnet_private.check()


def test_a_missing_owner_is_reported_once(monkeypatch):
    """The names of a private class that is missing are not looked for in None."""
    monkeypatch.setattr(mxnet_private, "REGISTERED", [])
    missing = mxnet_private.global_name(SimpleNamespace(__name__="mxnet.some"), "_Gone", "a test")
    mxnet_private.attribute(missing, "_part", "a test")
    assert missing is None and [entry.label for entry in mxnet_private.REGISTERED] == ["mxnet.some._Gone"]


def test_an_attribute_is_a_function_and_a_property():
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    assert blocks.cached_graph(net) == () and set(trainers.params(trainer)) == {net.weight, net.bias}
    blocks.cached_graph.set(net, "graph")
    assert net._cached_graph == "graph"
    trainer.__class__ = TrainerBase
    trainer.mx_scale = 3.0
    assert trainer._scale == 3.0 and trainer.mx_params is trainer._params


def test_an_override_is_called_by_mxnet_and_reaches_the_next_class():
    """MXNet's, or a user's own parameter class, which stands between this base and MXNet's."""
    reduce = {"mx_reduce": lambda self: super(type(self), self).mx_reduce() + 1}
    param = type("Mine", (ParameterBase,), reduce)("weight", shape=(2,))
    param.initialize("zeros")
    assert param._reduce().asnumpy().tolist() == [1, 1] and parameters.reduced(param).asnumpy().tolist() == [1, 1]
    users = type("Users", (mx.gluon.Parameter,), {"_reduce": lambda self: "the user's"})
    assert type("Both", (ParameterBase, users), {})("weight", shape=(2,))._reduce() == "the user's"
