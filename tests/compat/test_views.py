"""A view of a module: further names, and all else the module's."""

from __future__ import annotations

from types import ModuleType

import pytest

from mxmp.compat.old_modules import view


@pytest.fixture
def module():
    module = ModuleType("probe", "A module.")
    module.new, module.both = "new", "the module's"
    return module


def test_a_view_reads_its_own_names_first_and_then_the_modules(module):
    seen = view(module, {"old": "old", "both": "the view's"})
    module.later = "later"
    assert (seen.old, seen.both, seen.new, seen.later) == ("old", "the view's", "new", "later")
    assert (seen.__name__, seen.__doc__) == ("probe", "A module.") and isinstance(seen, ModuleType)
    assert dir(seen) == sorted({*dir(module), "old"})
    assert not hasattr(module, "old") and module.both == "the module's"


def test_a_name_that_neither_has_raises_as_the_module_does(module):
    with pytest.raises(AttributeError, match="module 'probe' has no attribute 'nonsense'"):
        _ = view(module, {}).nonsense
