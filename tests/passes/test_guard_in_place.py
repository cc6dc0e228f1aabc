"""Operators that may not run in place, rewritten."""

from __future__ import annotations

import pytest

from mxmp.graph import from_text, to_text
from mxmp.passes import GuardInPlace

PRELU = "x = null()\na = null()\ny = LeakyReLU(x, a) {act_type: prelu}\nreturn y"


def test_a_graph_that_infers_keeps_its_prelu():
    assert not GuardInPlace(trains=False)(from_text(PRELU)).modified


def test_a_graph_that_trains_has_a_prelu_of_data_without_gradient_and_keeps_the_name():
    found = to_text(GuardInPlace(trains=True)(from_text(PRELU)).graph).splitlines()
    assert "y_slope = LeakyReLU(y_other, a) {act_type: prelu}" in found
    assert found[-2:] == ["y = elemwise_mul(x, y_factor)", "return y"]


@pytest.mark.parametrize("call", ["LeakyReLU(x) {act_type: leaky}", "_npi_ediff1d(x)", "_npi_diff(x) {n: 1}"])
def test_others_stay(call):
    assert not GuardInPlace(trains=True)(from_text(f"x = null()\ny = {call}\nreturn y")).modified
