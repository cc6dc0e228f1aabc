"""Every public name has a docstring and is exported once."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mxmp

ROOT = Path(__file__).resolve().parent.parent

MODULES = ["mxmp", *(m.name for m in pkgutil.walk_packages(mxmp.__path__, "mxmp."))]


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


def test_what_users_reach_from_the_top():
    assert mxmp.Policy.parse("O1").is_mixed
    gluon = ("convert", "cast", "restore", "report", "export", "precision", "set_policy", "Trainer", "SharedLossScale")
    for name in gluon:
        assert callable(getattr(mxmp.gluon, name))
    for name in ("NoOpLossScale", "StaticLossScale", "DynamicLossScale"):
        assert callable(getattr(mxmp.loss_scale, name))
    for name in ("convert_symbol", "convert_model", "convert_checkpoint", "convert_buckets"):
        assert callable(getattr(mxmp.symbol, name))
    for name in ("init", "disable", "init_trainer", "scale_loss", "unscale", "convert_hybrid_block", "list_lp16_ops"):
        assert callable(getattr(mxmp.amp, name))
    assert mxmp.initialize is mxmp.amp.initialize and callable(mxmp.distributed.KVStore)
    assert callable(mxmp.estimator.MixedPrecisionHandler) and callable(mxmp.optimizer.LossScaleOptimizer)
    for name in ("Module", "BucketingModule"):
        assert callable(getattr(mxmp.module, name))


def test_the_top_lists_its_parts_and_refuses_others():
    assert {"gluon", "amp", "symbol", "Policy", "initialize", "__version__"} <= set(dir(mxmp))
    assert mxmp.passes is importlib.import_module("mxmp.passes")  # of the engine, found when asked for
    with pytest.raises(AttributeError, match="module 'mxmp' has no attribute 'gloun'"):
        _ = mxmp.gloun
    with pytest.raises(ImportError, match="cannot import name 'gloun' from 'mxmp'"):
        exec("from mxmp import gloun")


def test_a_star_import_brings_the_public_names():
    """In a process of its own, where no part has been imported yet."""
    code = "from mxmp import *; print(*sorted(name for name in dir() if not name.startswith('__')))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == sorted(mxmp.__all__), done.stderr


def test_type_checkers_see_the_public_names_and_no_others():
    """``__getattr__``, which would stand for any name, is kept from them."""
    top = ast.parse((ROOT / "mxmp" / "__init__.py").read_text(encoding="utf-8")).body
    seen = [node for node in top if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    imported = [alias.asname for node in seen for each in node.body for alias in each.names]
    assert sorted(imported) == sorted(mxmp.__all__)
    assert not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in top)


@pytest.mark.parametrize("name", ["numpy", "mxnet"])
def test_names_of_other_packages_are_not_of_the_top(name):
    assert not hasattr(mxmp, name)
