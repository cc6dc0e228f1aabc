"""The report on a conversion."""

from dataclasses import replace

import pytest

from mxmp import Policy
from mxmp.passes import Facts, InsertCasts, make_plan
from mxmp.report import Reason, Report, Row, legend, make_report, merge, operator_table
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
SOURCE = "x = null()\nw = null()\n"
SIZES = {"x": (2, 3), "w": (3, 4), "d": (2, 4), "s": (2, 4), "c": (2, 4)}


def report_on(graph, facts, policy):
    plan = make_plan(graph, policy, facts)
    return make_report(policy, graph, facts, plan, InsertCasts(policy, facts, plan=plan)(graph).graph)


def report_of(text=TEXT, sizes=SIZES, policy="O1"):
    return report_on(*with_facts(text, shapes=sizes, params="w"), Policy.parse(policy))


def casts_of(found):
    return [(row.name, tuple(map(str, row.casts))) for row in found.rows]


def test_rows_name_precision_reason_casts_and_the_operators_that_they_read():
    found = report_of()
    assert [(row.name, row.precision, row.reason, row.inputs) for row in found.rows] == [
        ("d", "float16", "allow", ()),
        ("s", "float32", "deny: exponentials and their sum", ("d",)),
        ("c", "as it was", "no rule for this operator", ("s",)),
    ]
    assert casts_of(found) == [("d", ("x to float16", "w to float16")), ("s", ("d_output to float32",)), ("c", ())]
    assert [cast.source for row in found.rows for cast in row.casts] == ["", "", "d"]
    text = f"{SOURCE}d = dot(x, w)\ne = exp(d)\nf = broadcast_add(e, d)\ng = elemwise_mul(f, f)\nreturn g"
    assert [row.inputs for row in report_of(text, sizes={}).rows] == [(), ("d",), ("e", "d"), ("f",)]


def test_casts_of_outputs_are_named_and_those_that_the_network_had_itself_not_counted():
    """A cast at an output takes the name of the node that it reads; the row has the tensor's own."""
    found = report_of(f"{SOURCE}d = dot(x, w)\nreturn d", sizes={})
    assert casts_of(found) == [("d", ("x to float16", "w to float16", "d_output to float32"))]
    own = "x = null()\nw = null()\nh = Cast(x) {dtype: float16}\nd = dot(x, w)\nreturn d, h"
    found = report_of(own, {"x": (2, 3), "w": (3, 4), "h": (2, 3), "d": (2, 4)})
    assert (found.casts, found.cast_bytes) == (3, 6 * (2 * 3 + 3 * 4 + 2 * 4))  # x, w, and d at the output


def test_twins_have_their_own_casts():
    """MXNet lets nodes share a name."""
    single = from_text("x = null()\nw = null()\nv = null()\nd = dot(x, w)\ne = dot(d, v)\ns = softmax(e)\nreturn s")
    twins = replace(single, nodes=tuple(n._replace(name="d") if n.name == "e" else n for n in single.nodes))
    rows = casts_of(report_on(twins, Facts.assume_float32(twins), Policy.parse("O1")))
    assert rows == [("d", ("x to float16", "w to float16")), ("d", ("v to float16",)), ("s", ("d_output to float32",))]


def test_casts_and_bytes_by_hand():
    found, unknown, stored = report_of(), report_of(sizes={}), report_of(policy="O2")
    assert (found.casts, found.activation_casts, found.cast_bytes) == (3, 2, 6 * (2 * 3 + 3 * 4 + 2 * 4))
    assert found.activation_bytes == (3 * 8 * 4, 2 * 8 * 4 + 8 * 2) and not any(line.startswith("parameters") for line in found.summary)
    assert (stored.casts, stored.activation_casts) == (2, 2)  # parameters are not cast
    assert unknown.cast_bytes is None and unknown.activation_bytes is None and "bytes unknown" in unknown.summary[1]
    assert "parameters: 24 bytes, 48 before" in replace(found, param_bytes=(48, 24)).summary
    assert not any(text in unknown.to_html() for text in ("<dt>activations", "<dt>parameters", "moved"))


def test_the_text_holds_every_operator_the_totals_and_the_words_that_it_has_and_no_others():
    text = str(replace(report_of(), rows=(*report_of().rows, Row("[bold]d[/bold]", "dot", "float16", ":smile:"))))
    words = ("softmax", "Custom", "3 (2 of activations, 156 bytes moved)", "Warning: No rule for Custom: left as they were.")
    assert all(word in text for word in (*words, "\nallow: gains from low precision", "\ndeny: needs float32", "\nno rule: "))
    assert dict(report_of().totals)["casts"] == "3 per forward pass: 2 of inputs and activations, 1 of parameters; 156 bytes moved"
    assert not any(word in text for word in ("clear:", "infer", "cheapest"))
    assert "[bold]d[/bold]" in text and ":smile:" in text  # as they are, though they look like markup


