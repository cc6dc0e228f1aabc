"""The tables of the README and the pages: those that stand there are those of the stored results."""

import copy
import json

import pytest

from benchmarks import tables


def column(front, name, ratio, base="base", seconds=(0.1, 0.2, 0.3)):
    return {"front": front, "name": name, "ratio": ratio, "base": base, "seconds": list(seconds)}


RECORD = {
    "machine": {
        "processor": "Xeon", "kind": "AMX", "cores": "2", "threads": "2", "revision": tables.REVISION,
    },
    "options": {"policy": "mixed_bfloat16"},
    "cases": [
        {
            "group": "inference",
            "case": "resnet",
            "date": "2026-01-01",
            "commit": "abc",
            "columns": [
                column("Gluon", "base", 1.0), column("Gluon", "mxmp, frozen", 0.25), column("Gluon", "contrib.amp", 0.5),
                column("Gluon", "OpenVINO", None, seconds=()),
            ],
        },
        {"group": "training", "case": "lstm", "date": "2026-01-02", "commit": "def", "columns": [column("", "base", 1.0), column("", "mixed_bfloat16", 0.8)]},
    ],
}  # fmt: skip
LACKING = "Not measured with this version yet: AVX512-BF16 of AMD."


@pytest.mark.parametrize("file", sorted({place for place, _ in tables.TABLES.values()}))
def test_what_stands_in_a_file_is_what_the_results_give(file):
    text = (tables.ROOT / file).read_text("utf-8")
    assert text == tables.updated(text, file, tables.read_records()), "run `python -m benchmarks.tables`"


def test_a_speed_is_that_of_the_base_over_that_of_the_column():
    lines = tables.speeds([RECORD])
    assert "| resnet | 4.00 | 2.00 |  |  |" in lines and "| lstm |  |  | 1.25 |  |" in lines
    assert lines[0] == "**AMX**: Xeon, 2 cores, 2 threads, 2026-01-01 at abc, 2026-01-02 at def" and lines[-1] == LACKING


def test_columns_that_were_not_measured_are_left_out():
    assert tables.inference([RECORD])[2:5] == [
        "| network | float32, ms | Gluon, contrib.amp | Gluon, mxmp, frozen |", "|---|---|---|---|", "| resnet | 200 | 2.00 | 4.00 |"]  # fmt: skip
    assert tables.training([RECORD])[4] == "| lstm | 200 | 1.25 |"


def test_two_files_are_compared_column_by_column_the_slowest_first(tmp_path, capsys):
    later = copy.deepcopy(RECORD)
    later["cases"][0]["columns"][1]["ratio"] = 0.5  # twice as long as before
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, record in zip(files, (RECORD, later)):
        file.write_text(json.dumps(record))
    tables.main(list(map(str, files)))
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| inference/resnet | Gluon, mxmp, frozen | 4.00 | 2.00 | 0.50 |",
        "| inference/resnet | Gluon, contrib.amp | 2.00 | 2.00 | 1.00 |",
        "| training/lstm | mixed_bfloat16 | 1.25 | 1.25 | 1.00 |",
    ]


def test_results_of_another_revision_are_absent_and_a_line_says_so(tmp_path):
    for number, revision in enumerate((tables.REVISION, tables.REVISION - 1, None)):
        machine = {**RECORD["machine"], "revision": revision}
        (tmp_path / f"{number}.json").write_text(json.dumps({**RECORD, "machine": machine}))
    assert tables.read_records(tmp_path) == [RECORD]
    assert tables.speeds([])[0] == "Not measured with this version yet: AVX512-BF16 of AMD, AMX."


def test_each_kind_of_processor_has_a_row():
    rows = tables.kinds([])[2:]
    assert [row.split(" | ")[0][2:] for row in rows] == [kind.name for kind in tables.KINDS]
    assert [("`mixed_bfloat16`" in row) for row in rows] == [kind.gains for kind in tables.KINDS]


def test_a_file_without_a_place_for_a_table_is_named():
    with pytest.raises(ValueError, match="^README.md has 0 places for the table 'speed'; expected 1.$"):
        tables.updated("", "README.md", [])
