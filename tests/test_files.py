"""Files that are written whole or not at all."""

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from mxmp.errors import CheckpointError
from mxmp.files import replacing


def save(*paths, text="new"):
    """Write a text to each path; return the temporary names."""
    with replacing(*map(str, paths)) as names:
        for name in names:
            Path(name).write_text(text)
        return names


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, None])
def test_an_error_or_a_file_that_was_not_written_leaves_what_was_there_and_nothing_else(error, tmp_path):
    (tmp_path / "a").write_text("old")
    match = "stop" if error else "nothing was written"
    with pytest.raises(error or OSError, match=match), replacing(str(tmp_path / "a"), str(tmp_path / "b")) as (first, _):
        Path(first).write_text("half")
        if error:
            raise error("stop")
    assert texts(tmp_path) == {"a": "old"}


def test_an_interrupt_among_the_renames_waits_for_the_last(tmp_path):
    replace, calls = os.replace, []

    def interrupted_once(source, target):
        calls.append(list(texts(tmp_path).values()))
        replace(source, target)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with mock.patch.object(os, "replace", interrupted_once), pytest.raises(KeyboardInterrupt):
        save(*(tmp_path / name for name in "abc"))
    assert texts(tmp_path) == dict.fromkeys("abc", "new")
    assert calls[0] == ["new", "new", "new"]  # all are complete before the first takes its place


@pytest.mark.parametrize(
    "name, error, text",
    [("pipe", OSError, "is a pipe or a device, not a file"), ("folder", OSError, "is a folder"), ("no/a", CheckpointError, "make it first")],
)
def test_what_is_no_place_for_a_file_is_refused_before_anything_is_written(name, error, text, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(error, match=text), replacing(str(tmp_path / "a"), str(tmp_path / name)):
        pytest.fail("the block ran")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


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


def test_what_a_killed_process_left_goes_with_the_next_save_and_what_another_is_writing_does_not(writer, tmp_path):
    (tmp_path / "ab").write_text("another")
    save(tmp_path / "a")
    assert len(texts(tmp_path)) == 4
    writer.kill()
    writer.wait()
    (tmp_path / "a.0123456789abcdef.tmp").write_text("killed between two renames")
    save(tmp_path / "a")
    left = sorted(texts(tmp_path))
    assert left[:2] == ["a", "ab"] and left[2].startswith("b.") and len(left) == 3
    save(tmp_path / "b")
    assert texts(tmp_path) == {"a": "new", "ab": "another", "b": "new"}


def test_ctrl_c_removes_what_was_begun(writer, tmp_path):
    writer.send_signal(signal.SIGINT)
    assert writer.wait(30) != 0 and texts(tmp_path) == {}


def test_threads_that_write_one_file_do_not_disturb_each_other_and_temporary_names_differ(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        names = list(pool.map(lambda number: save(tmp_path / "a", text=f"{number % 3}" * 1000), range(150)))
    assert len(set(names)) == 150 and texts(tmp_path)["a"] in {f"{number}" * 1000 for number in range(3)}
    assert len(texts(tmp_path)) == 1


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_permissions_of_the_mask_and_keeps_those_given_to_it(mask, tmp_path):
    path, before = tmp_path / "a", os.umask(mask)
    try:
        save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    with replacing(str(path)) as (name,):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o640  # nobody else can read it meanwhile
        Path(name).write_text("newer")
    assert path.read_text() == "newer" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "a")
    save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and texts(tmp_path / "folder") == {"a": "new"}
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", ["café", "层", "a b", "a*[0-9]?", "\x7f", "new\nline", "("])
def test_names_of_any_characters(name, tmp_path):
    (tmp_path / f"{name}.0123456789abcdef.tmp").write_text("left")
    save(tmp_path / name)
    assert texts(tmp_path) == {name: "new"}


def test_another_writer_leaves_a_save_within_another_alone(tmp_path):
    path = tmp_path / "states"
    with replacing(str(path)) as (outer,):
        save(outer)
        save(path, text="other")  # which removes what is left over
    assert path.read_text() == "new"
