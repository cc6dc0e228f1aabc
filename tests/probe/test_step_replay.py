"""Gradients of a loss that is computed again of outputs, which may be nested."""

from __future__ import annotations

from collections import namedtuple

import mxnet as mx
import pytest

from mxmp.probe.step_replay import LossGradients

Pair = namedtuple("Pair", "first rest")
ONES = [mx.nd.ones((2,)) for _ in range(3)]


@pytest.mark.parametrize("like", [(ONES[0], ONES[1:]), Pair(ONES[0], ONES[1:]), [ONES[0], tuple(ONES[1:])]])
def test_a_loss_gets_outputs_nested_as_they_were(like):
    def loss(outputs):
        first, (second, third) = outputs
        assert type(outputs) is type(like) and type(outputs[1]) is type(like[1])
        return first + 2 * second + 3 * third

    found = LossGradients(loss, (), like)([mx.nd.zeros((2,)) for _ in range(3)])
    assert [each.asnumpy().tolist() for each in found] == [[1, 1], [2, 2], [3, 3]]
