"""Parameters of a block, collected without MXNet's look for blocks in lists."""

from __future__ import annotations

import pytest
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxmp.mxnet_private import blocks


class Own(nn.HybridSequential):
    """A block that collects in its own way."""

    def collect_params(self, select=None):
        return super().collect_params(select or ".*weight")


def shared():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(2))
        net.add(nn.Dense(2, params=net[0].params))
        net.add(net[0])
    return net


def own():
    net, inner = nn.Sequential(), Own()
    inner.add(nn.Dense(2))
    net.add(inner, nn.Dense(3))
    return net


MAKERS = [lambda: vision.resnet18_v2(), lambda: vision.squeezenet1_0(), shared, own, nn.Sequential]


@pytest.mark.parametrize("make", MAKERS, ids=["resnet18_v2", "squeezenet1_0", "shared", "own", "empty"])
def test_parameters_are_those_of_collect_params_in_its_order(make):
    net = make()
    assert list(blocks.collected_params(net).items()) == list(net.collect_params().items())


def test_a_block_without_parameters_has_none():
    assert blocks.collected_params(gluon.nn.Activation("relu")) == {}


def test_two_parameters_of_one_name_are_refused():
    net = nn.Sequential()
    net.add(nn.Dense(2, prefix="same_"), nn.Dense(2, prefix="same_"))
    with pytest.raises(AssertionError, match="different Parameters with the same name 'same_weight'"):
        blocks.collected_params(net)
