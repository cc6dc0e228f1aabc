"""``mxmp build``: what it keeps, what it refuses to keep, and where the library is looked for."""

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


def test_without_a_compiler_the_command_says_what_to_install(monkeypatch, tmp_path, cache):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    _, err = mxmp("build", code=1)
    assert err == "mxmp: error: there is no C++ compiler: install g++, or name another in CXX.\n"
    assert not cache.exists()


SCRIPTS = {
    "fails": ("echo no such language >&2; exit 3", r"cannot be built: .*cxx ended with 3:\nno such language"),
    "writes no library": ('for last; do :; done; echo no library > "$last"', "cannot be loaded"),
}


@pytest.mark.parametrize("script, message", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.slow
def test_what_a_compiler_writes_is_tried_before_it_is_kept(script, message, compiler, cache):
    compiler(script)
    with pytest.raises(DependencyError, match=message):
        build.build()
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("op", [ROUND, ROUND_FORWARD])
def test_the_trial_finds_an_operator_that_does_not_round(op, monkeypatch):
    monkeypatch.setattr(build, "load", lambda library: True)
    wrong = {**build.CASTS, op: mx.sym.identity}
    monkeypatch.setattr(build, "OPERATORS", wrong)
    with pytest.raises(AssertionError, match="array "):
        build.check("library")


def test_the_path_depends_on_the_source(monkeypatch, tmp_path, cache):
    first = rounding.path()
    assert first.parent == cache and first == rounding.path()
    other = tmp_path / "other.cc"
    other.write_text(rounding.SOURCE.read_text() + "\n")
    monkeypatch.setattr(rounding, "SOURCE", other)
    assert rounding.path().parent == cache and rounding.path() != first


@pytest.mark.parametrize("who", ["folder", "file", "link"])
def test_a_library_that_another_user_may_have_put_there_is_not_loaded(who, cache, tmp_path):
    cache.mkdir(parents=True)
    library = rounding.path()
    library.write_bytes(b"no library")
    assert rounding.kept() == library and not rounding.load(library)  # then casts round
    if who == "link":
        library.rename(tmp_path / "elsewhere")
        library.symlink_to(tmp_path / "elsewhere")
    else:
        (cache if who == "folder" else library).chmod(0o777)
    assert rounding.kept() is None


@pytest.mark.parametrize("folder, text", [("~", "neither HOME"), ("file/cache", ".*Not a directory")])
def test_without_a_folder_nothing_is_built(folder, text, compiler, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    compiler("exit 3")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "~" if folder == "~" else str(tmp_path / folder))
    assert rounding.kept() is None
    with pytest.raises(DependencyError, match=f"there is no folder to keep the library in: {text}"):
        build.build()
