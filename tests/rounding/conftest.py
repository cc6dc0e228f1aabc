"""The compiled operators, built once for all tests of them."""

from __future__ import annotations

import pytest

from mxmp import rounding
from mxmp.rounding import build


@pytest.fixture(scope="session")
def operators(tmp_path_factory):
    """Build the library in a cache folder, load it, and return its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        library = build.build()
        assert rounding.kept() == library and rounding.load(library) and rounding.load(library)
    return library


@pytest.fixture
def native(operators, monkeypatch):
    """Round by operators; the function that this gives switches that off and on."""

    def switch(on):
        monkeypatch.setattr(rounding, "available", lambda: on)

    switch(True)
    return switch
