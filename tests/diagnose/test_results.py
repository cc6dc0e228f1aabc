"""All results are written and read back, shown as pages, and give what to paste into a policy."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.diagnose import Comparison, NodeComparison, OutputComparison, explain, find_nonfinite

BATCH = {"data": mx.nd.full((2, 3), 300)}
ROWS = tuple(NodeComparison(f"fc{i}", "FullyConnected", "float16", 0.1 / (i + 1), 0.1) for i in range(30))
COMPARISON = Comparison("O1", ROWS, (OutputComparison("fc_output", 0.1),))


def squares(name="square"):
    """Return a network whose square of 300 leaves float16's range."""
    data = mx.sym.var("data")
    sym = mx.sym.FullyConnected(mx.sym.elemwise_mul(data, data, name=name), num_hidden=2, no_bias=True, name="fc")
    return sym, {"fc_weight": mx.nd.ones((2, 3))}, {}


RESULTS = {
    "Comparison": lambda: COMPARISON,
    "NonFinite": lambda: find_nonfinite(squares(), BATCH, "O3"),
    "Verdict": lambda: explain(squares(), BATCH, "O3"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_written_and_read_back_and_shows_itself_as_a_page_and_in_a_notebook(name, tmp_path):
    found, path, page = RESULTS[name](), str(tmp_path / "result.json"), tmp_path / "page.html"
    kind, node = type(found), "fc0" if name == "Comparison" else "square"
    found.save(path)
    assert kind.load(path) == found == kind.from_json(found.to_json()) == kind.from_dict(found.to_dict())
    assert found.to_html(str(page), title="A title") == page.read_text()
    assert "<title>A title</title>" in page.read_text() and node in page.read_text()
    assert node in found._repr_html_() and "<html" not in found._repr_html_()


@pytest.mark.parametrize("name", ["square", "square[0]"])
def test_the_overrides_of_a_verdict_mend_the_activation(name):
    verdict = explain(squares(name), BATCH, "O3")
    assert verdict.kind == "activation out of range" and f"'{verdict.overrides}'" in verdict.text
    assert verdict.overrides == f"name:{name.replace('[', '[[]')}=float32,name:fc=float32"
    assert explain(squares(name), BATCH, f"O3,output=float32,{verdict.overrides}").kind == "no fault found"
    Policy.parse(f"O1,{verdict.overrides}")


def test_a_verdict_that_nothing_mends_shows_no_overrides():
    """Of a gradient that overflows at the step's scale alone, or of values that float32 does not hold."""
    of_range = RESULTS["Verdict"]()
    for verdict, mends in ((of_range, True), (replace(of_range, kind="scale too high"), False)):
        assert bool(verdict.overrides) == mends == ("overrides that mend it" in verdict.to_html())
    assert explain(squares(), {"data": mx.nd.full((2, 3), 1e30)}, "O3").overrides == ""


def test_the_20_worst_operators_are_printed_and_how_to_see_the_rest():
    text, whole = str(COMPARISON), COMPARISON.text(worst=None)
    assert "fc19" in text and "fc20" not in text and "20 of 30 operators" in text
    assert "fc29" in whole and "operators" not in whole
