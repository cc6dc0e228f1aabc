"""Private names of MXNet stand in mxmp.mxnet_private alone, and MXNet has them all."""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import pytest

from mxmp import mxnet_private
from mxmp.errors import DependencyError
from mxmp.mxnet_private import ParameterBase, TrainerBase, blocks, parameters, trainers
from tests.imports import FILES, tree_of

NAME = re.compile(r"(?:\bdef |\bclass |\bself\.|^)(_(?!_)\w+)", re.MULTILINE)  # that a source defines or has on self
PYTHONS_OWN = set(dir(namedtuple("_", "")))  # _replace and its like
NAMES_OF_CLASSES = {entry.name for entry in mxnet_private.REGISTERED if inspect.isclass(entry.owner)}


@functools.lru_cache(maxsize=None)
def names_of_class(kind):
    """Return the private names of those bases of a class that are MXNet's."""
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "mxnet"]
    return {name for base in bases for name in [*NAME.findall(source_of(base)), *vars(base)] if name[:2] != "__"}


def source_of(kind):
    module = sys.modules["mxnet.numpy.multiarray"] if kind is mx.np.ndarray else None  # it names another one
    return inspect.getsource(module or kind)


def private_uses(module):
    """Yield each private name that a file reads of anything but self, imports from MXNet, or has as a text."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mxnet":
            yield from (name for alias in node.names for name in [*node.module.split("."), alias.name])
        elif isinstance(node, ast.Constant) and node.value in NAMES_OF_CLASSES:  # operators have such names too
            yield node.value


def test_no_other_file_names_a_private_name_nor_the_package_one_that_is_not_registered():
    """One that is used past the table would not be checked at import."""
    root = Path(mx.__file__).parent
    paths = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("contrib", "tools")]
    of_mxnet = {name for path in paths for name in NAME.findall(path.read_text(encoding="utf-8"))} - PYTHONS_OWN
    found = {module: of_mxnet.intersection(private_uses(module)) for module in FILES}
    for module in FILES:
        for kind in filter(inspect.isclass, vars(importlib.import_module(module)).values()):
            if kind.__module__ == module and names_of_class(kind):
                found[module] |= names_of_class(kind).intersection(NAME.findall(inspect.getsource(kind)))
        found[module] -= {entry.name for entry in mxnet_private.REGISTERED if "mxnet_private" in module}
    assert not {module: names for module, names in found.items() if names}, "give these a name in mxmp/mxnet_private"


@pytest.mark.parametrize("entry", mxnet_private.REGISTERED, ids=lambda entry: entry.label)
def test_each_name_is_in_the_sources_of_mxnet(entry):
    """By the sources, where the check at import looks at what is loaded."""
    assert entry.purpose and entry.is_there
    assert hasattr(entry.owner, entry.name) or entry.name in names_of_class(entry.owner)


def test_a_missing_name_is_reported_with_all_others(monkeypatch):
    """Attributes of instances too; the names of a private class that is missing are not looked for in None."""
    monkeypatch.delattr(mx.gluon.HybridBlock, "_get_graph")
    monkeypatch.delattr(mx.model, "_create_kvstore")
    text = "MXNet 1.9.9 lacks what mxmp relies on in MXNet 1.9.1: mxnet.gluon.block.HybridBlock._get_graph, mxnet.model._create_kvstore. Install MXNet 1.9.1."
    with pytest.raises(DependencyError, match=re.escape(text)):
        mxnet_private.check("1.9.9")
    gone = mxnet_private.PrivateName(mx.gluon.Block, "_gone", "a test", is_assigned=True)
    monkeypatch.setattr(mxnet_private, "REGISTERED", [gone, gone._replace(name="_children")])
    assert mxnet_private.global_name(SimpleNamespace(__name__="mxnet.some"), "_Gone", "a test") is None
    mxnet_private.attribute(None, "_part", "a test")
    with pytest.raises(DependencyError, match=r"1: mxnet\.gluon\.block\.Block\._gone, mxnet\.some\._Gone\. Install"):
        mxnet_private.check()


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
