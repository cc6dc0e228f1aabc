"""What results have in common: they are written and read back, shown as pages, and give what to paste into a policy."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import pytest

from mxmp import Policy
from mxmp.diagnose import Comparison, NodeComparison, NonFinite, OutputComparison, Verdict, explain, find_nonfinite
from mxmp.errors import CheckpointError, ConvertError

BATCH = {"data": mx.nd.full((2, 3), 300)}
ROWS = tuple(NodeComparison(f"fc{i}", "FullyConnected", "float16", 0.1 / (i + 1), 0.1) for i in range(30))


def squares(name="square"):
    """Return a network whose square of 300 leaves float16's range."""
    data = mx.sym.var("data")
    sym = mx.sym.FullyConnected(mx.sym.elemwise_mul(data, data, name=name), num_hidden=2, no_bias=True, name="fc")
    return sym, {"fc_weight": mx.nd.ones((2, 3))}, {}


@pytest.fixture(scope="module")
def results():
    comparison = Comparison("O1", ROWS, (OutputComparison("fc_output", 0.1),))
    return {
        Comparison: comparison,
        NonFinite: find_nonfinite(squares(), BATCH, "O3"),
        Verdict: explain(squares(), BATCH, "O3"),
    }


def test_a_verdict_that_nothing_mends_shows_no_overrides(results):
    """Of a gradient that overflows at the step's scale alone there is nothing to do."""
    of_range = results[Verdict]
    too_high = replace(of_range, kind="scale too high")
    assert (of_range.overrides != "", too_high.overrides) == (True, "")
    assert ["overrides that mend it" in each.to_html() for each in (of_range, too_high)] == [True, False]


@pytest.mark.parametrize("kind", [Comparison, NonFinite, Verdict])
def test_a_result_is_written_and_read_back(kind, results, tmp_path):
    found, path = results[kind], str(tmp_path / "result.json")
    found.save(path)
    assert kind.load(path) == found == kind.from_json(found.to_json()) == kind.from_dict(found.to_dict())


@pytest.mark.parametrize("kind", [Comparison, NonFinite, Verdict])
def test_a_result_is_a_page_and_shows_itself_in_a_notebook(kind, results, tmp_path):
    path, name = tmp_path / "page.html", "fc0" if kind is Comparison else "square"
    assert results[kind].to_html(str(path), title="A title") == path.read_text()
    assert "<title>A title</title>" in path.read_text() and name in path.read_text()
    assert name in results[kind]._repr_html_() and "<html" not in results[kind]._repr_html_()


@pytest.mark.parametrize("kind", [Comparison, NonFinite, Verdict])
def test_what_is_no_such_result_is_refused(kind, results, tmp_path):
    with pytest.raises(ConvertError, match="this is no .* of mxmp: expected 'record': .*, found None"):
        kind.from_json("{}")
    values = results[kind].to_dict()
    for name in [name for name in values if name not in ("record", "version")][:1]:
        with pytest.raises(ConvertError, match=f"is damaged: {name} is missing"):
            kind.from_dict({key: value for key, value in values.items() if key != name})
    path = tmp_path / "other.json"
    path.write_text("{")
    with pytest.raises(CheckpointError, match="other.json: this is no .*: it is no JSON"):
        kind.load(str(path))
    with pytest.raises(CheckpointError, match="nowhere.json cannot be read: No such file"):
        kind.load(str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("name", ["square", "square[0]"])
def test_the_overrides_of_a_verdict_mend_the_activation(name):
    verdict = explain(squares(name), BATCH, "O3")
    assert verdict.kind == "activation out of range" and f"'{verdict.overrides}'" in verdict.text
    assert verdict.overrides == f"name:{name.replace('[', '[[]')}=float32,name:fc=float32"
    assert explain(squares(name), BATCH, f"O3,output=float32,{verdict.overrides}").kind == "no fault found"
    Policy.parse(f"O1,{verdict.overrides}")


def test_other_verdicts_have_no_overrides():
    assert explain(squares(), {"data": mx.nd.full((2, 3), 1e30)}, "O3").overrides == ""


def test_the_20_worst_operators_are_printed_and_how_to_see_the_rest(results):
    text = str(results[Comparison])
    assert "fc19" in text and "fc20" not in text
    assert "20 of 30 operators" in text
    assert "fc29" in results[Comparison].text(worst=None) and "operators" not in results[Comparison].text(worst=None)
