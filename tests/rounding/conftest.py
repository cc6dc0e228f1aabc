"""The compiled operators, built once for all tests of them, by the command that a user calls."""

import numpy as np
import pytest

from mxmp import rounding
from tests.cli.checkpoints import mxmp


@pytest.fixture(scope="session")
def operators(tmp_path_factory):
    """Build the library in a cache folder, load it, and return its path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        assert "`mxmp build` compiles" in rounding.state()
        out, _ = mxmp("build")
        library = rounding.kept()
        assert out == f"kept: {library}\n" and [library] == list(library.parent.iterdir())
        assert library.parent.stat().st_mode & 0o077 == library.stat().st_mode & 0o077 == 0
        assert rounding.state() == f"rounded by an operator of mxmp: {library}"
    assert rounding.load(library) and rounding.load(library)
    return library


@pytest.fixture
def native(operators, monkeypatch):
    """Round by the operators."""
    monkeypatch.setattr(rounding, "available", lambda: True)


@pytest.fixture
def same_bits(operators, monkeypatch):
    """Return a function that runs another, which returns arrays, with casts and with operators, and compares them."""

    def compare(run):
        found = []
        for on in (False, True):
            monkeypatch.setattr(rounding, "available", lambda on=on: on)
            found.append([np.asarray(array, np.float32) for array in run()])
        for number, (by_casts, by_operators) in enumerate(zip(*found)):
            assert np.abs(by_casts).max() > 0
            np.testing.assert_array_equal(by_casts, by_operators, err_msg=f"array {number}")

    return compare
