"""Looks at recorded graphs: what they read, how seldom they are taken, and that they leave nothing behind."""

from __future__ import annotations

import gc

import mxnet as mx
import pytest
from mxnet import autograd

from mxmp.errors import TrainerError
from mxmp.graph import from_json
from mxmp.scaling import recorded_graph as history
from tests.gluon.trainer_tools import param, sgd


def resident():
    """Return the memory of this process in KB."""
    mx.nd.waitall()
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def chain(w, length, head=False):
    """Return a loss of the given number of recorded operators; the last is a loss head where asked for."""
    with autograd.record():
        out = w.data() * 1
        for _ in range(length - 2):
            out = out + 1
        return mx.nd.make_loss(out) if head else out + 1


def step(trainer, w, *args):
    with trainer.scale_loss(chain(w, *args)) as scaled:
        scaled.backward()
    trainer.step(1)


@pytest.fixture
def looks(monkeypatch):
    """Return a list that grows with every look."""
    found, check = [], history.check

    def counted(losses, scaled):
        found.append(scaled)
        return check(losses, scaled)

    monkeypatch.setattr(history, "check", counted)
    return found


def test_the_graph_is_that_of_mxnets_own_json():
    x = mx.nd.ones((2, 3))
    x.attach_grad()
    with autograd.record():
        left, right = mx.nd.split(x * 2, 2, axis=0)
        (slope,) = autograd.grad(mx.nd.tanh(left), [x], create_graph=True, retain_graph=True)
        out = mx.nd.SoftmaxOutput(mx.nd.clip(left + right + slope, 0, 1), mx.nd.zeros((2,)), use_ignore=True)
    expected = from_json(autograd.get_symbol(out).tojson())
    found = history._graph(history._recorded_text(out))
    assert len(found.nodes) == len(expected.nodes) > 8

    def described(graph):
        return [(n.op, n.name, n.attrs, [(e.node, e.index) for e in n.inputs]) for n in graph.nodes]

    assert described(found) == described(expected)


def test_a_look_leaves_no_memory_behind():
    w = param([1.0])
    loss = chain(w, 300)
    history.check([loss], scaled=True)
    before = resident()
    for _ in range(100):
        history.check([loss], scaled=True)
    assert resident() - before < 4000  # tojson leaks 15,000


def test_steps_alike_are_looked_at_ever_more_seldom(looks):
    w = param([1.0])
    trainer = sgd(w, 8)
    for _ in range(70):
        step(trainer, w, 5)
    assert len(looks) == 7  # 1, 2, 4, ..., 64


def test_two_losses_in_turn_are_steps_alike(looks):
    w = param([1.0])
    trainer = sgd(w, 8)
    for number in range(70):
        step(trainer, w, 5 + number % 2)
    assert len(looks) <= 10


def test_a_loss_head_that_comes_late_is_refused_at_once_and_for_ever():
    w = param([1.0])
    trainer = sgd(w, 8)
    for _ in range(10):
        step(trainer, w, 5)
    for _ in range(3):
        with pytest.raises(TrainerError, match=r"node 'node_\d+' \(make_loss\) is a loss head"):
            step(trainer, w, 6, True)
    step(trainer, w, 5)


def test_a_loss_head_in_the_place_of_another_operator_is_refused_later(looks):
    w = param([1.0])
    trainer = sgd(w, 8)
    for _ in range(9):
        step(trainer, w, 5)
    made = 9
    with pytest.raises(TrainerError, match="is a loss head"):
        while made < 40:
            step(trainer, w, 5, True)
            made += 1
    assert made == 15  # refused at the sixteenth


def test_graphs_that_always_differ_are_looked_at_a_bounded_number_of_times(looks):
    w = param([1.0])
    trainer = sgd(w, 8)
    for number in range(130):
        step(trainer, w, 3 + number)
    assert len(looks) <= history._MOST_KINDS + 8


def test_the_longest_gap_is_bounded(monkeypatch, looks):
    monkeypatch.setattr(history, "_LONGEST_GAP", 16)
    w = param([1.0])
    trainer = sgd(w, 8)
    for _ in range(80):
        step(trainer, w, 3)
    assert len(looks) == 9  # 1, 2, 4, 8, 16, then every 16th


def test_without_a_loss_scale_nothing_is_looked_at(looks, monkeypatch):
    w = param([1.0])
    trainer = sgd(w, None)

    def fail(*_):
        raise AssertionError("the recorded graph was asked for")

    monkeypatch.setattr(autograd, "get_symbol", fail)
    monkeypatch.setattr(history, "is_recorded", fail)
    loss = chain(w, 5, True)
    with trainer.scale_loss(loss) as scaled:
        assert scaled is loss
        scaled.backward()
    assert trainer.step(1) and not looks


@pytest.mark.slow
def test_thousands_of_steps_cost_no_memory():
    """At most 0.2 KB a step; it was 0.5 KB for each of a step's operators."""
    w = param([1.0])
    trainer = sgd(w, 8)
    for _ in range(300):
        step(trainer, w, 8)
    before = resident()
    for _ in range(2000):
        step(trainer, w, 8)
    assert (resident() - before) / 2000 < 0.2
