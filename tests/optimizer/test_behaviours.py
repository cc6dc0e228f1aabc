"""What a user can check of Keras' optimizer, by public names only. docs/behaviours.md lists it."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from mxmp.optimizer import LossScaleOptimizer
from tests.freeze import freeze
from tests.perceptron import X, make, values


@pytest.mark.behaviour(55)
def test_the_optimizer_of_keras_skips_and_counts_its_iterations():
    net = make()
    optimizer = LossScaleOptimizer(mx.optimizer.create("sgd", learning_rate=0.1), initial_scale=16)
    params = list(net.collect_params().values())
    before = values(net)
    for spoilt, taken in ((True, 0), (False, 1), (True, 1), (True, 1)):
        present = values(net)
        with autograd.record():
            scaled = optimizer.get_scaled_loss(net(X).sum())
        scaled.backward()
        if spoilt:
            params[0].grad()[:] = np.nan
        grads = optimizer.get_unscaled_gradients([param.grad() for param in params])
        assert optimizer.apply_gradients(zip(grads, params)) is not spoilt
        assert (freeze(values(net)) == freeze(present)) is spoilt
        assert optimizer.iterations == optimizer.inner_optimizer.num_update == taken
    assert optimizer.loss_scale == 2
    bias = "net_dense1_bias"  # whose gradient is 1 for each of the four rows
    np.testing.assert_array_equal(values(net)[bias], before[bias] - np.float32(0.1) * 4)
