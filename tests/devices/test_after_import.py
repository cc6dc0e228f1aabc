"""An action at the end of a module's import."""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.util import find_spec

import pytest

from mxmp import compat
from mxmp.devices.after_import import after_import

MODULE = "imported_after_this"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the module; all of it is forgotten again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield lambda text: (tmp_path / f"{MODULE}.py").write_text(text)
    sys.modules.pop(MODULE, None)
    importlib.invalidate_caches()


def test_it_runs_once_at_the_end_of_the_import(write):
    write("value = 1")
    seen = []
    after_import(MODULE, lambda: seen.append(sys.modules[MODULE].value))
    importlib.import_module("colorsys")
    assert not seen
    module = importlib.import_module(MODULE)
    assert seen == [1]
    del sys.modules[MODULE]
    importlib.import_module(MODULE)
    assert seen == [1] and module.value == 1


def test_nothing_is_left_behind(write):
    write("value = 1")
    plain = importlib.import_module(MODULE)
    del sys.modules[MODULE]
    before = list(sys.meta_path)
    after_import(MODULE, lambda: None)
    module = importlib.import_module(MODULE)
    assert sys.meta_path == before
    assert type(module.__spec__.loader) is type(module.__loader__) is type(plain.__loader__)


def test_to_look_for_the_module_is_not_to_import_it(write):
    write("value = 1")
    seen = []
    after_import(MODULE, lambda: seen.append(1))
    assert find_spec(MODULE).origin.endswith(f"{MODULE}.py") and not seen
    assert find_spec(MODULE).loader.get_filename(MODULE).endswith(f"{MODULE}.py")
    importlib.import_module(MODULE)
    assert seen == [1]


def test_an_import_that_fails_may_be_tried_again(write):
    seen = []
    after_import(MODULE, lambda: seen.append(1))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(MODULE)
    write("raise ImportError('not yet')")
    importlib.invalidate_caches()
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(MODULE)
    assert not seen
    write("value = 1  # of another length, or the first bytecode is taken")
    importlib.invalidate_caches()
    assert importlib.import_module(MODULE).value == 1 and seen == [1]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_it_gets_along_with_the_views_of_numpy(write, first, monkeypatch):
    """That finder asks all others, as this one does."""
    write("import numpy as np\nvalue = np.bool")
    monkeypatch.setattr(compat.finder, "PACKAGES", (MODULE,))
    seen = []
    for step in [0, 1] if first else [1, 0]:
        if step:
            sys.meta_path.insert(0, compat.Finder())
        else:
            after_import(MODULE, lambda: seen.append(1))
    assert importlib.import_module(MODULE).value is bool and seen == [1]


def test_it_runs_in_the_thread_that_imports(write):
    write("value = 1")
    seen = []
    after_import(MODULE, lambda: seen.append(threading.get_ident()))
    threads = [threading.Thread(target=importlib.import_module, args=(MODULE,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1 and seen[0] in {thread.ident for thread in threads}
