"""All results are written and read back, shown as pages, and give what to paste into a policy."""

import re
from dataclasses import replace

import mxnet as mx
import pytest

import mxmp
from mxmp import Policy
from mxmp.diagnose import (
    Comparison,
    CSVLogger,
    NodeComparison,
    OutputComparison,
    compare,
    explain,
    measure_gradients,
    read_run,
)
from mxmp.errors import ConvertError
from tests.diagnose.nets import L2, backward, dense, made, trainer_of, where

BATCH = {"data": mx.nd.full((2, 3), 300)}
ROWS = tuple(NodeComparison(f"fc{i}", "FullyConnected", "float16", 0.1 / (i + 1), 0.1) for i in range(30))
COMPARISON = Comparison("O1", ROWS, (OutputComparison("fc_output", 0.1),))


def squares(name="square"):
    data = mx.sym.var("data")
    sym = mx.sym.FullyConnected(mx.sym.elemwise_mul(data, data, name=name), num_hidden=2, no_bias=True, name="fc")
    return sym, {"fc_weight": mx.nd.ones((2, 3))}, {}


def trained():
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, no_bias=True, name="fc")
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(sym, name="square"))), {"fc_weight": mx.nd.ones((2, 3))}, {}


RESULTS = {
    "Comparison": lambda: COMPARISON,
    "NonFinite": lambda: where(squares(), BATCH, "O3"),
    "Explanation": lambda: explain(squares(), BATCH, "O3"),
    "Gradients": lambda: measure_gradients(trained(), BATCH),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_written_and_read_back_and_shows_itself_as_a_page_and_in_a_notebook(name):
    found, node = RESULTS[name](), "fc0" if name == "Comparison" else "square"
    assert type(found).from_json(found.to_json()) == found
    assert node in found.to_html() and node in found._repr_html_() and "<html" not in found._repr_html_()


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("Comparison", {"lowered_from": 2.0}, "loss_scale is None; expected a number beside lowered_from"),
        ("NonFinite", {"where": "loss", "inputs": []}, "inputs is empty; expected the output that the loss reads"),
    ],
)
def test_a_result_that_lacks_what_its_sentences_say_is_refused(name, changes, message):
    found = RESULTS[name]()
    with pytest.raises(ConvertError, match=message):
        type(found).from_dict({**found.to_dict(), **changes})


@pytest.mark.parametrize("name", ["square", "square[0]"])
def test_the_overrides_of_a_verdict_mend_the_activation(name):
    verdict = explain(squares(name), BATCH, "O3")
    assert verdict.kind == "activation out of range" and f"'{verdict.overrides}'" in verdict.text
    assert verdict.overrides == f"name:{name.replace('[', '[[]')}=float32,name:fc=float32"
    assert explain(squares(name), BATCH, f"O3,output=float32,{verdict.overrides}").kind == "no fault found"
    Policy.parse(f"O1,{verdict.overrides}")


def test_a_verdict_that_nothing_mends_shows_no_overrides():
    """Of a gradient that overflows at the step's scale alone, or of values that float32 does not hold."""
    of_range = RESULTS["Explanation"]()
    for verdict, mends in ((of_range, True), (replace(of_range, kind="scale too high"), False)):
        assert bool(verdict.overrides) == mends == ("overrides that mend it" in verdict.to_html())
    assert explain(squares(), {"data": mx.nd.full((2, 3), 1e30)}, "O3").overrides == ""


def test_the_20_worst_operators_are_printed_and_how_to_see_the_rest():
    text, whole = str(COMPARISON), COMPARISON.text(worst=None)
    assert "fc19" in text and "fc20" not in text and "20 of 30 operators" in text
    assert "fc29" in whole and "operators" not in whole


# ---------------------------------------------------------------------- a run, from its training to its page


def test_what_a_run_leaves_is_read_and_shown(tmp_path):
    """A run of three steps, the second of which is skipped."""
    data, label, net, losses = mx.nd.random.normal(shape=(5, 4)), mx.nd.ones((5, 3)), made(dense(8, 3), mx.init.Xavier()), []
    net(data)
    trainer = trainer_of(mxmp.gluon.convert(net, "O1"), "dynamic")
    with CSVLogger(tmp_path, every=1).attach(trainer) as log:
        for number in range(3):
            losses.append(backward(trainer, lambda: L2(net(data), label)).mean().asscalar().item())
            net[1].weight.grad()[:] *= float("inf") if number == 1 else 1
            trainer.step(5)
        log.log(loss=7.0)
    gradients = measure_gradients(net, (data, label), loss=L2)
    results = {"gradients": gradients, "report": mxmp.gluon.report(net), "compare": compare(net, (data, label), "O1", loss=L2)}
    for name, result in results.items():
        result.save(str(tmp_path / f"{name}.json"))
    found, why = read_run(tmp_path), "gradients not finite: 'net_dense1_weight' (100 %)"
    page = re.sub(r"<[^>]+>", " ", found.to_html().replace("<wbr>", "")).replace("\N{NO-BREAK SPACE}", " ").replace("&#39;", "'")
    assert all(word in page for word in ("net_dense0_fwd", "FullyConnected", "float16", "last scale", why))
    steps = found.records["steps.csv"].steps
    assert [(row["why"], row["taken"]) for row in steps] == [(None, True), (why, False), (None, True)]
    assert [row["loss"] for row in steps] == pytest.approx([*losses[:2], 7.0])  # of scale_loss, if nobody logs another
