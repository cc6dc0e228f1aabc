"""Tables as text: what is shown, and what it is sorted by."""

from __future__ import annotations

import re

import pytest

from mxmp.html import Column, table
from mxmp.html.numbers import figure, share, size


def cells(value, kind):
    """Return the text of a cell, what it is sorted by, and the width of its bar."""
    text = str(table([Column("a"), Column("b", kind)], [("row", value), ("other", 2.0)], "caption"))
    cell = re.search(r"<td.*?</td>", text).group()
    key, width = re.search(r'data-key="(.*?)"', cell), re.search(r"--part:([\d.]+)", cell)
    return re.sub("<.*?>", "", cell), key and key.group(1), width and float(width.group(1))


@pytest.mark.parametrize(
    "value, kind, expected",
    [
        ("x", "text", ("x", None, None)),
        (None, "text", ("", None, None)),
        (1.25, "number", ("1.25", "1.25", None)),
        (None, "number", ("–", "", None)),
        ("inf", "number", ("∞", "inf", None)),
        (float("-inf"), "number", ("−∞", "-inf", None)),
        ("nan", "number", ("NaN", "", None)),
        (0.5, "share", ("50 %", "0.5", None)),
        (2_500_000, "bytes", ("2.5 MB", "2500000.0", None)),
        (1.0, "bar", ("100 %", "1.0", 0.5)),
        (None, "bar", ("–", "", 0.0)),
        ("nan", "bar", ("NaN", "", 0.0)),
        ("inf", "bar", ("∞", "inf", 1.0)),
        ("float16", "precision", ("float16", None, None)),
    ],
)
def test_a_cell(value, kind, expected):
    assert cells(value, kind) == expected


def test_a_name_may_wrap_behind_its_underscores():
    assert "stage1_<wbr>conv0_<wbr>weight" in str(table([Column("a")], [("stage1_conv0_weight",)], "c"))


def test_a_table_without_rows_is_one():
    assert "<tbody>" in str(table([Column("a"), Column("b", "bar"), Column("c", "spark")], [], "c"))


@pytest.mark.parametrize(
    "value, text",
    [(0, "0"), (1234, "1,234"), (1234.4, "1,234"), (0.1 + 0.2, "0.3"), (1e-7, "1e-07"), (1e7, "1e+07"), ("", "–"), (True, "–"), ("x", "–")],
)
def test_figures(value, text):
    assert figure(value) == text


def test_shares_and_sizes():
    assert [share(each) for each in (None, 1e-5, 5e-4, 0.123456)] == ["–", "< 0.01 %", "0.05 %", "12.3 %"]
    assert [size(each) for each in (None, 0, 999, 1000, 1.5e9, 3e15)] == ["–", "0 bytes", "999 bytes", "1 kB", "1.5 GB", "3e+03 TB"]
