"""Parameters of a block, collected without MXNet's look for blocks in lists."""

import pytest
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from mxmp.gluon.blocks import collected_params
from tests.gluon.nets import sequence


class Own(nn.HybridSequential):
    """A block that collects in its own way."""

    def collect_params(self, select=None):
        return super().collect_params(select or ".*weight")


def shared():
    first = nn.Dense(2)
    return sequence(first, nn.Dense(2, params=first.params), first)


def own():
    inner = Own()
    inner.add(nn.Dense(2))
    return sequence(inner, nn.Dense(3), kind=nn.Sequential)


MAKERS = {
    "resnet18_v2": vision.resnet18_v2,
    "squeezenet1_0": vision.squeezenet1_0,
    "shared": shared,
    "own": own,
    "empty": nn.Sequential,
    "no parameters": lambda: nn.Activation("relu"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_parameters_are_those_of_collect_params_in_its_order(make):
    net = make()
    assert list(collected_params(net).items()) == list(net.collect_params().items())


def test_two_parameters_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="different Parameters with the same name 'same_weight'"):
        collected_params(sequence(*[nn.Dense(2, prefix="same_") for _ in range(2)], kind=nn.Sequential))
