"""The report on a conversion."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mxmp.graph import Entry
from mxmp.passes import Facts, InsertCasts, make_plan
from mxmp.policy import Policy
from mxmp.report import Row, legend, make_report, merge
from mxmp.report.saved import report_from_dict
from mxmp.symbol import convert_graph
from tests.graph.text import from_text
from tests.passes.graphs import with_facts
from tests.symbol.networks import load

TEXT = """
    x = null()
    w = null()
    d = dot(x, w)
    s = softmax(d)
    c = Custom(s)
    return c
"""
SIZES = {"x": (2, 3), "w": (3, 4), "d": (2, 4), "s": (2, 4), "c": (2, 4)}


def report_of(text=TEXT, sizes=SIZES, policy="O1"):
    graph, facts = with_facts(text, shapes=sizes, params="w")
    policy = Policy.parse(policy)
    plan = make_plan(graph, policy, facts)
    return make_report(policy, graph, facts, plan, InsertCasts(policy, facts, plan=plan)(graph).graph)


def test_rows_name_precision_and_reason():
    rows = {row.name: (row.precision, row.reason) for row in report_of().rows}
    assert rows == {
        "d": ("float16", "allow"),
        "s": ("float32", "deny: exponentials and their sum"),
        "c": ("as it was", "no rule for this operator"),
    }


def test_rows_name_their_casts():
    assert {row.name: row.casts for row in report_of().rows} == {
        "d": ("x to float16", "w to float16"),
        "s": ("d_output to float32",),
        "c": (),
    }


def test_rows_name_the_operators_that_they_read():
    text = "x = null()\nw = null()\nd = dot(x, w)\ne = exp(d)\nf = broadcast_add(e, d)\ng = elemwise_mul(f, f)\nreturn g"
    assert {row.name: row.inputs for row in report_of(text, sizes={}).rows} == {
        "d": (),
        "e": ("d",),
        "f": ("e", "d"),
        "g": ("f",),
    }


def test_rows_name_the_casts_of_outputs():
    """A cast at an output takes the name of the node that it reads; the row has the tensor's own."""
    found = report_of("x = null()\nw = null()\nd = dot(x, w)\nreturn d", sizes={})
    assert [(row.name, row.casts) for row in found.rows] == [
        ("d", ("x to float16", "w to float16", "d_output to float32"))
    ]


def test_twins_have_their_own_casts():
    """MXNet lets nodes share a name."""
    text = "x = null()\nw = null()\nv = null()\nd = dot(x, w)\ne = dot(d, v)\ns = softmax(e)\nreturn s"
    single = from_text(text)
    twins = replace(single, nodes=tuple(n._replace(name="d") if n.name == "e" else n for n in single.nodes))
    policy, facts = Policy.parse("O1"), Facts.assume_float32(twins)
    plan = make_plan(twins, policy, facts)
    found = make_report(policy, twins, facts, plan, InsertCasts(policy, facts, plan=plan)(twins).graph)
    assert [(row.name, row.casts) for row in found.rows] == [
        ("d", ("x to float16", "w to float16")),
        ("d", ("v to float16",)),
        ("s", ("d_output to float32",)),
    ]


def test_names_that_look_like_markup_are_printed():
    text = str(replace(report_of(), rows=(Row("[bold]d[/bold]", "dot", "float16", ":smile:", ("[x]",)),)))
    assert "[bold]d[/bold]" in text and ":smile:" in text and "[x]" in text


def test_casts_and_bytes_by_hand():
    found = report_of()
    assert (found.casts, found.activation_casts) == (3, 2)
    assert found.cast_bytes == 6 * (2 * 3 + 3 * 4 + 2 * 4)
    assert found.activation_bytes == (3 * 8 * 4, 2 * 8 * 4 + 8 * 2)


def test_stored_parameters_are_not_cast():
    found = report_of(policy="O2")
    assert (found.casts, found.activation_casts) == (2, 2)


def test_unknown_shapes_leave_bytes_unknown():
    found = report_of(sizes={})
    assert found.cast_bytes is None and found.activation_bytes is None
    assert "bytes unknown" in found.summary[1]


def test_text_holds_every_operator_and_the_totals():
    text = str(report_of())
    assert all(word in text for word in ("softmax", "Custom", "casts: 3 (2 of activations), 156 bytes"))
    assert "no rule, left as they were: Custom" in text


def test_casts_that_the_network_had_itself_are_not_counted():
    own = "x = null()\nw = null()\nh = Cast(x) {dtype: float16}\nd = dot(x, w)\nreturn d, h"
    found = report_of(own, {"x": (2, 3), "w": (3, 4), "h": (2, 3), "d": (2, 4)})
    assert (found.casts, found.cast_bytes) == (2, 6 * (3 * 4 + 2 * 4))  # w, and d at the output; x has one


