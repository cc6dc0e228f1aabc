"""What a user can check of comparisons of speed, by public names only. docs/behaviours.md lists it."""

import pytest

import mxmp
from tests.freeze import freeze
from tests.perceptron import X, make, values


@pytest.mark.behaviour(58)
def test_speeds_are_compared_without_a_change_and_the_fastest_is_a_policy():
    net = make()
    before = freeze(values(net))
    found = mxmp.tune.compare_speed(net, [X], ["float32", "O1"], seconds=0.01)
    assert [row.policy for row in found.rows] == ["float32", "O1"] and freeze(values(net)) == before
    assert found.fastest in ("float32", "O1") and mxmp.gluon.convert(net, found.fastest) is net
