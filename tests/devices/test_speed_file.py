"""What was measured, kept in the user's cache folder."""

from __future__ import annotations

import json
import os

import pytest

from mxmp.devices import amx, machine, speed_file
from mxmp.devices.processor import Processor
from mxmp.devices.speed_file import describe_machine, load, path, store

VALUES = [1.5, 1.25, 2.0, 0.75]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mxmp"


def test_what_is_stored_is_loaded(folder):
    assert load("this machine") is None
    store("this machine", VALUES)
    store("that machine", VALUES[::-1])
    assert load("this machine") == VALUES and load("that machine") == VALUES[::-1] and load("no machine") is None
    assert os.listdir(folder) == [os.path.basename(path())]
    assert folder.stat().st_mode & 0o077 == 0  # as the XDG Base Directory Specification asks


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"a": 1}', '{"a": [1, 2, 3, 4]}', '{"a": [1.0, 1.0, 1.0]}', '{"a": [1.0, 1.0, 1.0, -1.0]}']
    + ['{"a": [1.0, 1.0, 1.0, NaN]}', '{"a": [1.0, 1.0, 1.0, Infinity]}', '{"a": [1.0, 1.0, 1.0, "2"]}', "[" * 99999],
)
def test_a_damaged_file_is_none(folder, text):
    folder.mkdir(parents=True)
    (folder / os.path.basename(path())).write_text(text)
    assert load("a") is None
    store("a", VALUES)
    assert load("a") == VALUES


def test_a_file_that_is_no_text_is_none(folder):
    folder.mkdir(parents=True)
    (folder / os.path.basename(path())).write_bytes(b"\xff\xfe\x00")
    assert load("a") is None


@pytest.mark.parametrize("blocked", ["a file in the folder's place", "a folder in the file's place", "no folder"])
def test_what_cannot_be_written_is_no_error(folder, blocked, monkeypatch):
    if blocked == "no folder":
        monkeypatch.setattr(speed_file, "path", lambda: None)
    elif blocked == "a file in the folder's place":
        folder.parent.mkdir()
        folder.write_text("")
    else:
        os.makedirs(path())
    store("a", VALUES)
    assert load("a") is None


def test_the_folder_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/user")
    assert path() == "/var/cache/user/mxmp/bfloat16-1.json"
    monkeypatch.setenv("HOME", "/home/user")
    for other in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", other)
        assert path() == "/home/user/.cache/mxmp/bfloat16-1.json"
    monkeypatch.setenv("HOME", "relative")
    assert path() is None


def test_the_oldest_of_many_machines_go(folder):
    for number in range(70):
        store(f"machine {number}", VALUES)
    store("machine 6", VALUES)
    kept = json.loads((folder / os.path.basename(path())).read_text())
    assert list(kept) == [f"machine {number}" for number in [*range(7, 70), 6]]


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(machine, "read_processor", lambda: Processor("Made Up", frozenset())),
        lambda patch: patch.setattr(amx, "amx_status", lambda: amx.AmxStatus(not AMX_ON, "")),
        lambda patch: patch.setenv("OMP_NUM_THREADS", "97"),
        lambda patch: patch.setenv("DNNL_MAX_CPU_ISA", "SSE41"),
        lambda patch: patch.setattr(os, "sched_getaffinity", lambda pid: set(range(97))),
        lambda patch: patch.setattr(machine.mx, "__version__", "1.9.2"),
        lambda patch: patch.setattr(machine.mx.libinfo, "find_lib_path", lambda: [__file__]),
    ],
    ids=["processor", "AMX", "threads", "instructions", "cores", "version", "build"],
)
def test_another_machine_or_build_is_another_entry(change, monkeypatch):
    before = describe_machine()
    assert describe_machine() == before
    change(monkeypatch)
    assert describe_machine() != before


AMX_ON = amx.amx_status().on
