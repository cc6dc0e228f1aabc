"""A module whose gradients are summed over workers, without a network."""

import mxnet as mx
import numpy as np
import pytest

import mxmp
from mxmp.distributed import KVStore
from mxmp.errors import NonFiniteLossError
from tests.distributed.engines import Second, Twins, WithBadLoss


def make(kvstore, policy="O0", loss_scale=8, **options):
    """Return a module that learns weights w so that x * w are the labels, w = 1 at first."""
    # Two outputs, by whose number MXNet divides the gradient; the scale of 2 makes up for it.
    output = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, no_bias=True, name="fc")
    symbol = mx.sym.LinearRegressionOutput(output, mx.sym.var("label"), grad_scale=2, name="out")
    module = mxmp.module.Module(symbol, label_names=["label"], policy=policy, loss_scale=loss_scale)
    module.bind([("data", (2, 1))], [("label", (2, 2))])
    module.init_params(mx.init.One())
    module.init_optimizer(kvstore, "sgd", {"learning_rate": 1.0, **options})
    return module


def step(module, x, label):
    module.forward_backward(mx.io.DataBatch([mx.nd.full((2, 1), x)], [mx.nd.full((2, 2), label)]))
    return module.update()


def weight(module):
    (value,) = set(module.get_params()[0]["fc_weight"].asnumpy().ravel().tolist())
    return value


@pytest.mark.parametrize("policy", ["O0", "O1", "O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_update_takes_the_sum_over_workers_and_the_batch_of_all(policy):
    module = make(KVStore(Twins(4)), policy)
    assert step(module, 1, 0.5)
    assert weight(module) == 0.5  # the mean of the gradients 1 - 0.5, over 4 workers with two rows each


def test_a_sum_beyond_float16_is_no_overflow():
    module = make(KVStore(Twins(2)), "O2", loss_scale=1, rescale_grad=2.0**-20)
    assert step(module, 100, -100)
    assert weight(module) == pytest.approx(1 - 80000 * 2.0**-20)


def test_the_parameters_are_worker_0s_from_the_start():
    module = make(KVStore(Second()), "O2")
    assert weight(module) == 5
    assert module._exec_group.param_arrays[0][0].asnumpy().tolist() == [[5], [5]]


def test_a_loss_of_nan_on_another_worker_raises_here_and_an_overflow_there_skips():
    dynamic = mxmp.loss_scale.DynamicLossScale(init_scale=8)
    lost, skips = make(KVStore(WithBadLoss([0]))), make(KVStore(WithBadLoss([])), loss_scale=dynamic)
    for module in (lost, skips):
        module.forward_backward(mx.io.DataBatch([mx.nd.ones((2, 1))], [mx.nd.ones((2, 2))]))
        module._exec_group.grad_arrays[0][0][:] = np.inf  # what a sum with the other's NaN or inf gives
    with pytest.raises(NonFiniteLossError):
        lost.update()
    assert skips.update() is False
    assert [(weight(module), module.loss_scale.value) for module in (lost, skips)] == [(1, 8), (1, 4)]
