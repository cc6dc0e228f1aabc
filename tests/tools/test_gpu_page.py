"""The tables of docs/gpu.md are those of the record and of the estimate."""

from __future__ import annotations

import json

import pytest

from tools import gpu_page

PAGE = gpu_page.PAGE.read_text(encoding="utf-8")
AGAIN = "docs/gpu.md differs: python -m tools.gpu_page writes its tables anew"


def test_the_page_says_what_steps_launch():
    """As the ratchet has it, which tests/gpu_record hold to the record."""
    ratchet = json.loads(gpu_page.RATCHET.read_text(encoding="utf-8"))
    assert gpu_page.replaced(PAGE, gpu_page.launches(ratchet)) == PAGE, AGAIN


def test_the_page_says_what_the_estimate_gives():
    assert gpu_page.replaced(PAGE, gpu_page.speeds()) == PAGE, AGAIN


def test_the_page_says_which_cards_the_estimate_is_for():
    assert gpu_page.replaced(PAGE, gpu_page.cards()) == PAGE, AGAIN


def test_a_table_is_written_in_its_place():
    text = "before\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| c |\n|---|\n| 3 |\n"
    found = gpu_page.replaced(text, [["a", "b"], ["4", "5"], ["6", "7"]])
    assert found == "before\n\n| a | b |\n|---|---|\n| 4 | 5 |\n| 6 | 7 |\n\n| c |\n|---|\n| 3 |\n"
    assert gpu_page.replaced(found, [["c"], ["8"]]).endswith("| 6 | 7 |\n\n| c |\n|---|\n| 8 |\n")


@pytest.mark.parametrize("text", ["nothing", "\n| a |\n|---|\n| 1 |\n\n| a |\n|---|\n"], ids=["none", "two"])
def test_a_page_without_its_table_is_refused(text):
    with pytest.raises(ValueError, match=r"one table with the header '\| a \|'"):
        gpu_page.replaced(text, [["a"], ["2"]])


def test_launches_waits_and_casts_stand_side_by_side():
    columns = ["launches", "other", "synchronizations", "casts"]
    names = [f"{step}-{mode}-sgd" for step in gpu_page.NETWORKS.values() for mode in gpu_page.MODES.values()]
    table = gpu_page.launches({"columns": columns, "rows": {name: [1200 + i, 0, i, 2] for i, name in enumerate(names)}})
    assert table[0] == ["network", "float32", "contrib.amp", "O1", "O2"]
    assert table[1] == ["ResNet-50", "1,200 / 0 / 2", "1,201 / 1 / 2", "1,202 / 2 / 2", "1,203 / 3 / 2"]
    assert len(table) == 1 + len(gpu_page.NETWORKS)
