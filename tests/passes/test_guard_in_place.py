"""Operators that may not run in place, rewritten."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.passes import GuardInPlace
from mxmp.symbol import from_graph
from tests.graph.text import from_text, to_text

PRELU = "x = null()\na = null()\ny = LeakyReLU(x, a) {act_type: prelu}\nreturn y"


def test_a_graph_that_infers_keeps_its_prelu():
    assert not GuardInPlace(trains=False)(from_text(PRELU)).modified


def test_a_graph_that_trains_has_a_prelu_of_data_without_gradient_and_keeps_the_name():
    found = to_text(GuardInPlace(trains=True)(from_text(PRELU)).graph).splitlines()
    assert "y_slope = LeakyReLU(y_other, a) {act_type: prelu}" in found
    assert found[-2:] == ["y = elemwise_sub(y_upper, y_product)", "return y"]


def test_a_guarded_prelu_overflows_no_more_than_the_operator_in_float16():
    """On a GPU the guard runs in float16: x times the gradient of the output may be out of range where x > 0."""
    graph = GuardInPlace(trains=True)(from_text(PRELU)).graph
    data, alpha = mx.nd.array([[1000, -1, 0, -3]], dtype="float16"), mx.nd.array([0.25], dtype="float16")
    for array in (data, alpha):
        array.attach_grad()
    with autograd.record():
        output = mx.nd.CachedOp(from_graph(graph))(data, alpha)
    output.backward(mx.nd.array([[100, 100, 100, 7]], dtype="float16"))
    np.testing.assert_array_equal(output.asnumpy(), [[1000, -0.25, 0, -0.75]])
    np.testing.assert_array_equal(data.grad.asnumpy(), [[100, 25, 25, 1.75]])
    assert alpha.grad.asscalar() == -121


@pytest.mark.parametrize("call", ["LeakyReLU(x) {act_type: leaky}", "_npi_ediff1d(x)", "_npi_diff(x) {n: 1}"])
def test_others_stay(call):
    assert not GuardInPlace(trains=True)(from_text(f"x = null()\ny = {call}\nreturn y")).modified
