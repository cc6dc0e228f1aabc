"""The compiled operators, built once for all tests of them."""

from __future__ import annotations

import pytest

from mxmp.rounding import build, library


@pytest.fixture(scope="session")
def operators(tmp_path_factory):
    """Build the library, load it, and return its path."""
    built = tmp_path_factory.mktemp("rounding") / "rounding.so"
    why = build.build(built)
    assert not why, why
    assert library.load(built) and library.load(built)
    return built