def test_json_is_read_back_without_what_holds_on_this_machine_alone():
    found = replace(report_of(), param_bytes=(48, 24), widely_read=(("x", 40),), notes=("slow here",))
    again = Report.from_json(found.to_json())
    assert again == found and again.notes == () and again.rows[0].kinds == (Reason.ALLOW,)


def test_html_holds_every_operator_the_warnings_the_notes_and_the_figures():
    gone = Row("bn", "BatchNorm", "folded", "into the weight and bias of 'd'")
    found = replace(report_of(), rows=(*report_of().rows, gone), notes=("slow <here>",), widely_read=(("x", 40),))
    text = replace(found, activation_bytes=(96, 64), param_bytes=(48, 24)).to_html(title="Mine")
    assert "<title>Mine</title>" in text and "slow &lt;here&gt;" in text and "cast once for 40 readers" in text
    for each in ("d (dot): float16, allow; casts x to float16, w to float16", "No rule for Custom", ">softmax</td>"):
        assert each in text
    assert "into the weight and bias" in text and "bn (BatchNorm)" not in text  # which is in the table, and not in the picture
    assert "<dt>operators folded</dt>" in text and "of 3</span>" in text and "<dt>parameters" in text
    assert "<dt>activations</dt><dd><b>64 bytes</b> <span>96\N{NO-BREAK SPACE}bytes before</span>" in text


def test_merge_adds_up():
    one = report_of()
    assert merge([one]) is one
    both = merge([one, one])
    assert (both.casts, both.cast_bytes, len(both.rows)) == (6, 2 * one.cast_bytes, 6)
    assert merge([one, report_of(sizes={})]).cast_bytes is None


@pytest.mark.parametrize("readers, warned", [(32, False), (33, True)])
def test_tensors_with_many_readers_are_named(readers, warned):
    lines = [f"w{i} = null()\nd{i} = dot(x, w{i})" for i in range(readers)]
    found = report_of("\n".join(["x = null()", *lines, "return " + ", ".join(f"d{i}" for i in range(readers))]), sizes={})
    assert found.widely_read == ((("x", readers),) if warned else ())
    assert ("'x' is cast once for 33 readers; their gradients add up in low precision" in found.summary) == warned


@pytest.mark.parametrize("policy", ["O1", "O3", "mixed_bfloat16,last_layer_fp32=True", "O2,op:relu=float32"])
def test_every_reason_of_a_network_has_a_word_of_the_legend(policy):
    """But for one that says it all: data of another dtype."""
    symbol, shapes = load("symbols/ssd")
    for row in convert_graph(symbol, Policy.parse(policy), shapes).report.rows:
        assert legend(row.kinds) or row.reason.startswith("its data"), row.reason


KINDS = {
    "cheapest": ("d = dot(x, w)\nr = relu(d)\ne = dot(r, w)\nreturn e", "O1", "r", [Reason.CLEAR, Reason.CHEAPEST]),
    "infer behind": ("d = exp(x)\nr = broadcast_add(d, d)\ne = dot(r, w)\nreturn e", "O1", "r", [Reason.INFER_BEHIND]),
    "exact": ("r = relu(x)\nd = dot(w, w)\nreturn r, d", "O1", "r", [Reason.EXACT]),
    "override": ("d = dot(x, w)\nreturn d", "O1,name:d=float32", "d", [Reason.OVERRIDE]),
    "pure": ("d = dot(x, w)\ne = exp(d)\nreturn e", "O3", "e", [Reason.PURE]),
    "last layer": ("d = dot(x, w)\ne = dot(d, w)\nreturn e", "O1,last_layer_fp32=True", "e", [Reason.LAST_LAYER]),
    "clamped": ("d = dot(x, w)\ne = _plus_scalar(d) {scalar: 1e18}\nreturn e", "O3", "e", [Reason.PURE, Reason.CLAMPED]),
}


@pytest.mark.parametrize("text, policy, name, kinds", KINDS.values(), ids=KINDS.keys())
def test_a_reason_has_its_kinds(text, policy, name, kinds):
    found = report_of(SOURCE + text, {}, policy)
    (row,) = (row for row in found.rows if row.name == name)
    assert list(row.kinds) == kinds, row.reason
    assert (Reason.CLAMPED in kinds) == any("computes with another constant" in each for each in found.warnings)


def test_operators_of_a_kind_are_counted_with_the_tensors_that_are_cast_for_them():
    found = operator_table(report_of())
    assert [column.title for column in found.columns] == ["operator", "as it was", "float16", "float32", "tensors cast for it"]
    rows = [("Custom", 1, None, None, ""), ("dot", None, 1, None, "2 to float16"), ("softmax", None, None, 1, "1 to float32")]
    assert found.rows == rows


def test_a_narrow_table_has_the_same_in_fewer_columns():
    wide, narrow = report_of().table(), report_of().table(width=60)
    assert (len(wide.columns), len(narrow.columns)) == (5, 3)
    assert [str(cell) for cell in narrow.columns[0].cells] == ["d\n  dot", "s\n  softmax", "c\n  Custom"]
    assert [str(cell) for cell in narrow.columns[1].cells][0] == "float16\n  allow"
