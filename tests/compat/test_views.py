"""A view of a module: further names, and all else the module's."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest

from mxmp.compat import old_distutils, views
from mxmp.compat.views import View


@pytest.fixture
def module():
    module = ModuleType("probe", "A module.")
    module.new, module.both = "new", "the module's"
    module.__version__ = "1.2"
    return module


@pytest.fixture
def view(module):
    return View(module, {"old": "old", "both": "the view's"})


def test_a_view_reads_its_own_names_first_and_then_the_modules(view):
    assert (view.old, view.both, view.new) == ("old", "the view's", "new")
    assert (view.__name__, view.__doc__, view.__version__) == ("probe", "A module.", "1.2")


def test_a_view_sees_what_the_module_gets_later(view, module):
    module.later = "later"
    assert view.later == "later"


def test_a_name_that_neither_has_raises_as_the_module_does(view, module):
    with pytest.raises(AttributeError) as expected:
        _ = module.nonsense
    with pytest.raises(AttributeError) as caught:
        _ = view.nonsense
    assert str(caught.value) == str(expected.value)


def test_what_is_set_or_deleted_is_so_in_the_module(view, module):
    view.set = "set"
    assert module.set == "set"
    del view.set
    assert not hasattr(module, "set") and not hasattr(view, "set")
    assert "set" not in vars(view)


def test_a_view_lists_the_names_of_both(view, module):
    assert dir(view) == sorted({*dir(module), "old"})


def test_a_view_is_a_module_and_says_what_it_is(view, module):
    assert isinstance(view, ModuleType)
    assert repr(view) == f"<mxmp's view of {module!r}>"


def test_the_module_has_none_of_it(view, module):
    assert not hasattr(module, "old") and module.both == "the module's"


def test_numpy_has_one_view_and_other_modules_none():
    assert views.of(np) is views.of(np) is not np
    assert views.of(json) is json and views.of(np.random) is np.random


def test_distutils_version_is_stood_in_for_where_python_has_none():
    expected = old_distutils if sys.version_info >= (3, 12) else None
    assert views.stand_in("distutils.version") is expected
    assert views.stand_in("distutils") is views.stand_in("json") is None
