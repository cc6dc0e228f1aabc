"""The gradients of activations in low precision, against those that are computed by hand."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.policy import Policy
from mxmp.probe.step_replay import Call, Gradients
from mxmp.symbol import convert_graph


def seen_of(policy, scale=1.0, head=1.0):
    """Return what a run of fc(square(x)) shows, for x = [1, 2, 3] and weights of 0.1, and a gradient of its output."""
    x = mx.sym.square(mx.sym.var("data"), name="sq")
    sym = mx.sym.FullyConnected(x, num_hidden=1, no_bias=True, name="fc")
    values = {"data": mx.nd.array([[1, 2, 3]]), "fc_weight": mx.nd.full((1, 3), 0.1)}
    shapes = {name: each.shape for name, each in values.items()}
    found = convert_graph(sym, Policy.parse(policy), shapes, {}, frozenset(["fc_weight"]))
    gradients = Gradients([mx.nd.full((1, 1), head)])
    seen = Call("fc", found.decisions, values, ["data"], frozenset(["fc_weight"]), gradients, mx.cpu()).run(True, scale)
    return {each.name: each for each in seen.backward.values()}, {each.name: each for each in seen.forward.values()}


@pytest.mark.parametrize("policy", ["O0", "O3"])
def test_gradients_are_scaled_and_rounded_as_the_network_has_them(policy):
    gradients, values = seen_of(policy, scale=8.0, head=3.0)
    tenth = 0.1 if policy == "O0" else float(np.float16(0.1))
    assert gradients["sq_output"].largest == pytest.approx(24 * tenth, rel=1e-3)
    assert gradients["fc_weight"].smallest == 24.0 and gradients["fc_weight"].largest == 216.0
    assert values["sq_output"].largest == 9.0


def test_a_gradient_beyond_float16_is_inf_there_alone():
    low, _ = seen_of("O3", scale=2.0**20)
    exact, _ = seen_of("O0", scale=2.0**20)
    assert low["sq_output"].infs == 3 and exact["sq_output"].bad == 0


def test_nothing_of_what_is_given_is_changed():
    weight, data = mx.nd.ones((1, 3)), mx.nd.ones((1, 3))
    weight.attach_grad()
    with autograd.record():
        (weight * 2).backward()
    sym = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, no_bias=True, name="fc")
    found = convert_graph(sym, Policy.parse("O1"), {"data": (1, 3)}, {}, frozenset(["fc_weight"]))
    values, gradients = {"data": data, "fc_weight": weight}, Gradients([mx.nd.ones((1, 1))])
    Call("fc", found.decisions, values, ["data"], frozenset(["fc_weight"]), gradients, mx.cpu()).run(True)
    assert weight.grad.asnumpy().tolist() == [[2.0, 2.0, 2.0]] and weight.asnumpy().tolist() == [[1.0, 1.0, 1.0]]
