"""What is shown of a report, a ledger, a comparison and steps, from their dicts."""

from __future__ import annotations

import re

import pytest

from mxmp.html import compare_sections, fragment, ledger_sections, page, report_sections, run_sections, steps_sections
from tests.html.runs import compare, ledger, report, row, steps


def text_of(sections):
    return page("t", sections)


def cards_of(sections):
    """Return figures and remarks by what they are."""
    found = re.findall(r"<dt>([^<]*)</dt><dd><b>(.*?)</b>(?: <span>(.*?)</span>)?</dd>", text_of(sections))
    return {what: (figure, remark) for what, figure, remark in found}


def test_the_figures_of_a_report():
    found = cards_of(report_sections(report()))
    assert found == {
        "operators as it was": ("1", "of 39"),
        "operators in float16": ("37", "of 39"),
        "operators in float32": ("1", "of 39"),
        "casts": ("3", "1 of activations, 123 kB moved"),
        "activations": ("4 MB", "8 MB before"),
    }


def test_sizes_that_are_not_known_are_left_out():
    found = cards_of(report_sections(report(cast_bytes=None, activation_bytes=None)))
    assert found["casts"] == ("3", "1 of activations") and "activations" not in found


def test_operators_that_are_gone_are_in_the_table_and_not_in_the_picture():
    rows = [row("conv"), row("bn", "BatchNorm", "folded", reason="into the weight and bias of 'conv'")]
    text = text_of(report_sections(report(rows=rows)))
    assert "into the weight and bias" in text and "bn (BatchNorm)" not in text
    assert cards_of(report_sections(report(rows=rows)))["operators in float16"] == ("1", "of 1")


def test_a_ledger_adds_its_layers_up():
    text = text_of(ledger_sections(ledger()))
    counts = {e: sum(10 + i for i in range(8) if -28 + i <= e < 2 + i) for e in range(-28, 9)}
    share = f"{100 * counts[-10] / sum(counts.values()):.3g} %"
    assert f"2⁻¹⁰ to 2⁻⁹: {counts[-10]}, {share}" in text
    assert "in 10 sampled steps, one in 10" in text and "<b>Advice</b> Keep the scale." in text


def test_a_ledger_of_an_unknown_dtype_is_shown():
    assert "against float16" in text_of(ledger_sections(ledger(dtype="float8")))


def test_errors_follow_the_network_where_it_is_known():
    rows = compare()["rows"]
    for number, each in enumerate(rows):
        each["carried"] = 10.0 ** (number - 20)
    order = [each["name"] for each in rows]
    shuffled = compare(rows=list(reversed(rows)))
    heights = {}
    for key, names in (("known", order), ("unknown", ())):
        path = re.search(r'<path class="line s1" d="(.*?)"', text_of(compare_sections(shuffled, names))).group(1)
        heights[key] = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
    assert heights["known"] == sorted(heights["known"], reverse=True)
    assert heights["unknown"] == sorted(heights["unknown"])


def test_errors_are_said_to_be_the_worst_of_all_batches():
    assert "relative to float32, the worst of all batches" in text_of(compare_sections(compare()))


def test_gradients_that_were_not_compared_have_no_chart():
    rows = [dict(each, gradient_own=None, gradient_carried=None) for each in compare()["rows"]]
    text = text_of(compare_sections(compare(rows=rows)))
    assert "Errors of values" in text and "Errors of gradients" not in text


def test_steps_show_what_was_logged_and_no_more():
    text = text_of(steps_sections([{"step": 5, "loss": 1.5}, {"step": 6, "loss": 1.25}]))
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["Loss"] and "Skipped steps" not in text
    assert cards_of(steps_sections(steps()))["steps"] == ("300", "3 skipped")
    assert steps_sections([]) == []


def test_the_time_of_a_step_is_the_median_between_two():
    """The log's seconds are counted from its beginning; a resumed run's first step may lie before the last one."""
    seconds = [10.0, 10.5, 11.0, 11.5, None, 99.0, 3.0, 3.5, 9.0]
    found = cards_of(steps_sections([{"step": i, "seconds": each} for i, each in enumerate(seconds)]))
    assert found["seconds per step"] == ("0.5", "median")
    assert "seconds per step" not in cards_of(steps_sections([{"step": 1, "seconds": 40.0}]))


@pytest.mark.parametrize(
    "values",
    [[1e17], [1e17, 1e17], [-1.7e308, 1.7e308], [0.0, 5e-323], [5e-324], [float("inf")], [10**400], [1.7e308, -1.0]],
)
def test_extreme_values_are_a_page(values):
    names = ("step", "loss", "scale", "zero_share", "seconds")
    found = [{name: each for name in names if name != "step" or abs(each) < 1e308} for each in values]
    text = text_of(steps_sections(found))
    assert not re.search(r'd="[^"]*(nan|inf)', text)
    assert "<h2>Steps" in text


def test_sizes_beyond_all_floats_are_a_page():
    assert cards_of(report_sections(report(activation_bytes=(10**400, 1))))["activations"] == ("1 bytes", "∞ before")


def test_skipped_steps_are_listed_with_why():
    text = text_of(steps_sections(steps()))
    assert re.findall(r'data-key="(\d+)\.0">\d+</th>', text) == ["40", "41", "200"]
    assert "window.broken" in text


@pytest.mark.parametrize("part", ["report", "steps", "ledger", "compare"])
def test_a_run_may_have_one_part(part):
    value = {"report": report, "steps": steps, "ledger": ledger, "compare": compare}[part]()
    assert [each.title for each in run_sections(**{part: value})][0] == "Summary"


def test_warnings_and_advice_come_first():
    text = text_of(run_sections(report(), ledger=ledger(), warnings=["Look here."]))
    assert text.index("Look here.") < text.index("No rule for Custom") < text.index("Keep the scale.") < text.index("<h2>Network")
    assert text.count("Keep the scale.") == 1


def test_everything_fits_into_a_fragment():
    text = fragment("t", run_sections(report(), steps(), ledger(), compare()))
    assert text.count("<script>") == 1 and "<h2" not in text