def test_bytes_of_parameters_show_where_they_are_known():
    assert "parameters: 24 bytes, 48 before" in replace(report_of(), param_bytes=(48, 24)).summary
    assert not any("parameters" in line for line in report_of().summary)


def test_json_holds_the_same():
    data = json.loads(report_of().to_json())
    assert data["casts"] == 3 and [row["name"] for row in data["rows"]] == ["d", "s", "c"]


def test_json_is_read_back():
    found = replace(report_of(), param_bytes=(48, 24), widely_read=(("x", 40),))
    assert report_from_dict(json.loads(found.to_json())) == found == report_from_dict(found.to_dict())
    old = {key: value for key, value in found.to_dict().items() if key not in ("widely_read", "param_bytes")}
    old["rows"] = [{key: value for key, value in row.items() if key != "inputs"} for row in old["rows"]]
    assert [row.inputs for row in report_from_dict(old).rows] == [(), (), ()]


def test_html_holds_every_operator_the_warnings_and_the_notes(tmp_path):
    found = replace(report_of(), notes=("slow <here>",), widely_read=(("x", 40),))
    text = found.to_html(str(tmp_path / "report.html"), title="Mine")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    assert "<title>Mine</title>" in text and "slow &lt;here&gt;" in text and "cast once for 40 readers" in text
    for each in ("d (dot): float16, allow; casts x to float16, w to float16", "No rule for Custom", ">softmax</td>"):
        assert each in text


def test_a_notebook_shows_totals_and_the_table_without_a_page_around():
    text = report_of()._repr_html_()
    assert text.startswith('<div class="mxmp') and "<html" not in text and "<h1" not in text
    assert ">softmax</td>" in text and 'class="network"' not in text


def test_merge_adds_up():
    one = report_of()
    assert merge([one]) is one
    both = merge([one, one])
    assert (both.casts, both.cast_bytes, len(both.rows)) == (6, 2 * one.cast_bytes, 6)
    assert merge([one, report_of(sizes={})]).cast_bytes is None


def test_entry_facts_of_partly_unknown_shapes():
    facts = Facts({}, {(0, 0): (0, 3), (1, 0): (2, 3)})
    assert facts.size(Entry(0)) is None and facts.size(Entry(1)) == 6 and facts.size(Entry(2)) is None


@pytest.mark.parametrize("readers, warned", [(32, False), (33, True)])
def test_tensors_with_many_readers_are_named(readers, warned):
    calls = [f"d{i} = dot(x, w{i})" for i in range(readers)]
    weights = [f"w{i} = null()" for i in range(readers)]
    text = "\n".join(["x = null()", *weights, *calls, "return " + ", ".join(f"d{i}" for i in range(readers))])
    found = report_of(text, sizes={})
    assert found.widely_read == ((("x", readers),) if warned else ())
    assert ("'x' is cast once for 33 readers; their gradients add up in low precision" in found.summary) == warned


def test_the_table_explains_the_words_that_it_has_and_no_others():
    text = str(report_of())
    assert "\nallow: gains from low precision" in text and "\ndeny: needs float32" in text
    assert "\nno rule: " in text and "clear:" not in text and "infer" not in text and "cheapest" not in text


@pytest.mark.parametrize("policy", ["O1", "O3", "mixed_bfloat16,last_layer_fp32=True", "O2,op:relu=float32"])
def test_every_reason_of_a_network_has_a_word_of_the_legend(policy):
    """But for one that says it all: data of another dtype."""
    symbol, shapes = load("symbols/ssd")
    for row in convert_graph(symbol, Policy.parse(policy), shapes).report.rows:
        assert legend([row.reason]) or row.reason.startswith("its data"), row.reason


LEGEND = {
    "infer: cheapest": ["infer", "cheapest"],
    "infer behind node 's' (softmax)": ["infer behind X"],
    "clear: either is safe": ["clear"],
    "carries exact values": ["carries exact values"],
    "deny: exp, as softmax2": ["deny", "as X"],
    "name override 'fc'": ["override, region"],
    "precision 'float32' (region or set_policy)": ["override, region"],
    "as converted; its rule says float32 (deny: exp)": ["as converted"],
    "MXNet has no sound bfloat16 kernel for it": ["no sound kernel"],
    "its values are beyond float16's range": [],
}


@pytest.mark.parametrize("reason, words", LEGEND.items(), ids=LEGEND.keys())
def test_the_legend_of_each_word(reason, words):
    assert [word for word, _ in legend([reason])] == words


def test_a_narrow_table_has_the_same_in_fewer_columns():
    wide, narrow = report_of().table(), report_of().table(narrow=True)
    assert (len(wide.columns), len(narrow.columns)) == (5, 3)
    assert [str(cell) for cell in narrow.columns[0].cells] == ["d\n  dot", "s\n  softmax", "c\n  Custom"]
    assert [str(cell) for cell in narrow.columns[1].cells][0] == "float16\n  allow"
