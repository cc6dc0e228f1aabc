"""The calls that a step keeps until its end."""

import mxnet as mx
import pytest
from mxnet import autograd

from mxmp.diagnose.rerun import Recorder
from mxmp.diagnose.watch import calls_of
from mxmp.gluon import convert
from mxmp.gluon.blocks import conversion_of
from tests.diagnose.nets import layer, made, trainer_of


def converted():
    return convert(made(layer("net", 1.0)), "O1")


def test_the_last_calls_are_kept_where_there_are_many():
    net = converted()
    recorder = conversion_of(net).observer = Recorder(most=15)
    with autograd.record():
        for number in range(30):
            net(mx.nd.full((1, 4), number))
    assert [each.call.inputs[0].asnumpy()[0, 0] for each in recorder.calls] == list(range(15, 30))
    assert not recorder.is_complete and all(each.follows_lost for each in recorder.replays(1.0))


def test_a_noted_input_does_not_keep_the_graph_that_gave_it():
    net, x = converted(), mx.nd.ones((4, 4))
    trainer = trainer_of(net)
    x.attach_grad()
    with autograd.record():
        net(x * 2)
    (kept,) = calls_of(trainer).calls
    assert kept.call.outputs is None
    with pytest.raises(mx.MXNetError):
        autograd.get_symbol(kept.call.inputs[0])
