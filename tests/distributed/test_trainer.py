"""A trainer whose gradients are summed over workers, without a network."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from mxmp.distributed import KVStore
from mxmp.errors import NonFiniteLossError
from mxmp.loss_scale import DynamicLossScale
from mxmp.train.masters import keep_masters
from tests.distributed.engines import Second, Twins, WithBadLoss
from tests.gluon.trainer_tools import backward, param, sgd, value

LOW = ["float16", pytest.param("bfloat16", marks=pytest.mark.bfloat16)]


@pytest.mark.parametrize("dtype", ["float32", *LOW])
def test_step_takes_the_sum_over_workers_and_the_batch_of_all(dtype):
    w = param([1.0, 2.0], dtype)
    trainer = sgd(w, loss_scale=64, kvstore=KVStore(Twins(4)))
    backward(trainer, w, [0.5, 0.25])
    assert trainer.step(batch_size=8)
    np.testing.assert_array_equal(value(w.data()), [1 - 4 * 0.5 / 8, 2 - 4 * 0.25 / 8])


@pytest.mark.parametrize("call", ["unscale", "clip_global_norm", "allreduce_grads"])
def test_gradients_that_are_summed_show_in_float32(call):
    w = param([0.0], "float16")
    trainer = sgd(w, loss_scale=2.0, kvstore=KVStore(Twins(2)))
    backward(trainer, w, [30000])
    norm = getattr(trainer, call)(*[1e9][: call.startswith("clip")])
    assert w.grad().dtype == np.float32
    assert w.grad().asscalar() == 60000
    assert norm in (None, 60000)
    assert trainer.update(60000) if call == "allreduce_grads" else trainer.step(60000)
    assert value(w.data()) == [-1] and w.grad().dtype == np.float16  # as it was, once the step is over


def test_the_parameters_are_worker_0s_from_the_start():
    w = param([1.0, 2.0])
    trainer = sgd(w, loss_scale=1.0, kvstore=KVStore(Second()))
    assert (value(w.data()) == 5).all()
    backward(trainer, w, [1, 2])
    trainer.step(1)
    np.testing.assert_array_equal(value(w.data()), [4, 3])


MASTER = 5 + 2.0**-12  # rounds to 5


@pytest.mark.parametrize(
    "weight, engine, expected",
    [
        (5.0, Second, 5.0),  # worker 0's: or weights that round alike would go different ways
        (5.0, Twins, MASTER),  # what its weight has lost
        (7.0, Twins, 7.0),  # the weight was set
    ],
)
def test_masters_are_those_that_weights_had_and_worker_0s(weight, engine, expected):
    w = param([weight], "float16")
    keep_masters(w, [mx.nd.array([MASTER])])
    trainer = sgd(w, loss_scale=1.0, kvstore=KVStore(engine()))
    backward(trainer, w, [0])
    trainer.step(1)
    assert trainer._training_step.masters[0].arrays[0].asscalar() == expected


def test_parameters_of_unknown_shape_wait_for_the_first_step():
    net = gluon.nn.Dense(2, use_bias=False)
    net.initialize()
    trainer = sgd(dict(net.collect_params()), loss_scale=1.0, kvstore=KVStore(Second()))
    with mx.autograd.record(), trainer.scale_loss(net(mx.nd.ones((1, 3))).sum()) as scaled:
        scaled.backward()
    trainer.step(1)
    assert (net.weight.data().asnumpy() == 4).all()


@pytest.mark.behaviour("an overflow on one context")
def test_a_loss_that_is_lost_on_one_worker_stops_all_alike():
    """With scales that differ, gradients of different scales would be summed."""
    w = param([1.0])
    trainer = sgd(w, loss_scale=DynamicLossScale(init_scale=8.0), kvstore=KVStore(WithBadLoss([1])))
    for step in range(3):
        backward(trainer, w, [1])
        if step == 1:
            with pytest.raises(NonFiniteLossError):
                trainer.step(2)
        else:
            assert trainer.step(2)
    assert value(w.data()) == [-1] and trainer.loss_scale.value == 8


def test_without_a_loss_scale_the_workers_update_as_well():
    """Where the kvstore does, MXNet has no masters and refuses another batch size."""
    w = param([0.0], "float16")
    trainer = sgd(w, loss_scale=None, kvstore=KVStore(Twins(2)))
    for batch_size in (1, 2):
        backward(trainer, w, [1])
        trainer.step(batch_size)
    assert value(w.data()) == [-3]
    assert trainer._update_on_kvstore is False
