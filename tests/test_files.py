"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mxmp.files import replacing


def write(name, text="new"):
    with open(name, "w") as file:
        file.write(text)


def test_all_files_take_their_places_at_the_end(tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    with replacing(*map(str, paths)) as names:
        for name in names:
            write(name)
        assert not (tmp_path / "a").exists()
    assert {path: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(paths, "new")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, None])
def test_an_error_or_a_file_that_was_not_written_leaves_what_was_there_and_nothing_else(error, tmp_path):
    old = tmp_path / "a"
    old.write_text("old")
    match = "stop" if error else "nothing was written"
    with pytest.raises(error or OSError, match=match), replacing(str(old), str(tmp_path / "b")) as (first, _):
        write(first, "half")
        if error:
            raise error("stop")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {old: "old"}


def test_an_interrupt_among_the_renames_waits_for_the_last(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text("old")
    replace, calls = os.replace, []

    def interrupted_once(source, target):
        replace(source, target)
        calls.append(target)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted_once)
    with pytest.raises(KeyboardInterrupt), replacing(*map(str, paths)) as names:
        for name in names:
            write(name)
    assert [path.read_text() for path in paths] == ["new", "new", "new"]
    assert sorted(tmp_path.iterdir()) == paths


def test_temporary_names_differ_every_time(tmp_path):
    seen = set()
    for _ in range(20):
        with replacing(str(tmp_path / "a")) as (name,):
            assert os.path.dirname(name) == str(tmp_path) and os.path.basename(name).startswith("a.")
            seen.add(name)
            write(name)
    assert len(seen) == 20


KILLED = """
import os, sys, time
from mxmp.files import replacing
with replacing(*sys.argv[1:]) as names:
    for name in names:
        open(name, "w").write("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """Return a process that is writing 'a' and 'b', which is killed at the end at the latest."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "a"), str(tmp_path / "b")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_save(writer, tmp_path):
    (tmp_path / "ab").write_text("another")
    writer.kill()
    writer.wait()
    assert len(names_in(tmp_path)) == 3
    (tmp_path / "a.0123456789abcdef.tmp").write_text("killed between two renames")
    with replacing(str(tmp_path / "a")) as (name,):
        write(name)
    left = names_in(tmp_path)
    assert left[:2] == ["a", "ab"] and left[2].startswith("b.") and len(left) == 3
    with replacing(str(tmp_path / "b")) as (name,):
        write(name)
    assert names_in(tmp_path) == ["a", "ab", "b"]


def test_what_another_process_is_writing_is_left_alone(writer, tmp_path):
    before = names_in(tmp_path)
    with replacing(str(tmp_path / "a")) as (name,):
        write(name)
    assert names_in(tmp_path) == ["a", *before]


def test_ctrl_c_removes_what_was_begun(writer, tmp_path):
    writer.send_signal(signal.SIGINT)
    assert writer.wait(30) != 0
    assert names_in(tmp_path) == []


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a"

    def save(text):
        for _ in range(50):
            with replacing(str(path)) as (name,):
                write(name, text * 1000)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(save, "xyz"))
    assert path.read_text() in {text * 1000 for text in "xyz"}
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_permissions_of_the_mask_and_keeps_those_given_to_it(mask, tmp_path):
    path, before = tmp_path / "a", os.umask(mask)
    try:
        with replacing(str(path)) as (name,):
            write(name, "old")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    with replacing(str(path)) as (name,):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o640  # nobody else can read it meanwhile
        write(name)
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    path, link = tmp_path / "folder" / "a", tmp_path / "link"
    path.write_text("old")
    link.symlink_to(path)
    with replacing(str(link)) as (name,):
        write(name)
    assert link.is_symlink() and path.read_text() == "new"
    assert names_in(tmp_path) == ["folder", "link"] and names_in(tmp_path / "folder") == ["a"]


@pytest.mark.parametrize("name", ["café", "层", "a b", "a*[0-9]?", "\x7f", "new\nline", "("])
def test_names_of_any_characters(name, tmp_path):
    (tmp_path / f"{name}.0123456789abcdef.tmp").write_text("left")
    with replacing(str(tmp_path / name)) as (temporary,):
        write(temporary)
    assert names_in(tmp_path) == [name]


def test_another_writer_leaves_a_save_within_another_alone(tmp_path):
    path = str(tmp_path / "states")
    with replacing(path) as (outer,):
        with replacing(outer) as (inner,):
            Path(inner).write_text("new")
        with replacing(path) as (other,):  # which removes what is left over
            Path(other).write_text("other")
    assert Path(path).read_text() == "new"
