"""Files that are written whole or not at all."""

from __future__ import annotations

import pytest

from mxmp.files import replacing


def test_all_files_take_their_places_at_the_end(tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    with replacing(*map(str, paths)) as names:
        for name in names:
            with open(name, "w") as file:
                file.write("new")
        assert not (tmp_path / "a").exists()
    assert [path.read_text() for path in paths] == ["new", "new"]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_leaves_what_was_there_and_nothing_else(tmp_path):
    old = tmp_path / "a"
    old.write_text("old")
    with pytest.raises(RuntimeError, match="stop"), replacing(str(old), str(tmp_path / "b")) as (first, _):
        with open(first, "w") as file:
            file.write("half")
        raise RuntimeError("stop")
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]


def test_a_file_that_was_not_written_replaces_nothing(tmp_path):
    old = tmp_path / "a"
    old.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(str(old), str(tmp_path / "b")) as (first, _):
        with open(first, "w") as file:
            file.write("new")
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]
