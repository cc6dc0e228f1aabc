"""Charts read back from their SVG: every value is where it belongs."""

import math
import re
from xml.etree import ElementTree

import pytest

from mxmp.display import Histogram, Line, Lines
from mxmp.display.charts import RANGES
from mxmp.dtypes import limits
from tests.display.drawn import drawn

SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)
NAN, INF = float("nan"), float("inf")


def lines(*args, **options):
    return drawn(Lines(*args, **options))


def histogram(*args, **options):
    return drawn(Histogram(*args, **options))


def svg(chart):
    return ElementTree.fromstring(SVG.search(str(chart)).group())


def path_of(chart, number=1):
    """Return a line's strokes and dots, each a list of points in the plane, from (0, 0) at its lower left to (1, 1)."""
    paths = "".join(each.get("d") for each in svg(chart).iter("path") if f"k-s{number}" in each.get("class").split())
    places = [re.findall(r"([\d.-]+) ([\d.-]+)", stroke) for stroke in paths.split("M")[1:]]
    return sorted([(float(x) / 1000, 1 - float(y) / 1000) for x, y in stroke] for stroke in places)


def labels(chart, side):
    part = re.search(rf'<div class="{side}" aria-hidden="true">(.*?)</div>', str(chart), re.DOTALL).group(1)
    found = re.findall(r"(?:bottom|left):([\d.-]+)%\">(.*?)</span>", part)
    return {re.sub("<.*?>", "^", text).rstrip("^"): float(at) / 100 for at, text in found}


def test_a_line_goes_through_its_values_by_the_labels_of_the_axes():
    x, values = [0, 10, 20, 40], [2.0, 8.0, 4.0, 6.0]
    chart = lines("c", x, [Line("v", values)])
    along, up = labels(chart, "along"), labels(chart, "up")
    (stroke,) = path_of(chart)
    for at, value, (a, b) in zip(x, values, stroke):
        assert a == pytest.approx(along["0"] + (along["40"] - along["0"]) * at / 40, abs=1e-3)
        assert b == pytest.approx(up["2"] + (up["8"] - up["2"]) * (value - 2) / 6, abs=1e-3)


def test_values_not_known_are_passed_over_and_those_not_finite_are_gaps():
    values = [1.0, None, 2.0, NAN, 3.0, INF, 4.0, 5.0, -INF]
    strokes = path_of(lines("c", list(range(9)), [Line("v", values)]))
    assert [[round(8 * x) for x, _ in stroke] for stroke in strokes] == [[0, 2], [4], [6, 7]]


def test_what_is_not_finite_is_marked_at_the_edge_and_counted():
    series = [Line("v", [1.0, INF, NAN, None, -INF]), Line("w", [INF, 1.0, 1.0, 1.0, 2.0])]
    text = str(lines("c", [0, 1, 2, 3, 4], series))
    found = re.findall(r'<i class="beyond (\w+) k-(s\d)" style="left:([\d.]+)%', text)
    assert found == [("upper", "s1", "25.0"), ("upper", "s1", "50.0"), ("lower", "s1", "100.0"), ("upper", "s2", "0.0")]
    assert "not finite (4)" in text and "not finite" not in str(lines("c", [0, 1], [Line("v", [1.0, None])]))


def test_a_chart_with_nothing_to_draw_says_so():
    text = str(lines("c", [0, 1, 2, 3], [Line("v", [NAN, NAN, INF, None])]))
    assert "Nothing to draw: no value is finite" in text and labels(text, "up") == {} != labels(text, "along")
    assert "Nothing to draw" not in str(lines("c", [0, 1], [Line("v", [NAN, 1.0])]))


@pytest.mark.parametrize("dtype, most", [("float16", 4), ("bfloat16", 1), ("float16", 1)])
def test_zeros_stand_in_the_band_of_what_becomes_0(dtype, most):
    chart = histogram("h", {0: 4 * most, 1: 2 * most}, dtype, zeros=6)
    tree = svg(chart)
    first, second, third = (each for each in tree.iter("rect") if each.get("class") == "column")
    band = next(each for each in tree.iter("rect") if "k-zero" in each.get("class"))
    assert float(first.get("x")) == 0 and float(first.get("width")) <= float(band.get("width")) < float(second.get("x"))
    whole = 6 * most + 6
    assert first.find("title").text == f"0: 6, {100 * 6 / whole:.3g} %"
    assert second.find("title").text == f"2⁰ to 2¹: {4 * most}, {100 * 4 * most / whole:.3g} %"
    assert float(first.get("height")) / float(second.get("height")) == pytest.approx(6 / (4 * most), rel=0.01)
    assert f"becomes 0 in {dtype} ({100 * 6 / whole:.3g} % are 0)" in str(chart)
    assert list(labels(chart, "along"))[0] == "0"


@pytest.mark.parametrize("x", [[7], [1000], [1, 2], [0, 3], [100, 101, 102]], ids=str)
def test_steps_are_labelled_by_whole_numbers(x):
    along = [text.replace(",", "") for text in labels(lines("c", x, [Line("v", [1.0] * len(x))]), "along")]
    assert along and all(text.isdigit() for text in along) and set(map(int, along)) <= set(range(min(x), max(x) + 1))


def test_a_long_line_keeps_its_extremes():
    """A peak and a pit of one step each among 20,000."""
    values = [math.sin(i / 900) for i in range(20_000)]
    values[7777], values[12_345] = 9.0, -9.0
    chart = lines("c", list(range(20_000)), [Line("v", values)])
    (stroke,) = path_of(chart)
    up = labels(chart, "up")
    unit = (up["5"] - up["0"]) / 5
    assert max(y for _, y in stroke) == pytest.approx(up["0"] + 9 * unit, abs=1e-3)
    assert min(y for _, y in stroke) == pytest.approx(up["0"] - 9 * unit, abs=1e-3)
    assert len(stroke) < 2000 and [x for x, _ in stroke] == sorted(x for x, _ in stroke)


def test_marks_stand_at_their_steps_and_are_short_where_they_are_many():
    few = [each.get("d") for each in svg(lines("c", [0, 100], [Line("v", [1, 2])], marks=[25, 75], mark_name="skip")).iter("path") if each.get("class") == "mark"]
    assert few == ["M250 0V1000", "M750 0V1000"]
    many = svg(lines("c", [0, 1000], [Line("v", [1, 2])], marks=list(range(500)), mark_name="skip"))
    assert {each.get("d").partition(" ")[2] for each in many.iter("path") if each.get("class") == "mark"} == {"930V1000"}


def test_a_chart_says_what_it_shows():
    text = str(lines("Loss", [0, 1, 2], [Line("loss", [4.0, 1.0, NAN])], marks=[2], mark_name="skipped step"))
    assert 'aria-label="Loss: loss from 1 to 4, last 1; skipped step (1); not finite (1)"' in text and "</i>skipped step (1)" in text


@pytest.mark.parametrize("dtype", RANGES)
def test_ranges_are_those_of_the_dtype(dtype):
    """To even, half of the smallest number becomes 0."""
    of = limits(dtype)
    assert RANGES[dtype] == (math.log2(of.smallest_subnormal) - 1, math.log2(of.tiny), math.ceil(math.log2(of.max)))


@pytest.mark.parametrize("values, log", [([1, 5000], True), ([1, 900], False), ([0, 5000], False), ([-1, 5000], False)])
def test_auto_takes_logarithms_of_positive_values_that_span_much(values, log):
    assert any("^" in text for text in labels(lines("c", [0, 1], [Line("v", values)], scale="auto"), "up")) == log
