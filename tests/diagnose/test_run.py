"""A run from its training to its page: what the parts write is what the reader and the page expect."""

from __future__ import annotations

import re

import mxnet as mx
import pytest
from mxnet import autograd, gluon

import mxmp
from mxmp.diagnose import CSVLogger, Ledger, compare, read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a run of three steps, the second of which is skipped, and the net's name."""
    folder = tmp_path_factory.mktemp("run")
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Dense(8, activation="relu", in_units=4), gluon.nn.Dense(3, in_units=8))
    net.initialize(mx.init.Xavier())
    mxmp.gluon.convert(net, "O1")
    trainer, loss_fn = mxmp.gluon.Trainer(net.collect_params(), "sgd"), gluon.loss.L2Loss()
    ledger = Ledger(every=1).attach(trainer)
    data, label = mx.nd.random.normal(shape=(5, 4)), mx.nd.ones((5, 3))
    with CSVLogger(str(folder), every=1, ledger=ledger).attach(trainer) as log:
        for spoilt in (False, True, False):
            with autograd.record():
                loss = loss_fn(net(data), label)
            with trainer.scale_loss(loss) as scaled:
                autograd.backward(scaled)
            if spoilt:
                net[1].weight.grad()[:] = float("inf")
            log.log(loss=loss.mean().asscalar().item())
            trainer.step(5)
    ledger.save(str(folder / "ledger.json"))
    mxmp.gluon.report(net).save(str(folder / "report.json"))
    compare(net, (data, label), "O1", loss=loss_fn).save(str(folder / "compare.json"))
    return folder


def test_all_that_a_run_leaves_is_read_and_shown(run, tmp_path):
    found = read_run(str(run))
    assert not found.missing
    page = found.to_html(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    text = re.sub(r"<[^>]+>", " ", page.replace("<wbr>", "")).replace("\N{NO-BREAK SPACE}", " ")
    for expected in ("net_dense0_fwd", "net_dense1_weight", "FullyConnected", "float16"):
        assert expected in text
    assert "gradients not finite: &#39;net_dense1_weight&#39; (100 %)" in text and "last scale" in text
    assert [row["why"] for row in found.steps] == [None, "gradients not finite: 'net_dense1_weight' (100 %)", None]
    assert len(found.steps) == 3 and [row["taken"] for row in found.steps].count(False) == 1


@pytest.mark.parametrize("policy", ["O1", "float32"])
def test_the_loss_is_that_of_scale_loss_where_nobody_logs_it(tmp_path, policy):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier())
    mxmp.gluon.convert(net, policy)
    trainer, losses = mxmp.gluon.Trainer(net.collect_params(), "sgd"), []
    with CSVLogger(str(tmp_path)).attach(trainer) as log:
        for number in range(3):
            with autograd.record():
                loss = gluon.loss.L2Loss()(net(mx.nd.random.normal(shape=(5, 4))), mx.nd.ones((5, 3)))
            with trainer.scale_loss(loss) as scaled:
                autograd.backward(scaled)
            trainer.step(5)
            losses.append(loss.mean().asscalar().item())
            if number == 1:
                log.log(loss=7.0)
    assert [step["loss"] for step in read_run(str(tmp_path)).steps] == pytest.approx([losses[0], 7.0, losses[2]])


@pytest.mark.parametrize("name", ["ledger", "compare", "report"])
def test_each_part_has_a_page_of_its_own_and_a_view_in_a_notebook(run, name, tmp_path):
    values = (run / f"{name}.json").read_text()
    made = {
        "ledger": lambda: Ledger.load(str(run / "ledger.json")),
        "compare": lambda: mxmp.diagnose.Comparison.from_json(values),
        "report": lambda: read_run(str(run)).report,
    }[name]()
    page = made.to_html(str(tmp_path / "page.html"))
    assert page.startswith("<!DOCTYPE html>") and (tmp_path / "page.html").read_text(encoding="utf-8") == page
    view = made._repr_html_()
    assert "<!DOCTYPE" not in view and "net_dense0" in view.replace("<wbr>", "")
