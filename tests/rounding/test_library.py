"""Where the library with the rounding operators is looked for, and what happens where it is not."""

from __future__ import annotations

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.rounding import library
from mxmp.symbol import convert_graph


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Give each test a cache folder of its own, a process that has decided nothing, and a list of builds."""
    started = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(library.SWITCH, raising=False)
    monkeypatch.setattr(library, "_decided", None)
    monkeypatch.setattr(library, "start_build", started.append)
    return started


def test_the_path_depends_on_the_source_and_on_mxnet(monkeypatch, tmp_path):
    first = library.path()
    assert first.parent == tmp_path / "mxmp" and first == library.path()
    other = tmp_path / "other.cc"
    other.write_text(library.SOURCE.read_text() + "\n")
    monkeypatch.setattr(library, "SOURCE", other)
    second = library.path()
    monkeypatch.setattr(mx, "__version__", "1.9.2")
    assert len({first, second, library.path()}) == 3


def test_a_build_is_started_once_and_not_after_one_has_failed(monkeypatch, cache):
    assert not library.available() and not library.available()
    assert cache == [library.path()]
    assert "not built yet" in library.state().text
    library.path().parent.mkdir()
    library.failure(library.path()).write_text("no compiler")
    monkeypatch.setattr(library, "_decided", None)
    assert not library.available() and len(cache) == 1
    assert str(library.failure(library.path())) in library.state().text


def test_a_library_that_cannot_be_loaded_leaves_the_casts(cache, caplog):
    library.path().parent.mkdir()
    library.path().write_bytes(library.sealed(b"no library"))
    with caplog.at_level("INFO", logger="mxmp"):
        assert not library.available()
    assert "is rounded by casts" in caplog.text and not cache


@pytest.mark.parametrize("keep", [0, 10, 100], ids=["empty", "cut off", "without its checksum"])
def test_a_damaged_library_is_not_loaded_and_built_again(cache, keep):
    library.path().parent.mkdir()
    library.path().write_bytes(library.sealed(b"x" * 100)[:keep])
    assert not library.state().ready
    assert not library.available() and cache == [library.path()]


def test_a_folder_that_others_may_write_to_is_not_used(cache):
    library.path().parent.mkdir()
    library.path().parent.chmod(0o777)
    library.path().write_bytes(library.sealed(b"anything"))
    assert not library.available() and not cache
    assert "others may write to it" in library.state().text


def test_a_folder_that_cannot_be_made_is_told_of(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot be written" in library.state().text


def test_the_environment_switches_it_off(monkeypatch, cache):
    monkeypatch.setenv(library.SWITCH, "0")
    assert not library.available() and not cache
    assert library.SWITCH in library.state().text


def test_without_a_cache_folder_casts_round(monkeypatch, cache):
    monkeypatch.setattr(library, "cache_folder", lambda: None)
    assert not library.available() and not cache
    assert "no cache folder" in library.state().text


@pytest.mark.parametrize("policy, asked", [("O1", 1), ("mixed_bfloat16", 0), ("O0", 0)])
def test_only_a_graph_with_float16_asks_for_it(policy, asked, cache):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
    convert_graph(symbol, Policy.parse(policy), {"data": (2, 3)}).on_cpu()
    assert len(cache) == asked
