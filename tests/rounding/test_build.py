"""``mxmp build``: what it keeps, what it refuses to keep, and where the library is looked for."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp import rounding
from mxmp.errors import DependencyError
from mxmp.passes.emulate import ROUND, ROUND_FORWARD
from mxmp.rounding import build
from tests.cli.checkpoints import mxmp


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Give each test a cache folder of its own; return mxmp's part of it, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mxmp"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Return a function that makes a shell script the compiler."""

    def make(script):
        path = tmp_path / "cxx"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return make


@pytest.mark.compiler
@pytest.mark.slow
def test_the_command_keeps_a_library_that_the_next_process_takes(cache):
    assert "`mxmp build` compiles" in rounding.state()
    out, _ = mxmp("build")
    (library,) = cache.iterdir()
    assert out == f"kept: {library}\n" and rounding.kept() == library
    assert cache.stat().st_mode & 0o077 == library.stat().st_mode & 0o077 == 0
    assert rounding.state() == f"rounded by an operator of mxmp: {library}"


def test_without_a_compiler_the_command_says_what_to_install(monkeypatch, tmp_path, cache):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    _, err = mxmp("build", code=1)
    assert err == "mxmp: error: there is no C++ compiler: install g++, or name another in CXX.\n"
    assert not cache.exists()


def test_without_a_folder_nothing_is_built(monkeypatch):
    monkeypatch.setattr(rounding, "cache_folder", lambda: None)
    assert rounding.kept() is None
    with pytest.raises(DependencyError, match="there is no folder to keep the library in"):
        build.build()


def test_a_folder_that_cannot_be_made_is_named(compiler, cache):
    cache.parent.write_text("a file")
    compiler("exit 3")
    with pytest.raises(DependencyError, match="there is no folder to keep the library in: .*cache"):
        build.build()


def test_a_compiler_that_fails_is_quoted_and_nothing_kept(compiler, cache):
    compiler("echo no such language >&2; exit 3")
    with pytest.raises(DependencyError, match=r"cannot be built: .*cxx ended with 3:\nno such language"):
        build.build()
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_a_library_that_fails_the_trial_is_not_kept(compiler, cache):
    compiler('for last; do :; done; echo no library > "$last"')
    with pytest.raises(DependencyError, match="cannot be loaded"):
        build.build()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("op", [ROUND, ROUND_FORWARD])
def test_the_trial_finds_an_operator_that_does_not_round(op, monkeypatch):
    monkeypatch.setattr(build, "load", lambda library: True)
    wrong = {**build.CASTS, op: mx.sym.identity}
    monkeypatch.setattr(build, "OPERATORS", wrong)
    with pytest.raises(AssertionError, match="array "):
        build.check("library")


def test_the_path_depends_on_the_source_and_on_mxnet(monkeypatch, tmp_path, cache):
    first = rounding.path()
    assert first.parent == cache and first == rounding.path()
    other = tmp_path / "other.cc"
    other.write_text(rounding.SOURCE.read_text() + "\n")
    monkeypatch.setattr(rounding, "SOURCE", other)
    second = rounding.path()
    monkeypatch.setattr(mx, "__version__", "1.9.2")
    assert len({first, second, rounding.path()}) == 3


def test_a_file_that_is_no_library_leaves_the_casts(cache):
    cache.mkdir(parents=True)
    rounding.path().write_bytes(b"no library")
    assert rounding.kept() and not rounding.load(rounding.kept())


@pytest.mark.parametrize("who", ["folder", "file", "link"])
def test_a_library_that_another_user_may_have_put_there_is_not_loaded(who, cache, tmp_path):
    cache.mkdir(parents=True)
    library = rounding.path()
    library.write_bytes(b"anything")
    assert rounding.kept() == library
    if who == "link":
        library.rename(tmp_path / "elsewhere")
        library.symlink_to(tmp_path / "elsewhere")
    else:
        (cache if who == "folder" else library).chmod(0o777)
    assert rounding.kept() is None
